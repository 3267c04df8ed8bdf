"""What to bring and what to put out next.

What is above the budget is freed first, whatever holds it. Then loads start in the order in which requests wait for
them, as far as places and memory go. When none waits, refused requests that may come back are thought of, and after
them what is pinned. What is put out, or loses its weights, is what is worth least per byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from appliance.core.memory.actions import Action, CheckUse, EvictWeights, Load, PageIn, Unload, WakeAt
from appliance.core.memory.books import Books
from appliance.core.memory.footprint import Residency
from appliance.core.memory.model import ARRIVING, Model, Move
from appliance.core.memory.popularity import Worth


def advance(books: Books, now_ns: int, idle: frozenset[int] | None) -> list[Action]:
    """What is to be done now. ``idle`` are models that were found to have nothing in flight; None: that was not looked
    at, so that before anything is put out CheckUse asks for it."""
    return _Advance(books, now_ns, idle).run()


class _Advance:
    """One look at the books."""

    def __init__(self, books: Books, now_ns: int, idle: frozenset[int] | None) -> None:
        self._books = books
        self._now_ns = now_ns
        self._idle = idle
        self._unchecked: dict[int, None] = {}
        self._actions: list[Action] = []

    def run(self) -> list[Action]:
        """Decide."""
        self._shrink()
        places = max(self._books.policy.loads_at_once - len(self._books.table.arriving), 0)
        self._load(places)
        if not self._unchecked:
            self._go_on(places)
        if self._unchecked:
            self._actions.append(CheckUse(self._books.budget.device, tuple(self._unchecked)))
        return self._actions

    def _go_on(self, places: int) -> None:
        table, queue = self._books.table, self._books.waiting.queue
        if queue and places > 0:
            self._actions.append(WakeAt(self._now_ns + self._books.policy.retry_ns))
        elif not queue and not table.arriving and not table.leaving_bytes:
            self._bring_retained()

    @property
    def _above(self) -> int:
        """How much more than the budget is taken and not leaving."""
        table = self._books.table
        return table.used_bytes - table.leaving_bytes - self._books.left_bytes

    def _shrink(self) -> None:
        if self._above > 0:
            self._make_room(self._above, forced=True)
            if self._above > 0 and not self._unchecked:
                self._wake_for(1, forced=True)

    def _load(self, places: int) -> None:
        table = self._books.table
        reserved = 0
        for model in self._next_loads()[:places]:
            reserved += model.bytes_missing
            free = self._books.left_bytes - table.used_bytes
            if reserved > free:
                self._make_room(reserved - free - table.leaving_bytes, wanted=model)
            elif model.move is Move.NONE:
                reserved -= model.bytes_missing
                self._start(model)

    def _next_loads(self) -> list[Model]:
        """Those that requests wait for; when there is none, those that refused ones may come back for."""
        table = self._books.table
        waited = [table.models[model] for model in self._books.waiting.queue]
        if waited:
            return waited
        return [
            model
            for model in table
            if model.wished_until_ns > self._now_ns
            and not model.resident
            and model.move not in ARRIVING
            and model.not_before_ns <= self._now_ns
        ]

    def _start(self, model: Model) -> None:
        background = not model.waiting and model.wished_until_ns <= self._now_ns
        by_page_in = self._books.start(model, self._now_ns)
        self._actions.append((PageIn if by_page_in else Load)(model.model, background))

    def _bring_retained(self) -> None:
        """Load what is pinned or held, one after the other. Nothing else is fetched ahead: in the simulation the gaps
        that evictions leave would be used again and again for what is not asked for."""
        table = self._books.table
        absent = [each for each in table if each.stays and not each.resident]
        model = next((each for each in absent if each.not_before_ns <= self._now_ns), None)
        if model is None:
            self._actions.extend(WakeAt(each.not_before_ns) for each in absent)
            return
        missing = model.bytes_missing + table.used_bytes - self._books.left_bytes
        if missing <= 0:
            self._start(model)
            return
        self._make_room(missing)
        if not self._unchecked and not table.leaving_bytes:
            self._wake_for(missing)

    def _make_room(self, missing: int, *, forced: bool = False, wanted: Model | None = None) -> None:
        """Begin to put out what is worth least, if that will be enough. ``forced``: whether or not it will, and
        without regard to holds. ``wanted`` is for whom."""
        if missing <= 0:
            return
        models, protected = self._books.table.models, self._books.reservations.protected
        looked_at = (
            models.values() if self._idle is None else [models[each] for each in self._idle if each in models]
        )
        may_leave = [
            each
            for each in looked_at
            if (forced or each.available_ns <= self._now_ns)
            and self._books.evictable(each, self._now_ns)
            and each.model not in protected
        ]
        if self._is_stuck(wanted, missing):
            may_leave += [
                each
                for each in looked_at
                if each is not wanted and each.waits_without_weights and each.model not in protected
            ]
        if not forced and sum(each.bytes_now for each in may_leave) < missing:
            return
        if self._idle is None:
            self._unchecked |= dict.fromkeys(each.model for each in may_leave)
            return
        self._put_out(may_leave, missing)

    def _is_stuck(self, wanted: Model | None, missing: int) -> bool:
        """Whether ``wanted`` is the first that requests wait for, and time alone brings no room for it: others wait as
        well, and what is left of them without their weights is in the way."""
        if wanted is None or wanted.model != next(iter(self._books.waiting.queue), None):
            return False
        return sum(each.bytes_now for each in self._books.table if each.may_leave) < missing

    def _put_out(self, may_leave: list[Model], missing: int) -> None:
        table = self._books.table
        steps = choose([step for each in may_leave for step in steps_out(self._books, each)], missing)
        whole = {step.model for step in steps if not step.weights}
        for number in dict.fromkeys(step.model for step in steps):
            model = table.models[number]
            model.moving_since_ns = self._now_ns
            table.become(model, model.residency, Move.UNLOADING if number in whole else Move.EVICTING)
            self._actions.append(Unload(number) if number in whole else EvictWeights(number))

    def _wake_for(self, missing: int, *, forced: bool = False) -> None:
        """Look again when so much may be had, as far as time alone says; never, if all that may leave is not enough."""
        waited = bool(self._books.waiting.queue)
        spare = [
            (max(0 if forced else each.available_ns, 0 if waited else each.wished_until_ns), each.bytes_now)
            for each in self._books.table
            if each.may_leave
        ]
        for at_ns, size_bytes in sorted(spare):
            missing -= size_bytes
            if missing <= 0:
                self._actions.append(WakeAt(max(at_ns, self._now_ns + self._books.policy.retry_ns)))
                return


class Step(NamedTuple):
    """One way to free memory: ``model`` loses ``bytes``. ``weights``: only those go."""

    worth: Worth
    model: int
    bytes: int
    weights: bool


def choose(steps: Iterable[Step], missing_bytes: int) -> list[Step]:
    """Steps that free ``missing_bytes``, or all when they are not enough: those that are worth least per byte, as far
    as they are needed. (The greedy rule for a knapsack, Dantzig 1957; a large step that suffices makes the smaller,
    dearer ones before it needless.)"""
    chosen: list[Step] = []
    freed = 0
    for step in sorted(steps):
        if freed >= missing_bytes:
            break
        chosen.append(step)
        freed += step.bytes
    for step in sorted(chosen, reverse=True):
        if freed - step.bytes >= missing_bytes:
            chosen.remove(step)
            freed -= step.bytes
    return chosen


def steps_out(books: Books, model: Model) -> Iterator[Step]:
    """The steps down of a model that is in memory, each with what it gives back and its eviction cost. To be unloaded
    at once is both steps of a model whose weights could be evicted."""
    timing, popularity = books.timing, books.popularity
    load_ns = timing.mean_ns(model, by_page_in=False)
    evictable_bytes = model.footprint.evictable_bytes
    page_in_ns = min(timing.mean_ns(model, by_page_in=True), load_ns) if evictable_bytes else 0
    first: Worth | None = None
    if evictable_bytes and model.residency is Residency.RESIDENT:
        first = popularity.worth(model.model, page_in_ns, evictable_bytes, model.arrival)
        yield Step(first, model.model, evictable_bytes, True)
    rest = model.footprint.bytes - evictable_bytes
    if rest:
        worth = popularity.worth(model.model, load_ns - page_in_ns, rest, model.arrival)
        yield Step(max(worth, first) if first else worth, model.model, rest, False)
