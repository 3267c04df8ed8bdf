"""The one place where figures are read: all that counts, at one moment, as one value."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from appliance.telemetry.snapshot import (
    EngineStatus,
    FrontEndFigures,
    HttpStatistics,
    QuotaFigures,
    Snapshot,
    StoreFigures,
    TraceFigures,
)


class Engine(Protocol):
    """As far as it is asked."""

    def status(self) -> EngineStatus:
        """Its figures, and those of all versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """What counts, each by how it is asked; None: there is no such thing here. Asked on the event loop's thread."""

    engine: Engine
    front_end: Callable[[], FrontEndFigures]
    http: Callable[[], HttpStatistics]
    store: Callable[[], StoreFigures] | None = None
    quotas: Callable[[], QuotaFigures] | None = None
    traces: Callable[[], TraceFigures] | None = None

    def read(self) -> Snapshot:
        """Everything, as of now."""
        return Snapshot(
            engine=self.engine.status(),
            front_end=self.front_end(),
            http=self.http(),
            store=None if self.store is None else self.store(),
            quotas=None if self.quotas is None else self.quotas(),
            traces=None if self.traces is None else self.traces(),
            pid=os.getpid(),
        )
