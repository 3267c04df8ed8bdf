"""What a device should run, from what was wished for it and its group. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from appliance.controller.schemas import Wish
from appliance.fleet.documents import (
    DesiredState,
    Setting,
    WishedModel,
    WishedTrial,
    WishedVersion,
    decode,
    encode,
)

VersionOf = Callable[[str, int], WishedVersion]
"""A release by model and version, with the ways to get it. Raises KeyError for one that is not there."""


def desired(
    device: str, wishes: Mapping[str, Wish], settings: Mapping[str, Setting], version_of: VersionOf
) -> DesiredState:
    """The document's contents; its generation is 1, until it is known that it is another one than before."""
    models = []
    for name in sorted(wishes):
        wish = wishes[name]
        trial = wish.trial
        if not (wish.version or trial or wish.prefetch):
            continue
        models.append(
            WishedModel(
                name=name,
                wanted=version_of(name, wish.version) if wish.version else None,
                trial=WishedTrial(
                    version=version_of(name, trial.version),
                    mode=trial.mode,
                    percent=trial.percent,
                    header=trial.header,
                )
                if trial
                else None,
                prefetch=tuple(version_of(name, each) for each in wish.prefetch),
                order=wish.order,
                interface_change=wish.interface_change,
                downgrade=wish.downgrade,
            )
        )
    return DesiredState(
        device=device, generation=1, models=tuple(models), settings=dict(sorted(settings.items()))
    )


Parts = tuple[int, bytes, bytes]
"""Two documents that are alike in these ask for the same; two that are not may do so as well."""


class _Asked(Struct, frozen=True, array_like=True):
    """The beginning of a document."""

    format: int
    device: str
    generation: int
    models: Raw
    settings: Raw

    @property
    def parts(self) -> Parts:
        """All but whom it is for, and which it is."""
        return self.format, bytes(self.models), bytes(self.settings)


def asked(document: bytes) -> Parts | None:
    """What the document asks for, as its own bytes say it: quicker by far than to decode it. None where they are of
    another form."""
    try:
        return _ASKED.decode(document).parts
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


_ASKED: Final = msgspec.msgpack.Decoder(_Asked)


class Question:
    """A state, to be compared with what many documents say."""

    def __init__(self, state: DesiredState) -> None:
        self._state = state
        self._asked = asked(encode(state))
        assert self._asked is not None

    def is_in(self, document: bytes) -> bool:
        """Whether the document asks for the same. Raises DocumentInvalid."""
        return bool(document) and (asked(document) == self._asked or same(self._state, decode(document)))


def same(one: DesiredState, other: DesiredState) -> bool:
    """Whether both ask for the same."""
    return (one.models, dict(one.settings)) == (other.models, dict(other.settings))
