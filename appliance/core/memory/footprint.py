"""What a model takes in memory, and how much of it is there."""

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
