"""What the file says that is there while a box belongs to a fleet: who it is in it. The agent alone writes it, when the
box enrols and when its group changes; the daemon only shows it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

MEMBERSHIP_BYTES_MAX: Final = 64 << 10


class Membership(Struct, frozen=True, kw_only=True):
    """The box's name in its fleet, where its controller is, and the ``group`` that it was told last ("": none)."""

    device: Annotated[str, Meta(max_length=64)]
    url: str
    group: Annotated[str, Meta(max_length=64)] = ""

    @property
    def words(self) -> str:
        """Which site it is, for people."""
        return f"{self.device}, group {self.group}" if self.group else self.device


class MembershipUnreadable(ValueError):
    """Bytes that do not say that a device belongs to a fleet."""


def encode(membership: Membership) -> bytes:
    """As it stands in the file."""
    return msgspec.json.encode(membership)


def decode(data: bytes) -> Membership:
    """What the file says. Raises MembershipUnreadable."""
    try:
        return msgspec.json.decode(data, type=Membership)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MembershipUnreadable(f"is no membership: {error}") from error
