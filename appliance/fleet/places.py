"""Where devices are on the way to what is wished, and how many are where: in the words and by the rules that all go by
who tell of a fleet, so that a person's table and what an alarm counts say the same. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

ACTIVE: Final = "active"
CONFLICT: Final = "conflict"
REVOKED: Final = "revoked"
"""States of a device, as its controller keeps them."""
HELD: Final = "held"
FAILURES: Final = frozenset({"failed", "refused"})
"""Phases in which a device reports that it does not go on."""
QUIET_S: Final = 86_400
"""After how long without a word a device is called silent, unless somebody says otherwise."""


class Whereabouts(StrEnum):
    """Where a device is, in the order in which they are counted."""

    THERE = "there"
    NOT_YET = "not yet there"
    HELD = "held"
    CONFLICT = "in conflict"
    REVOKED = "revoked"


class Standing(NamedTuple):
    """A device, as far as it is counted: the ``phases`` are those of its models, by its last report."""

    state: str
    converged: bool
    phases: Collection[str]
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """How many devices are where; how many say that a version failed or was refused; how many were heard from, and not
    for longer than each of the bounds; how many never were; when the one was heard from that was longest ago (0: there
    is none). Of those that were revoked only that they were."""

    places: Mapping[Whereabouts, int]
    failed: int = 0
    silent: Sequence[int] = ()
    never: int = 0
    oldest_ms: int = 0

    @property
    def devices(self) -> int:
        """All of them."""
        return sum(self.places.values())


def done(converged: bool, phases: Collection[str]) -> Whereabouts:
    """Whether a device has done what is wanted. One that did all but what a person holds there is not where it was
    wished: who waits for the wish is told the same."""
    if not converged:
        return Whereabouts.NOT_YET
    return Whereabouts.HELD if HELD in phases else Whereabouts.THERE


def whereabouts(standing: Standing) -> Whereabouts:
    """Where it is."""
    if standing.state == REVOKED:
        return Whereabouts.REVOKED
    return Whereabouts.CONFLICT if standing.state == CONFLICT else done(standing.converged, standing.phases)


def is_silent(standing: Standing, now_ms: float, silent_s: float) -> bool:
    """Whether it should ask and has not for so long, or never has."""
    return standing.state != REVOKED and now_ms - standing.seen_ms > silent_s * 1000


def census(standings: Iterable[Standing], now_ms: float, bounds_s: Sequence[float] = (QUIET_S,)) -> Census:
    """Count them."""
    found = list(standings)
    here = [each for each in found if each.state != REVOKED]
    heard = [each for each in here if each.seen_ms]
    return Census(
        places=Counter(map(whereabouts, found)),
        failed=sum(not FAILURES.isdisjoint(each.phases) for each in here),
        silent=tuple(sum(is_silent(each, now_ms, bound_s) for each in heard) for bound_s in bounds_s),
        never=len(here) - len(heard),
        oldest_ms=min((each.seen_ms for each in heard), default=0),
    )
