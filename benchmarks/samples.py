"""Collects samples while a case runs. One owner: the case that made it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.process import foreign_cores, mark
from benchmarks.results import Measurement


class Samples:
    """Samples by (server, setting, metric), notes, errors and the foreign load seen meanwhile."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str, str, str], list[float]] = {}
        self.notes: list[str] = []
        self.errors: list[str] = []
        self.foreign: list[float] = []

    def add(self, server: str, setting: str, metric: str, unit: str, value: float) -> None:
        """One sample more."""
        self._samples.setdefault((server, setting, metric, unit), []).append(round(value, 6))

    def note(self, text: str) -> None:
        """Remember a remark, once."""
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def watching_others(self, *server_roots: int) -> Iterator[None]:
        """Record how many cores others kept busy during the block."""
        before = mark(*server_roots)
        yield
        if time.monotonic() - before.wall_s > 0.5:  # the kernel's ticks say nothing about less
            self.foreign.append(round(foreign_cores(before, mark(*server_roots)), 3))

    def measurements(self) -> tuple[Measurement, ...]:
        """All samples as values."""
        return tuple(
            Measurement(server=server, setting=setting, metric=metric, unit=unit, samples=tuple(values))
            for (server, setting, metric, unit), values in self._samples.items()
        )

    def median(self, server: str, setting: str, metric: str) -> float | None:
        """The median of what was collected, or None."""
        found = self._of(server, setting, metric)
        return found.median if found else None

    def highest(self, server: str, setting: str, metric: str) -> float | None:
        """The highest of what was collected, or None."""
        found = self._of(server, setting, metric)
        return max(found.samples) if found else None

    def _of(self, server: str, setting: str, metric: str) -> Measurement | None:
        found = (
            m for m in self.measurements() if (m.server, m.setting, m.metric) == (server, setting, metric)
        )
        return next(found, None)
