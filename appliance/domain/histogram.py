"""Latency histograms with fixed bucket bounds: an observation costs a bisect and an increment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

BOUNDS_US = (
    5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1_000, 1_500, 2_000, 3_000, 4_000, 5_000, 7_500, 10_000,
    15_000, 20_000, 30_000, 50_000, 75_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
)  # fmt: skip
BOUNDS_NS = tuple(bound * 1_000 for bound in BOUNDS_US)


class Histogram:
    """Counts per bucket (one more than BOUNDS_NS: the last is above all bounds) and the sum in nanoseconds."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    def merge(self, counts: Sequence[int], sum_ns: int) -> None:
        """Count durations that were counted elsewhere; buckets behind the last given are empty."""
        mine = self.counts
        for bucket, count in enumerate(counts):
            if count:
                mine[bucket] += count
        self.sum_ns += sum_ns

    def frozen(self) -> HistogramValue:
        """A value to show."""
        return HistogramValue(counts=tuple(self.counts), sum_ns=self.sum_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramValue:
    """A histogram at one moment; ``counts`` per bucket, not cumulative."""

    counts: tuple[int, ...]
    sum_ns: int

    @property
    def count(self) -> int:
        """How many durations were observed."""
        return sum(self.counts)

    def quantile_ns(self, fraction: float) -> int:
        """Upper bound of the bucket that holds the quantile, interpolated linearly inside it; 0 when empty."""
        rank = fraction * self.count
        seen = 0
        for index, count in enumerate(self.counts):
            if count and seen + count >= rank:
                low = BOUNDS_NS[index - 1] if index else 0
                high = BOUNDS_NS[index] if index < len(BOUNDS_NS) else low
                return round(low + (high - low) * (rank - seen) / count)
            seen += count
        return 0
