"""What versions take in memory and what bringing them there costs: as measured, here or before a restart, or guessed.

Owner: the model cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.core.memory.footprint import Footprint, Size
from appliance.engine.control.costs import Costs
from appliance.engine.versions.served import Served
from appliance.workers.port import ModelLoaded


class Sizes:
    """``evict_weights``: weights may leave memory alone; ``limits`` are what there is of each device; ``costs`` keeps
    what was measured across restarts."""

    def __init__(self, evict_weights: bool, limits: Mapping[str, int], costs: Costs | None = None) -> None:
        self._evict_weights = evict_weights
        self._limits = limits
        self._costs = costs
        self._sizes: dict[int, Size] = {}

    def measured(self, served: Served, event: ModelLoaded) -> None:
        """Take in what a worker said that has loaded it; the largest of them counts."""
        size = Size(event.memory_bytes, event.evictable_bytes, event.load_ns, event.packed)
        self._sizes[served.id] = size.widened(self._sizes.get(served.id))
        if self._costs is not None:
            self._costs.loaded(served, event)

    def assumed(self, served: Served) -> None:
        """Have it count as it is expected to be, until it has been loaded."""
        self._sizes[served.id] = self._guess(served)

    def came_back(self, served: Served, ns: int, *, by_page_in: bool) -> None:
        """Take in how long bringing it back took."""
        if self._costs is not None:
            self._costs.took(served, ns, page_in=by_page_in)

    def forget(self, model: int) -> None:
        """Forget a version."""
        self._sizes.pop(model, None)

    # --- what is asked

    def knows(self, model: int) -> bool:
        """Whether it was measured, or is assumed to be as was guessed."""
        return model in self._sizes

    def known(self) -> tuple[int, ...]:
        """All versions of which that is so."""
        return tuple(self._sizes)

    def footprint(self, served: Served) -> Footprint:
        """Its memory: that of all its processes, whose weights are the same pages."""
        return self._of(served, self._sizes[served.id])

    def expected(self, served: Served) -> Footprint:
        """What it takes, or is expected to."""
        return self._of(served, self._sizes.get(served.id) or self._guess(served))

    def guessed(self, served: Served) -> Footprint:
        """What it is expected to take when it is loaded."""
        return self._of(served, self._guess(served))

    def bytes_now(self, served: Served) -> int:
        """What it takes as it is (0: nothing is known of it)."""
        return self.footprint(served).at(served.memory.residency) if served.id in self._sizes else 0

    def load_ns(self, served: Served) -> int:
        """How long loading it took, without its process."""
        return self._sizes[served.id].load_ns

    def costs_ns(self, served: Served) -> tuple[int, int]:
        """How long loading it and paging its weights in take, as far as is known (0: it is not)."""
        size = self._sizes[served.id]
        known = self._costs.of(served) if self._costs is not None else None
        if known is None or known.packed != size.packed:
            return size.load_ns, 0
        return known.load_ns or size.load_ns, known.page_in_ns

    def _of(self, served: Served, size: Size) -> Footprint:
        return size.footprint(served.model.instance_count, evict_weights=self._evict_weights)

    def _guess(self, served: Served) -> Size:
        """What it will take: what it took before, unless that could never fit, or else what its files tell."""
        known = self._costs.of(served) if self._costs is not None else None
        if known is not None:
            before = Size(known.memory_bytes, known.weights_bytes, known.load_ns, known.packed)
            if self._of(served, before).bytes <= self._limits.get(served.model.device, 1 << 62):
                return before
        weights = served.model.weights
        mapped = weights.size if weights is not None else 0
        return Size(max(served.model.file_bytes - mapped, 0), mapped)
