"""A version's engine beside the session that it has without: which of the two is slower. Pure.

An engine is there for speed alone, and what it would replace is the same version: none that is slower is worth having.
Both run in turns, the one and the other, in one process; what else has the machine or the device meanwhile slows either
of a pair. So it is the pairs that are compared: their middle stays where it is while up to half of them are spoilt,
where medians of each by themselves move as soon as the machine has a slow and a fast half.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

FACTOR: Final = 1.08
"""An engine may take so many times as long, and counts as equal: the middle of some dozens of pairs moves by up to a
twentieth on a busy box, and one that is refused is not built again."""


SIZES_MAX: Final = 8
"""Batch sizes at which they are compared."""
APART_MAX: Final = 10.0
"""How many times the middle of the pairs may be what the two medians make, or the other way round. A machine that is
slow and fast by turns keeps the one and moves the others, by as much as it gets slower."""


class SideBySide(NamedTuple):
    """What runs of ``rows`` rows take: ``engine_ns`` and ``session_ns`` are medians of ``pairs`` runs of each, and
    ``ratio`` is the median of how many times as long the engine takes in a pair."""

    rows: int
    pairs: int
    engine_ns: int
    session_ns: int
    ratio: float

    @property
    def possible(self) -> bool:
        """Whether there can have been such runs: a worker may say anything."""
        if min(self.rows, self.pairs, self.engine_ns, self.session_ns) < 1:
            return False
        return 1 / APART_MAX <= self.ratio * self.session_ns / self.engine_ns <= APART_MAX


def of_pairs(rows: int, pairs: Sequence[tuple[int, int]]) -> SideBySide:
    """What ``pairs`` of runs of ``rows`` rows show: nanoseconds of the engine and of the session, at least one pair."""
    engine_ns, session_ns = (statistics.median_low(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(engine / session for engine, session in pairs)
    return SideBySide(rows, len(pairs), engine_ns, session_ns, ratio)


def slowest(compared: Iterable[SideBySide]) -> SideBySide | None:
    """The batch size at which the engine is slower than the session, the worst of several; None: at no size. One that
    is faster with large batches alone would make every single request later."""
    slower = [each for each in compared if each.ratio > FACTOR]
    return max(slower, key=lambda each: each.ratio, default=None)
