"""Requests for models that are not in memory: which of them wait, by a forecast of when their model is there.

A request waits if by the forecast, with upper quantiles of what was measured, it meets its deadline, and is refused at
once if not; the model is then loaded all the same when no request waits for another, because the client was told when
to come back.

The forecast plays the queue of loads ahead: they start in its order, none before the one ahead of it, each when a place
for loading is free and enough memory is. Memory becomes free when those that may be put out may be, and each model that
was loaded meanwhile may be put out after its hold. That is the list scheduling of ``admission`` with memory as a second
resource, and without backfilling, so that nothing delays what was promised before. With exact costs, and nothing in use
that is in the way, nothing arrives later than was said.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

from appliance.core.memory.actions import Miss, Refuse, Serve, Wait
from appliance.core.memory.books import Books
from appliance.core.memory.events import Asked
from appliance.core.memory.model import ARRIVING, LEAVING, Model, Move
from appliance.core.memory.timing import WISH_NS


def answer(books: Books, event: Asked, now_ns: int) -> Serve | Wait | Refuse:
    """What becomes of a request."""
    model = books.table.models[event.model]
    model.used_ns = now_ns
    books.popularity.use(event.model, 1, now_ns)
    if model.resident:
        return Serve(event.model, event.request)
    ready_ns = _ready_ns(books, model, now_ns)
    reason = _objection(books, model, event, now_ns, ready_ns)
    wait_ns = max(ready_ns - now_ns, 0) if ready_ns else 0
    if reason:
        return Refuse(event.model, event.request, reason, _retry_ns(books, model, reason, now_ns, wait_ns))
    model.wished_until_ns = 0
    books.waiting.enter(model, event.request, event.bytes)
    return Wait(event.model, event.request, wait_ns)


def _retry_ns(books: Books, model: Model, reason: Miss, now_ns: int, wait_ns: int) -> int:
    if reason is Miss.FAILING:
        return max(wait_ns, model.not_before_ns - now_ns)
    if reason is Miss.NEVER:
        return -1
    retry_ns = books.policy.backoff_ns if reason is Miss.NO_ROOM else wait_ns
    if not model.waiting and model.move not in ARRIVING:
        model.wished_until_ns = now_ns + retry_ns + WISH_NS
    return retry_ns


def _objection(books: Books, model: Model, event: Asked, now_ns: int, ready_ns: int | None) -> Miss | None:
    waiting, policy = books.waiting, books.policy
    if model.not_before_ns > now_ns:
        return Miss.FAILING
    if ready_ns is None:
        others = sum(
            each.footprint.bytes for each in books.table if each.retention.pinned and each is not model
        )
        return Miss.NO_ROOM if model.footprint.bytes + others <= books.budget.bytes else Miss.NEVER
    if ready_ns > event.deadline_ns:
        return Miss.DEADLINE
    full = waiting.requests >= policy.waiting_requests_max
    if full or waiting.size_bytes + event.bytes > policy.waiting_bytes_max:
        return Miss.FULL
    return None


def _ready_ns(books: Books, model: Model, now_ns: int) -> int | None:
    """When it should be RESIDENT, if its load is queued now; None when there is no room that could be made."""
    timing, table = books.timing, books.table
    if model.move in ARRIVING:
        return max(now_ns, model.moving_since_ns + timing.upper_ns(model))
    queue = [table.models[each] for each in takewhile(model.model.__ne__, books.waiting.queue)]
    queue.append(model)
    free = books.left_bytes - table.used_bytes
    freed: list[tuple[int, int]] = []
    if free < sum(each.bytes_missing for each in queue):
        freed = list(_freed(books, model, now_ns))
    ends = [each.moving_since_ns + timing.upper_ns(each) for each in table.arriving.values()]
    places = ends + [now_ns] * (books.policy.loads_at_once - len(ends))
    loads = [_queued(books, each) for each in queue]
    return arrival_ns(loads, places, free, freed, timing.leave_ns, now_ns)


def _queued(books: Books, model: Model) -> Queued:
    cost_ns = books.timing.upper_ns(model)
    return Queued(model.bytes_missing, model.footprint.bytes, cost_ns, books.timing.hold_ns(cost_ns))


def _freed(books: Books, asked: Model, now_ns: int) -> Iterator[tuple[int, int]]:
    """When how much memory can be had. What is in use counts as idle: it is looked at again and again."""
    timing = books.timing
    for model in books.table:
        if model.move is Move.NONE:
            if model is not asked and books.evictable(model, now_ns):
                yield max(now_ns, model.available_ns), model.bytes_now
        elif model.move in LEAVING:
            yield now_ns, model.bytes_leaving
        else:
            cost_ns = timing.upper_ns(model)
            end_ns = max(now_ns, model.moving_since_ns + cost_ns)
            yield timing.held_until_ns(model, end_ns, cost_ns), model.footprint.bytes


class Queued(NamedTuple):
    """A load to come: memory it needs beside what it has, all of its memory, its time, and how long it then stays."""

    missing_bytes: int
    bytes: int
    cost_ns: int
    hold_ns: int


def arrival_ns(
    queue: Iterable[Queued],
    places_ns: list[int],
    free_bytes: int,
    freed: list[tuple[int, int]],
    leave_ns: int,
    now_ns: int,
) -> int | None:
    """When the last of ``queue`` is there; None when the memory is never enough.

    ``places_ns`` is when each place for loading is free, ``freed`` are (time, bytes) of memory that can be had, given
    back in ``leave_ns``; both are used up.
    """
    heapq.heapify(places_ns)
    heapq.heapify(freed)
    start_ns = end_ns = now_ns
    for load in queue:
        start_ns = max(start_ns, heapq.heappop(places_ns))
        while free_bytes < load.missing_bytes:
            if not freed:
                return None
            at_ns, size_bytes = heapq.heappop(freed)
            start_ns = max(start_ns, at_ns + leave_ns)
            free_bytes += size_bytes
        free_bytes -= load.missing_bytes
        end_ns = start_ns + load.cost_ns
        heapq.heappush(places_ns, end_ns)
        heapq.heappush(freed, (end_ns + load.hold_ns, load.bytes))
    return end_ns
