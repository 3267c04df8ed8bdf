"""How long it takes to bring a model into memory: measured, as an upper quantile; before that, from its size and the
speed of the others."""

from __future__ import annotations

KEEP = 0.75
"""What one measurement leaves of the weight of those before."""
LIFT = 2.0
"""So many mean deviations above the mean lies about the 0.95 quantile."""
FIRST_SPREAD = 0.5
"""Relative deviation that is assumed after one measurement; it fades with more."""


class LoadCost:
    """Of one way (a load or a page-in) of one model."""

    __slots__ = ("_mean_ns", "_spread_ns", "known")

    def __init__(self, before_ns: int = 0) -> None:
        """``before_ns`` is what it took at an earlier time (0: not known)."""
        self.known = before_ns > 0
        self._mean_ns = float(before_ns)
        self._spread_ns = before_ns * FIRST_SPREAD

    def observe(self, ns: int) -> None:
        """It took ``ns``."""
        if not self.known:
            self.known = True
            self._mean_ns = float(ns)
            self._spread_ns = ns * FIRST_SPREAD
            return
        self._spread_ns += (abs(ns - self._mean_ns) - self._spread_ns) * (1 - KEEP)
        self._mean_ns += (ns - self._mean_ns) * (1 - KEEP)

    @property
    def mean_ns(self) -> int:
        """What it takes on the average."""
        return int(self._mean_ns)

    @property
    def upper_ns(self) -> int:
        """What it takes at most, with few exceptions."""
        return int(self._mean_ns + LIFT * self._spread_ns)


class LoadSpeed:
    """What a byte costs over all models, for those that were never measured: a line through the origin, faded."""

    __slots__ = ("_bytes", "_ns")

    def __init__(self, assumed_ns: int, assumed_bytes: int) -> None:
        """Assume ``assumed_ns`` for ``assumed_bytes`` until something else is measured."""
        self._ns = float(assumed_ns)
        self._bytes = float(assumed_bytes)

    def observe(self, size_bytes: int, ns: int) -> None:
        """So many bytes took ``ns``."""
        self._ns = self._ns * KEEP + ns
        self._bytes = self._bytes * KEEP + size_bytes

    def estimate_ns(self, size_bytes: int) -> int:
        """What so many bytes take on the average."""
        return int(self._ns / self._bytes * size_bytes)
