"""Models of one device in and out of memory: a pure state machine.

Rules it keeps: what is charged never passes the budget but by what operators, measurements or pins take of it; a pinned
model is never put out, nor one with requests in flight or waiting, nor one that has just come (it stays as long as
loading it took, so that the box does not only load) or was used within its keep-warm time. What is left of one
without its weights goes though requests wait for it, where nothing else makes room for the first that is waited for.
What is worth least per byte (``popularity``) goes first; evicting a model's weights is one step, unloading it another
one with a price and bytes of its own, so that weights go before processes.

It does not know what a load is, and trusts its driver to answer every Load, PageIn, EvictWeights and Unload by
one Done, Declined or Failed.
"""

from __future__ import annotations

from typing import Final

from appliance.core.memory import events
from appliance.core.memory.actions import (
    Action,
    HoldReservation,
    MeasureFree,
    Miss,
    Refuse,
    RefuseReservation,
    Release,
    StartCold,
    WakeAt,
)
from appliance.core.memory.advance import advance
from appliance.core.memory.books import Books
from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.memory.footprint import LoadCost, Residency
from appliance.core.memory.misses import answer
from appliance.core.memory.model import ARRIVING, Model, Move
from appliance.core.memory.reservations import Taken

FAILURES_MAX: Final = 2
"""After so many failed loads in a row no request waits for another one."""


class DeviceMemory:
    """All models of one budget, and the versions on their way to be some. Owned by the accountant."""

    def __init__(self, policy: ResidencyPolicy, budget: Budget) -> None:
        self._policy = policy
        self._books = Books(policy, budget)
        self._pending: list[events.ReservationWanted] = []
        """What waits to hear how much memory the machine has left."""

    # --- what is told

    def tell(self, event: events.Told) -> None:
        """Take in what has changed; nothing is decided."""
        books = self._books
        match event:
            case events.Added():
                self._added(event)
            case events.Left():
                self._removed(event.model)
                books.reservations.leave(event)
            case events.Gone():
                self._removed(event.model)
                books.reservations.forget(event.model)
            case events.Retained():
                model = books.table.models[event.model]
                books.table.retain(model, pinned=event.pinned, held=event.held)
                model.retention.keep_warm_ns = event.keep_warm_ns
            case events.BudgetSet():
                books.reservations.budget = event.budget
            case events.Measured():
                model = books.table.models[event.model]
                books.table.become(model, model.residency, model.move, event.footprint)
                books.describe(model)
        books.review()

    def _added(self, event: events.Added) -> None:
        books = self._books
        books.reservations.forget(event.model)
        load, page_in = LoadCost(event.load_ns), LoadCost(event.page_in_ns)
        model = Model(event.model, event.footprint, load, page_in)
        books.table.add(model, event.residency)
        books.describe(model)

    def _removed(self, number: int) -> None:
        books = self._books
        model = books.table.models.get(number)
        if model is not None:
            books.waiting.clear(model)
            books.table.remove(model)
            books.popularity.forget(number)

    # --- what happens to models that serve

    def take(self, event: events.OfModel, now_ns: int) -> list[Action]:
        """Take in what happened to a model; what it needs at once. What else is to be done ``advance`` says."""
        books = self._books
        model = books.table.models[event.model]
        match event:
            case events.Asked():
                return [answer(books, event, now_ns)]
            case events.Used():
                model.used_ns = now_ns
                books.popularity.use(event.model, event.requests, now_ns)
            case events.Withdrawn():
                books.waiting.leave(model, event.request)
            case events.Done():
                return self._done(model, event, now_ns)
            case events.Declined():
                books.table.become(model, model.residency, Move.NONE)
                return self._release(model) if model.resident else []
            case events.Failed():
                return self._failed(model, now_ns)
        return []

    def _done(self, model: Model, event: events.Done, now_ns: int) -> list[Action]:
        books = self._books
        match model.move:
            case Move.LOADING | Move.PAGING_IN:
                if event.ns:
                    by_page_in = model.move is Move.PAGING_IN
                    books.timing.arrived(model, event.ns, event.bytes, by_page_in=by_page_in)
                    books.describe(model)
                return self._arrived(model, now_ns)
            case Move.EVICTING:
                if event.ns:
                    books.timing.evicted(event.ns)
                books.table.become(model, Residency.WEIGHTS_EVICTED, Move.NONE)
            case Move.UNLOADING:
                books.table.become(model, Residency.COLD, Move.NONE)
            case Move.NONE:
                raise AssertionError(f"nothing was to be done with model {event.model}")
        return []

    def _arrived(self, model: Model, now_ns: int) -> list[Action]:
        books = self._books
        books.table.arrive(model)
        took_ns = now_ns - model.moving_since_ns
        model.retention.until_ns = books.timing.held_until_ns(model, now_ns, took_ns)
        model.wished_until_ns = model.failures = model.not_before_ns = 0
        books.table.become(model, Residency.RESIDENT, Move.NONE)
        return self._release(model)

    def _release(self, model: Model) -> list[Action]:
        waited = self._books.waiting.clear(model)
        return [Release(model.model, waited)] if waited else []

    def _failed(self, model: Model, now_ns: int) -> list[Action]:
        books, refused = self._books, list[Action]()
        arriving = model.move in ARRIVING
        books.table.become(model, Residency.COLD, Move.NONE)
        if arriving:
            model.failures += 1
            if model.failures >= FAILURES_MAX:
                doubled_ns = self._policy.backoff_ns << min(model.failures - FAILURES_MAX, 30)
                pause_ns = min(doubled_ns, self._policy.backoff_ns_max)
                model.not_before_ns = now_ns + pause_ns
                model.wished_until_ns = 0
                waited = books.waiting.clear(model)
                refused += [Refuse(model.model, each, Miss.FAILING, pause_ns) for each in waited]
        books.waiting.again(model)
        return refused

    # --- what is asked for versions on their way

    def consider(self, event: events.OfCandidate, now_ns: int) -> list[Action]:
        """What becomes of a version that wants memory."""
        match event:
            case events.ReservationWanted():
                return self._want(event, None, now_ns)
            case events.FreeMeasured():
                pending, self._pending = self._pending, []
                return [action for each in pending for action in self._want(each, event.bytes, now_ns)]
            case events.ColdStartOffered():
                return [StartCold(event.model)] if self._starts_cold(event) else []

    def _want(self, event: events.ReservationWanted, free_bytes: int | None, now_ns: int) -> list[Action]:
        books = self._books
        replaced = books.table.models.get(event.replaces) if event.replaces is not None else None
        taken = Taken(
            books.table.used_bytes,
            books.table.retained_beside(event.replaces),
            replaced.footprint.bytes if replaced is not None else 0,
        )
        reply = books.reservations.want(event, taken, free_bytes, now_ns)
        if reply is None:
            self._pending.append(event)
            return [MeasureFree(event.device)]
        books.review()
        again_ns = now_ns + self._policy.retry_ns
        if isinstance(reply, RefuseReservation):
            return [reply, WakeAt(max(reply.again_ns, again_ns))]
        return [reply, WakeAt(again_ns)] if isinstance(reply, HoldReservation) else [reply]

    def _starts_cold(self, event: events.ColdStartOffered) -> bool:
        """Whether there is no room now, not even for the version without its weights."""
        books, footprint = self._books, event.footprint
        if books.reservations.reserved(event.model):  # room is being made for it
            return False
        least = footprint.at(Residency.WEIGHTS_EVICTED)
        return books.table.used_bytes + least > books.left_bytes and footprint.bytes <= books.budget.bytes

    # --- what follows

    def advance(self, now_ns: int, idle: frozenset[int] | None = None) -> list[Action]:
        """What to bring and what to put out; ``idle`` are models that were found to have nothing in flight."""
        return advance(self._books, now_ns, idle)

    def knows(self, number: int) -> bool:
        """Whether a version takes memory here, or asked for some."""
        return number in self._books.table.models or self._books.reservations.knows(number)

    @property
    def books(self) -> Books:
        """To be looked at only."""
        return self._books
