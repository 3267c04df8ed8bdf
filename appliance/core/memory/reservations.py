"""Memory that is reserved for versions on their way to serving, and what versions that serve no more still take.

A rollout needs the old and the new version in memory at the same time, so others are put out for a version on its way -
but only where that makes enough room. What never fits beside pins and the version that it replaces takes no other's
place: one at a time is tried above the budget (overcommit), if the machine has the memory; else it waits, and says why.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.core.memory.actions import GrantReservation, HoldReservation, RefuseReservation, Reply
from appliance.core.memory.budget import (
    Budget,
    Limit,
    NeverFits,
    WaitsBesidePins,
    WaitsForIdle,
    WaitsForMachine,
    WaitsForMemory,
    WaitsForOvercommit,
)
from appliance.core.memory.events import Left, ReservationWanted

SECOND: Final = 1_000_000_000
EVICTING_MAX: Final = 2
"""Versions for which others are put out so that they can prove themselves, at a time."""
SPARE_BYTES: Final = 128 << 20
"""What the machine must have left when a version is tried above the budget."""
PATIENCE_NS: Final = 3 * SECOND
"""So long memory is kept for a version while no other can be put out for it, because all are in use."""
PAUSE_NS: Final = 10 * SECOND
"""Before it is tried again for such a version."""
LOOK_NS: Final = SECOND
"""How often it is looked whether what does not fit would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Memory for one version, since ``since_ns``, beside the one that it ``replaces``, which stays meanwhile.
    ``overcommit``: it lies above the budget; ``evicts``: others are put out for it."""

    bytes: int
    since_ns: int
    replaces: int | None
    overcommit: bool = False
    evicts: bool = False


class Leaving(NamedTuple):
    """What a version takes that serves no more: to go back to, or with its last requests. ``overcommit``: the one that
    serves takes all there is."""

    bytes: int
    overcommit: bool


class Taken(NamedTuple):
    """What versions that serve take: all of them now, those that stay whatever comes, and the one to be replaced."""

    used_bytes: int
    retained_bytes: int
    replaced_bytes: int


class Reservations:
    """Of one device."""

    __slots__ = ("_leaving", "_reserved", "_unfit", "budget")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._reserved: dict[int, Reservation] = {}
        self._leaving: dict[int, Leaving] = {}
        self._unfit: dict[int, NeverFits] = {}
        """Versions that were refused for good."""

    # --- what is asked

    @property
    def left_bytes(self) -> int:
        """What there is for versions that serve."""
        return max(self.budget.bytes - self._sum(overcommit=False), 0)

    @property
    def other_bytes(self) -> int:
        """What is taken, or will be, by versions that do not serve: on their way, or still there."""
        return self._sum(overcommit=False) + self._sum(overcommit=True)

    def bytes_beside(self, model: int) -> int:
        """What of that is for others than ``model``."""
        known = (self._reserved, self._leaving)
        return sum(each.bytes for some in known for number, each in some.items() if number != model)

    def _sum(self, *, overcommit: bool) -> int:
        return sum(each.bytes for each in self._all() if each.overcommit is overcommit)

    def _all(self) -> list[Reservation | Leaving]:
        return [*self._reserved.values(), *self._leaving.values()]

    def limit(self, kept_bytes: int) -> Limit:
        """The budget, of which so much cannot be had."""
        return Limit(bytes=self.budget.bytes, configured=self.budget.configured, kept_bytes=kept_bytes)

    @property
    def protected(self) -> set[int | None]:
        """Models that stay in memory because a version that is to replace them is on its way."""
        return {each.replaces for each in self._reserved.values()}

    def reserved(self, model: int) -> bool:
        """Whether memory is reserved for ``model`` within the budget."""
        known = self._reserved.get(model)
        return known is not None and not known.overcommit

    @property
    def leaving(self) -> Set[int]:
        """Versions that serve no more and still take memory."""
        return self._leaving.keys()

    @property
    def unfit(self) -> dict[int, NeverFits]:
        """Versions that can never fit, as long as nothing else is configured."""
        return dict(self._unfit)

    def outside(self) -> set[int]:
        """All versions that are known here: none of them serves."""
        return {*self._reserved, *self._leaving, *self._unfit}

    def knows(self, model: int) -> bool:
        """Whether a version is among them."""
        return model in self._reserved or model in self._leaving or model in self._unfit

    # --- what is decided

    def want(
        self, event: ReservationWanted, taken: Taken, free_bytes: int | None, now_ns: int
    ) -> Reply | None:
        """Reserve memory for a version if that can be had; where memory is reserved, it is there when what is used is
        within ``left_bytes``. None: that depends on ``free_bytes``, what the machine has left."""
        known = self._reserved.get(event.model)
        if known is not None:
            return self._wait(event.model, known, taken, now_ns)
        self._unfit.pop(event.model, None)
        need = event.bytes + taken.replaced_bytes + taken.retained_bytes
        if need > self.budget.bytes:
            return self._above(event, taken, free_bytes, now_ns)
        fits = taken.used_bytes + event.bytes <= self.left_bytes
        evicting = sum(each.evicts for each in self._reserved.values())
        if not fits and (evicting >= EVICTING_MAX or need > self.left_bytes):
            return RefuseReservation(event.model, None, 0)
        self._reserved[event.model] = Reservation(
            bytes=event.bytes, since_ns=now_ns, replaces=event.replaces, evicts=not fits
        )
        return GrantReservation(event.model) if fits else HoldReservation(event.model)

    def _wait(self, model: int, known: Reservation, taken: Taken, now_ns: int) -> Reply:
        if known.overcommit or taken.used_bytes <= self.left_bytes:
            return GrantReservation(model)
        if now_ns - known.since_ns < PATIENCE_NS:
            return HoldReservation(model)
        del self._reserved[model]
        return RefuseReservation(model, WaitsForIdle(need_bytes=known.bytes), now_ns + PAUSE_NS)

    def _above(
        self, event: ReservationWanted, taken: Taken, free_bytes: int | None, now_ns: int
    ) -> Reply | None:
        """Decide about a version that does not fit, whatever leaves."""
        reason: WaitsForMemory
        need = event.bytes
        limit = self.limit(taken.retained_bytes)
        if event.replaces is None and need > self.budget.bytes:
            reason = self._unfit[event.model] = NeverFits(need_bytes=need, limit=self.limit(0))
        elif event.replaces is None:
            reason = WaitsBesidePins(need_bytes=need, limit=limit)
        elif any(each.overcommit for each in self._all()):
            reason = WaitsForOvercommit()
        elif free_bytes is None:
            return None
        elif free_bytes < need + SPARE_BYTES:
            beside = taken.replaced_bytes
            reason = WaitsForMachine(need_bytes=need, beside_bytes=beside, left_bytes=free_bytes, limit=limit)
        else:
            self._reserved[event.model] = Reservation(
                bytes=event.bytes, since_ns=now_ns, replaces=event.replaces, overcommit=True
            )
            return GrantReservation(event.model)
        return RefuseReservation(event.model, reason, now_ns + LOOK_NS)

    # --- what is told

    def leave(self, event: Left) -> None:
        """A version serves no more, or never will. No more of it counts than the one in its place leaves of the budget:
        that may have turned out larger than was guessed, and would be put out itself, for a version that gets no
        requests."""
        reserved = self._reserved.pop(event.model, None)
        self._unfit.pop(event.model, None)
        if event.model in self._leaving:
            return
        if reserved is not None:
            left = Leaving(min(event.bytes, reserved.bytes), reserved.overcommit)
        elif self._beyond(event):
            left = Leaving(event.bytes, True)
        else:
            left = Leaving(min(event.bytes, max(self.budget.bytes - event.heir_bytes, 0)), False)
        self._leaving[event.model] = left

    def _beyond(self, event: Left) -> bool:
        """Whether the heir took over above the budget, or is gone back to from there."""
        if event.heir is None:
            return False
        heir, left = self._reserved.get(event.heir), self._leaving.get(event.heir)
        took_over = heir is not None and heir.overcommit and heir.replaces == event.model
        return took_over or (left is not None and left.overcommit)

    def forget(self, model: int) -> None:
        """A version serves, or takes no memory any more."""
        for known in (self._reserved, self._leaving, self._unfit):
            known.pop(model, None)

    def check_integrity(self) -> None:
        """Raise AssertionError where reservations contradict themselves."""
        reserved, leaving = self._reserved, self._leaving
        assert not reserved.keys() & leaving.keys(), "a version leaves with what is reserved for it"
        assert not self._unfit.keys() & (reserved.keys() | leaving.keys()), "memory for what never fits"
        evicting = sum(each.evicts for each in reserved.values())
        assert evicting <= EVICTING_MAX, "others are put out for too many"
        assert all(each.bytes >= 0 for each in self._all()), "less than nothing is taken"
        above = sum(each.overcommit for each in reserved.values())
        assert above <= 1, "several versions are tried above the budget"
