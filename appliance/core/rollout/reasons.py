"""Why a version does not serve, as data: what it waits for, or why it was given up. Words are found elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from appliance.core.memory.budget import WaitsForMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForServing:
    """It is only to be tried beside a version that serves, and none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForTrialOf:
    """Another version is on trial beside the one that it is to be tried beside."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForWanted:
    """The version that is wanted is tried first."""


WaitReason = WaitsForMemory | WaitsForServing | WaitsForTrialOf | WaitsForWanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It was refused, quarantined, or did not pass its trial."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """It served, and the version before does again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """It is not tried again, as its records say. ``again`` is what asks for it all the same."""

    why: str
    again: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfTries:
    """It was tried so often and did not prove itself. ``again``: see Rejected."""

    tries: int
    again: str


Refusal = Failed | RolledBack | Rejected | OutOfTries


class Outlook(StrEnum):
    """What a version that serves is to what is wanted in its place."""

    AS_WANTED = "as wanted"
    BY_HAND = "by hand"
    """What was given by hand serves instead of what is installed."""
    SUCCESSOR_WAITS = "successor waits"
    SUCCESSOR_LOADS = "successor loads"
    SUCCESSOR_ON_TRIAL = "successor on trial"
    SUCCESSOR_FAILED = "successor failed"
    FILES_BROKEN = "files broken"

    @property
    def is_coming(self) -> bool:
        """Whether the files that were asked for last are on their way."""
        return self in (Outlook.SUCCESSOR_WAITS, Outlook.SUCCESSOR_LOADS, Outlook.SUCCESSOR_ON_TRIAL)
