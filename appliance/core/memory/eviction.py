"""Which models are put out, or lose their weights, so that enough memory is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from appliance.core.memory.books import Books
from appliance.core.memory.footprint import Residency
from appliance.core.memory.model import Model
from appliance.core.memory.popularity import Worth


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
