"""What versions take in memory, as far as is known, and the memory that is kept for those on their way to serving.
Pure, but for what it remembers. Owner: the residence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.engine.residency_settings import ResidencyConfig
from appliance.engine.routes import Served
from appliance.model import VersionState
from appliance.scheduling.residency_port import Footprint, Form
from appliance.workers.port import ModelLoaded

PROCESS_BYTES = 3 << 20
"""Of a worker process, beside what its models take."""
VISITORS_MAX = 2
"""Versions for which others are put out so that they can prove themselves, at a time."""
HOLLOW_PARTS = 3
"""Weights that are a smaller part of what a model takes than one in so many do not pay being let go alone: an unpacked
model that its runtime packed for itself."""
CPU = "cpu"


class Measured(NamedTuple):
    """Of one version, as its workers said."""

    memory_bytes: int
    hollow_bytes: int
    load_ns: int


class Lodging:
    """``budget_bytes`` is what all versions together may take."""

    def __init__(self, config: ResidencyConfig, budget_bytes: int) -> None:
        self._config = config
        self._budget_bytes = budget_bytes
        self._measured: dict[int, Measured] = {}
        self._reserved: dict[int, int] = {}
        self._visitors: set[int] = set()

    # --- versions that serve

    def measured(self, served: Served, event: ModelLoaded) -> None:
        """A worker has loaded it; the largest of them counts."""
        known = self._measured.get(served.id, Measured(0, 0, 0))
        hollow = event.hollow_bytes if self._config.hollow else 0
        if hollow * HOLLOW_PARTS < event.memory_bytes:
            hollow = 0
        self._measured[served.id] = Measured(
            max(known.memory_bytes, event.memory_bytes), hollow, max(known.load_ns, event.load_ns)
        )

    def settles(self, served: Served) -> bool:
        """Whether a version is to be looked after from now on."""
        ready = served.state is VersionState.READY and served.model.device == CPU
        return ready and served.id in self._measured and (served.opened or served.form is not Form.RESIDENT)

    def footprint(self, served: Served) -> Footprint:
        """Its memory: that of all its processes, whose weights are the same pages."""
        memory_bytes, hollow_bytes, _ = self._measured[served.id]
        processes = max(served.model.instance_count, 1)
        return Footprint((memory_bytes + PROCESS_BYTES) * processes + hollow_bytes, hollow_bytes)

    def load_ns(self, served: Served) -> int:
        """How long loading it took, without its process."""
        return self._measured[served.id].load_ns

    # --- versions on their way

    @property
    def left_bytes(self) -> int:
        """What there is for versions that serve."""
        return max(self._budget_bytes - sum(self._reserved.values()), 0)

    def reserve(self, served: Served, used_bytes: int) -> bool:
        """Keep memory for it, if there is some or nothing is kept for many others; True when that is new."""
        if served.id in self._reserved:
            return False
        need = expected_bytes(served)
        if used_bytes + need > self.left_bytes:
            if len(self._visitors) >= VISITORS_MAX or (self._reserved and need > self.left_bytes):
                served.deferred = True
                return False
            self._visitors.add(served.id)
            served.deferred = True
        self._reserved[served.id] = need
        return True

    def reserved(self, served: Served) -> bool:
        """Whether memory is kept for it."""
        return served.id in self._reserved

    def release(self, served: Callable[[int], Served | None]) -> bool:
        """Forget those that serve, or never will; True when there were any."""
        done = [
            model
            for model in self._reserved
            if (known := served(model)) is None or known.state is not VersionState.LOADING
        ]
        for model in done:
            del self._reserved[model]
            self._visitors.discard(model)
        for model in [model for model in self._measured if served(model) is None]:
            del self._measured[model]
        return bool(done)


def expected_bytes(served: Served) -> int:
    """What it will take, guessed from its files."""
    weights = served.model.weights
    mapped = weights.size if weights is not None else 0
    private = max(served.model.file_bytes - mapped, 0)
    return (private + PROCESS_BYTES) * max(served.model.instance_count, 1) + mapped
