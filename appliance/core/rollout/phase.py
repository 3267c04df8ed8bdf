"""A version's life, as one table: which phase may follow which.

    QUEUED -> COUNTING -> COUNTED -> LOADING -> PARKED -> SHADOW -> CANARY -> WATCHED
           -> LIVE -> STANDBY -> DRAINING -> GONE

is the longest way; every step of it may be left out that has nothing to show. Whatever is not GONE may fail, and
whatever fails, or is not wanted any more, drains. How much of a version is in memory is no phase of its life.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from appliance.domain.model import VersionState


class Phase(Enum):
    """How far a version has come."""

    QUEUED = "queued"
    """It waits for its turn to load, or for memory."""
    COUNTING = "counting"
    """Its attempt is being counted on the disk."""
    COUNTED = "counted"
    """It loads as soon as the others do that were chosen with it."""
    LOADING = "loading"
    PARKED = "parked"
    """It is loaded, and waits until its trial can begin."""
    SHADOW = "shadow"
    """It answers copies of requests, for comparison alone."""
    CANARY = "canary"
    """It answers its share of the requests."""
    WATCHED = "watched"
    """It serves, and may still be given up for the one before it."""
    LIVE = "live"
    STANDBY = "standby"
    """It serves no more, and is kept to go back to."""
    DRAINING = "draining"
    """It leaves when its last request has ended."""
    FAILED = "failed"
    """It will not serve."""
    GONE = "gone"


P = Phase
ON_ITS_WAY: Final = frozenset({P.QUEUED, P.COUNTING, P.COUNTED, P.LOADING, P.PARKED, P.SHADOW, P.CANARY})
CHOSEN: Final = frozenset({P.COUNTING, P.COUNTED, P.LOADING})
"""It has one of the places for loading."""
UNLOADED: Final = frozenset({P.QUEUED, P.COUNTING, P.COUNTED, P.LOADING})
"""It cannot take requests yet."""
ON_TRIAL: Final = frozenset({P.SHADOW, P.CANARY})
SERVING: Final = frozenset({P.WATCHED, P.LIVE})
LEAVING: Final = frozenset({P.STANDBY, P.DRAINING, P.GONE})

ENDS: Final = frozenset({P.FAILED, P.DRAINING})
TRIED: Final = frozenset({P.SHADOW, P.CANARY, P.WATCHED, P.LIVE})
TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = MappingProxyType(
    {
        P.QUEUED: ENDS | {P.COUNTING, P.COUNTED, P.LIVE},  # LIVE: it is proven, and serves out of memory
        P.COUNTING: ENDS | {P.COUNTED},
        P.COUNTED: ENDS | {P.LOADING},
        P.LOADING: ENDS | TRIED | {P.PARKED},
        P.PARKED: ENDS | TRIED,
        P.SHADOW: ENDS | {P.CANARY, P.WATCHED, P.LIVE},
        P.CANARY: ENDS | {P.SHADOW, P.WATCHED, P.LIVE},  # SHADOW: its wish has changed
        P.WATCHED: ENDS | {P.LIVE},
        P.LIVE: ENDS | {P.STANDBY},
        P.STANDBY: ENDS | {P.WATCHED, P.LIVE},
        P.DRAINING: frozenset({P.FAILED, P.GONE}),
        P.FAILED: frozenset({P.DRAINING, P.GONE}),
        P.GONE: frozenset(),
    }
)

STATES: Final[Mapping[Phase, VersionState]] = MappingProxyType(
    {
        **dict.fromkeys(ON_ITS_WAY, VersionState.LOADING),
        **dict.fromkeys(SERVING, VersionState.READY),
        **dict.fromkeys(LEAVING, VersionState.UNLOADING),
        P.FAILED: VersionState.UNAVAILABLE,
    }
)
"""What clients are told."""


def stage_of(phase: Phase) -> str:
    """How far it has come, as the history, the status and the command line say it."""
    if phase in ON_TRIAL:
        return phase.value
    return {P.WATCHED: "watch", P.LIVE: "proven"}.get(phase, "loading")


def advance(phase: Phase, to: Phase) -> Phase:
    """``to``, if it may follow ``phase``."""
    assert to in TRANSITIONS[phase], f"{to.name} does not follow {phase.name}"
    return to
