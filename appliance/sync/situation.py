"""What the agent found last, for commands that look at its files: what it waits for, and how its contacts go.

Written beside the work, without a sync: it may be lost or old, and nothing is decided by it. Owner: the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from appliance.store.layout import FLEET
from appliance.sync.freshness import Contact
from appliance.sync.identity import SITUATION
from appliance.sync.plan import Reason, Waiting

BYTES_MAX: Final = 1 << 20


class Stuck(Struct, frozen=True, kw_only=True):
    """A version that the store would not do anything with, and why; ``again_s``: when it is tried again."""

    name: str
    version: int
    reason: Reason
    text: str
    again_s: float | None


class Situation(Struct, frozen=True, kw_only=True):
    """See the module. ``trouble``: why the controller was not heard the last time, "" where it was."""

    contact: Contact = Contact()
    trouble: str = ""
    stuck: tuple[Stuck, ...] = ()

    def waiting(self) -> dict[tuple[str, int], Waiting]:
        """As a plan goes by it."""
        return {
            (each.name, each.version): Waiting(reason=each.reason, text=each.text, again_s=each.again_s)
            for each in self.stuck
        }


def stuck_of(found: Mapping[tuple[str, int], Waiting]) -> tuple[Stuck, ...]:
    """What is to be told of them."""
    return tuple(
        Stuck(name=name, version=version, reason=each.reason, text=each.text, again_s=each.again_s)
        for (name, version), each in found.items()
    )


def write(state: Path, situation: Situation) -> None:
    """Leave it for who asks. A disk that takes nothing costs only that."""
    place = state / FLEET / SITUATION
    draft = place.with_suffix(".new")
    with suppress(OSError):
        draft.write_bytes(msgspec.json.encode(situation))
        draft.replace(place)


def read(state: Path) -> Situation:
    """What the agent left; nothing where that is lost or cannot be read."""
    try:
        with (state / FLEET / SITUATION).open("rb") as file:
            return msgspec.json.decode(file.read(BYTES_MAX), type=Situation)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Situation()
