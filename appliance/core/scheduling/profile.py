"""How long a batch of one batch key takes: learned, as a fixed part and a part per row.

The estimate is a line, fixed + per_row * rows, fitted by least squares over the recent batches with
exponential forgetting, and lifted by the recent spread around it to an upper quantile. A line is monotone,
answers for sizes never seen, costs two integers to evaluate, and makes a larger batch never dearer per row
than a smaller one, which the promises of ``admission`` rest on. An observation far from the line counts as
one twice (half) as long, so that one outlier moves the estimate by a tenth, while a lasting change is
followed within some tens of batches. What is doubted is believed only until the next batch: when that takes less than
half as long, the whole line comes down with it. Seeds are, as they may have been measured on a busy machine; and what
all requests are refused for, as nothing else would measure it anew. While few batches were seen, one that takes much
longer than they said is doubted, until another of at least its size settles it or it weighs little among the others:
its worker may have stood still.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf

KEEP = 15 / 16
"""What one batch leaves of the weight of those before it."""
COLD_WEIGHT = 0.05
"""Weight of the first batch ever: it pays for first touches and lazy set-up."""
WARM_BATCHES = 4
"""Before so many batches nothing is called an outlier."""
FIRST_BATCHES = 16
"""So many batches outweigh one of them that is doubted, which no other one settles any more."""
ROUNDING = 0.001
"""Nanoseconds of floating-point noise; otherwise estimates are rounded up."""
ALL = (0, inf)
"""In the place of a batch that is doubted: whatever was learned is, and the next batch settles it."""
SIZE_VARIANCE_MIN = 0.2
"""Below this variance of the batch sizes, in rows squared, the slope is kept as it was."""


class ServiceTime:
    """Estimate of one batch key. ``fixed_ns`` and ``per_row_ns`` are zero, and ``known`` false, until something
    is learned; ``measured``: batches of its own ran, it rests on more than on what others took; ``seen``: on how many
    batches it rests, about."""

    __slots__ = (
        "_doubted",
        "_fixed",
        "_lift",
        "_ones",
        "_per_row",
        "_products",
        "_rows",
        "_spread",
        "_squares",
        "_times",
        "fixed_ns",
        "known",
        "measured",
        "per_row_ns",
        "seen",
    )

    def __init__(self, lift: float, seeds: Iterable[tuple[int, int]] = ()) -> None:
        """``lift`` is how many mean deviations above the line the wanted quantile lies; ``seeds`` are (rows,
        ns) pairs."""
        self._lift = lift
        self._ones = 0.0
        self._rows = 0.0
        self._squares = 0.0
        self._times = 0.0
        self._products = 0.0
        self._fixed = 0.0
        self._per_row = 0.0
        self._spread = 0.0
        self.seen = 0
        self._doubted: tuple[int, float] | None = None
        """Rows and ns of the batch that is doubted: one of the first, that took longer than those before by far."""
        self.fixed_ns = 0
        self.per_row_ns = 0
        self.known = self.measured = False
        for rows, ns in seeds:
            self.seen = WARM_BATCHES
            self._add(1.0, rows, ns)
            self._fit()
            self.known, self._doubted = True, ALL
        self._publish()

    def estimate(self, rows: int) -> int:
        """Nanoseconds that a batch of ``rows`` will take, with few exceptions; 0 while nothing is known."""
        return self.fixed_ns + self.per_row_ns * rows

    def observe(self, rows: int, ns: int) -> bool:
        """Learn that a batch of ``rows`` took ``ns``; true when the estimate changed."""
        if self.known and not self._spread and ns == self.fixed_ns + self.per_row_ns * rows:
            self._add(1.0, rows, ns)
            self.seen += 1
            self._doubted = None
            return False
        value = float(ns)
        fitted = self._fixed + self._per_row * rows
        if self._refuted(rows, value) and value < fitted / 2:
            self._shrink(value / fitted)
            fitted = value
        if self.seen < WARM_BATCHES and value > 2 * fitted:
            self._doubted = rows, value
        if self.seen > 1 and fitted > 0.0:
            deviation = abs(value - fitted) / fitted
            self._spread += ((min(1.0, deviation)) - self._spread) * (1 - KEEP)
            if self.seen >= WARM_BATCHES:
                value = min(max(value, fitted / 2), fitted * 2)
        self._add(1.0 if self.seen else COLD_WEIGHT, rows, value)
        self.seen += 1
        self.known = True
        self._fit()
        self._publish()
        return True

    def doubt(self) -> None:
        """Have the next batch weigh about as much as all before it, and bring the line down if it takes less than half
        as long. To doubt again before that does nothing."""
        if self._doubted == ALL:
            return
        self._doubted = ALL
        self._spread /= 2
        ones = max(self._ones, 1.0)
        self._ones /= ones
        self._rows /= ones
        self._squares /= ones
        self._times /= ones
        self._products /= ones

    def borrow(self, other: ServiceTime, row_ratio: float) -> None:
        """Start from ``other``, a batch key of the same model, when a row here has ``row_ratio`` times its bytes.
        What is borrowed weighs as little as a cold batch."""
        rows = other._rows / other._ones if other._ones else 1.0
        self._fixed = other._fixed
        self._per_row = other._per_row * row_ratio
        self._add(COLD_WEIGHT, rows, self._fixed + self._per_row * rows)
        self.seen = 1
        self.known = other.known
        self._publish()

    def _refuted(self, rows: int, ns: float) -> bool:
        """Whether what is doubted should have taken less than half as long: no batch takes longer than a larger one.
        A batch at least as large settles it either way."""
        if self._doubted != ALL and self.seen >= FIRST_BATCHES:
            self._doubted = None
        if self._doubted is None or rows < self._doubted[0]:
            return False
        doubted_ns = self._doubted[1]
        self._doubted = None
        return ns < doubted_ns / 2

    def _shrink(self, factor: float) -> None:
        """What was doubted was measured while others had the processor: the first run since says by how much."""
        self._times *= factor
        self._products *= factor
        self._fixed *= factor
        self._per_row *= factor

    def _add(self, weight: float, rows: float, ns: float) -> None:
        self._ones = self._ones * KEEP + weight
        self._rows = self._rows * KEEP + weight * rows
        self._squares = self._squares * KEEP + weight * rows * rows
        self._times = self._times * KEEP + weight * ns
        self._products = self._products * KEEP + weight * rows * ns

    def _fit(self) -> None:
        """The line of least squares. Where the sizes say nothing about the slope, fixed part and slope keep
        their proportion; at first they are equal for one row."""
        ones = self._ones
        mean_rows = self._rows / ones
        mean_ns = self._times / ones
        variance = self._squares / ones - mean_rows * mean_rows
        if variance > SIZE_VARIANCE_MIN:
            per_row = (self._products / ones - mean_rows * mean_ns) / variance
        else:
            before = self._fixed + self._per_row * mean_rows
            per_row = self._per_row * mean_ns / before if before > 0 else mean_ns / (1 + mean_rows)
        if per_row < 0.0:
            per_row = 0.0
        elif per_row * mean_rows > mean_ns:
            per_row = mean_ns / mean_rows
        self._per_row = per_row
        self._fixed = mean_ns - per_row * mean_rows

    def _publish(self) -> None:
        lifted = 1 + self._lift * self._spread
        self.fixed_ns = ceil(self._fixed * lifted - ROUNDING)
        self.per_row_ns = ceil(self._per_row * lifted - ROUNDING)
