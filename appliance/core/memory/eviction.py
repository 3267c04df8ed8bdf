"""Which models are put out, or lose their weights, so that enough memory is free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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
