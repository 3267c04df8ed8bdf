"""What bringing versions into memory cost on this box: measured, and kept across restarts with what they proved.

Without it the first decisions after a start rest on guesses from files. A measurement counts for a quarter, and only
what changes by an eighth is written: these are estimates, and disks of boxes wear. Owner: the model cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.domain.model import ModelVersion
from appliance.engine.versions.records import Cost, Records
from appliance.engine.versions.served import Served
from appliance.workers.port import ModelLoaded

SHARE: Final = 4
NEGLIGIBLE: Final = 8


class Costs:
    """``box`` says of a version what its costs hold for, as its proof does."""

    def __init__(self, records: Records, box: Callable[[ModelVersion], str]) -> None:
        self._records = records
        self._box = box

    def of(self, served: Served) -> Cost | None:
        """What it cost when it was measured last, in this process or an earlier one."""
        return self._records.cost(served.identity, self._box(served.model))

    def loaded(self, served: Served, event: ModelLoaded) -> None:
        """A worker has loaded it, and says what it takes."""
        known = self.of(served)
        if known is not None and known.packed != event.packed:
            known = None
        self._keep(
            served,
            Cost(
                memory_bytes=event.memory_bytes,
                weights_bytes=event.evictable_bytes,
                load_ns=known.load_ns if known is not None else event.load_ns,
                page_in_ns=known.page_in_ns if known is not None else 0,
                packed=event.packed,
            ),
        )

    def took(self, served: Served, ns: int, *, page_in: bool) -> None:
        """It came back to memory, all of it or its weights alone, in ``ns``."""
        known = self.of(served)
        if known is None or ns <= 0:
            return
        before_ns = known.page_in_ns if page_in else known.load_ns
        after_ns = before_ns + (ns - before_ns) // SHARE if before_ns else ns
        self._keep(
            served, known._replace(page_in_ns=after_ns) if page_in else known._replace(load_ns=after_ns)
        )

    def _keep(self, served: Served, cost: Cost) -> None:
        known = self.of(served)
        if known is None or known.packed != cost.packed or any(map(_differ, known[:4], cost[:4])):
            self._records.weigh(served.identity, self._box(served.model), cost)


def _differ(known: int, now: int) -> bool:
    return abs(now - known) * NEGLIGIBLE > known
