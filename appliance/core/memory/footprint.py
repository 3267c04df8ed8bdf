"""What a model takes: in memory, and in time to be brought there, as measured or by its size and others' speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

PROCESS_BYTES: Final = 11 << 19
"""Of a worker process, beside what its models take: the private pages of one with a model of 10 MB, of 100 and of 500,
less the model, were 5.5 MiB each."""
EVICTABLE_PARTS: Final = 3
"""Weights that are a smaller part of what a model takes than one in so many do not pay being evicted alone: an unpacked
model that its runtime packed for itself."""


class Residency(Enum):
    """How much of a model is in memory. WEIGHTS_EVICTED: its session is kept, its weights are not; COLD: no process."""

    RESIDENT = "resident"
    WEIGHTS_EVICTED = "weights_evicted"
    COLD = "cold"


class Footprint(NamedTuple):
    """Memory of a model while it is RESIDENT, and how much of it evicting its weights gives back (0: that cannot
    be)."""

    bytes: int
    evictable_bytes: int

    def at(self, residency: Residency) -> int:
        """Memory that it takes then."""
        if residency is Residency.RESIDENT:
            return self.bytes
        return self.bytes - self.evictable_bytes if residency is Residency.WEIGHTS_EVICTED else 0


@dataclass(frozen=True, slots=True)
class Size:
    """Of one process of a model: private memory, mapped weights, and how long loading it took (0: not known).

    ``packed``: it runs from a form that was built on this box, which takes otherwise than the files it came with.
    """

    memory_bytes: int
    weights_bytes: int
    load_ns: int = 0
    packed: bool = False

    def widened(self, known: Size | None) -> Size:
        """The larger of this and of what is ``known``, where both are of the same artifact."""
        if known is None or known.packed != self.packed:
            return self
        most = max(known.memory_bytes, self.memory_bytes)
        return replace(self, memory_bytes=most, load_ns=max(known.load_ns, self.load_ns))

    def footprint(self, processes: int, *, evict_weights: bool) -> Footprint:
        """Memory of all processes, whose weights are the same pages; ``evict_weights``: those may leave alone."""
        pays = evict_weights and self.weights_bytes * EVICTABLE_PARTS >= self.memory_bytes
        total = (self.memory_bytes + PROCESS_BYTES) * max(processes, 1) + self.weights_bytes
        return Footprint(total, self.weights_bytes if pays else 0)


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
