"""What each version did lately: a sample of its figures every few seconds, for the last hour, in memory.

The picture for people. Programs that keep figures for longer scrape ``/metrics``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from appliance.domain.histogram import HistogramValue
from appliance.telemetry.meter import Result, Stage, VersionStatistics
from appliance.telemetry.snapshot import EngineStatus, MeteredEngine, VersionStatus

PERIOD_S: Final = 10.0
KEPT_S: Final = 3600.0
KEPT: Final = int(KEPT_S / PERIOD_S)
WRITTEN_NS: Final = 300_000_000_000
"""How long it takes at the most until the disk knows when a version was asked last, unless power fails: disks of boxes
wear."""
RATES: Final = 12
"""Periods of which the status document says the rate: the last two minutes."""
VERSIONS_MAX: Final = 2_000
"""With as many versions that are busy an hour of all takes some hundred MiB at the most; later ones have no picture."""

_TURNED_AWAY: Final = (Result.REFUSED, Result.EXPIRED, Result.UNAVAILABLE)


class Sample(NamedTuple):
    """One period of one version: requests ``answered``, ``refused`` (for want of time or room) and ``failed`` per
    second, the time that answers took in microseconds (0: none came), rows in a batch (0: none ran), and requests that
    were queued at its end."""

    answered: float = 0.0
    refused: float = 0.0
    failed: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    batch: float = 0.0
    queued: int = 0


class RequestMemory(Protocol):
    """What remembers when versions were asked last."""

    def requested(self, last: Mapping[str, int], *, write: bool) -> None:
        """See Records."""


class RecentFigures:
    """Samples by version. One owner: the event loop's thread. ``also`` sees the same statuses, for what must be looked
    at as often."""

    def __init__(
        self,
        memory: RequestMemory | None = None,
        also: Callable[[EngineStatus], object] = lambda _: None,
    ) -> None:
        self._memory = memory
        self._also = also
        self._engine: MeteredEngine | None = None
        self._written_ns = 0
        self._samples: dict[tuple[str, int], deque[Sample]] = {}
        self._before: dict[tuple[str, int], VersionStatistics] = {}
        self._taken_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop, engine: MeteredEngine) -> None:
        """Take samples from now on, until ``close``."""
        self._engine = engine
        status = engine.status()
        self.take(status)
        self._also(status)
        self._remember(status, write=status.now_ns - self._written_ns >= WRITTEN_NS)
        self._timer = loop.call_later(PERIOD_S, self.watch, loop, engine)

    async def close(self) -> None:
        """Take no more, and have remembered what there was."""
        if self._timer is not None:
            self._timer.cancel()
        if self._engine is not None:
            self._remember(self._engine.status(), write=True)

    def _remember(self, status: EngineStatus, *, write: bool) -> None:
        """When each version was asked last: by whatever is started after this, too."""
        if self._memory is None:
            return
        asked = [each.statistics for each in status.versions if each.statistics.last_inference_ms]
        self._memory.requested(
            {f"{each.name}/{each.version}": each.last_inference_ms for each in asked}, write=write
        )
        if write:
            self._written_ns = status.now_ns

    def take(self, status: EngineStatus) -> None:
        """Add a sample of every version to what is kept. Versions that are gone are forgotten."""
        seconds = (status.now_ns - self._taken_ns) / 1e9 if self._taken_ns else 0.0
        self._taken_ns = status.now_ns
        if seconds > 0:
            for version in status.versions:
                self._add(version, seconds)
        self._before = {(each.name, each.version): each.statistics for each in status.versions}
        for gone in self._samples.keys() - self._before.keys():
            del self._samples[gone]

    def of(self, name: str, version: int) -> Sequence[Sample]:
        """The samples that are kept of a version, oldest first; none where nothing was asked of it."""
        return tuple(self._samples.get((name, version), ()))

    def rates(self, name: str, version: int) -> Sequence[float]:
        """Requests answered per second in each of the last periods of a version, oldest first."""
        samples = self._samples.get((name, version), ())
        newest_first = islice(reversed(samples), RATES)
        return [round(each.answered, 2) for each in newest_first][::-1]

    def latest(self, name: str, version: int) -> Sample | None:
        """The last period of a version; None before the first one."""
        if not self._before or (name, version) not in self._before:
            return None
        samples = self._samples.get((name, version))
        return samples[-1] if samples else Sample()

    def _add(self, version: VersionStatus, seconds: float) -> None:
        key = (version.name, version.version)
        before, now = self._before.get(key), version.statistics
        idle = (now is before or now == before) and not version.queued  # a thousand idle ones cost nothing
        samples = self._samples.get(key)
        if samples is None:
            if idle or before is None or len(self._samples) >= VERSIONS_MAX:
                return
            samples = self._samples[key] = deque(maxlen=KEPT)
        samples.append(Sample() if idle or before is None else _sample(before, version, seconds))


def _sample(before: VersionStatistics, version: VersionStatus, seconds: float) -> Sample:
    now = version.statistics
    total = _since(before.stages[Stage.TOTAL], now.stages[Stage.TOTAL])
    batches = now.executions - before.executions
    rows = _rows(now) - _rows(before)
    return Sample(
        answered=_more(before, now, (Result.SUCCESS,)) / seconds,
        refused=_more(before, now, _TURNED_AWAY) / seconds,
        failed=_more(before, now, (Result.FAILED,)) / seconds,
        p50_us=total.quantile_ns(0.50) / 1_000,
        p99_us=total.quantile_ns(0.99) / 1_000,
        batch=rows / batches if batches > 0 else 0.0,
        queued=version.queued,
    )


def _since(before: HistogramValue, now: HistogramValue) -> HistogramValue:
    """What was counted between the two; a meter that began anew counts from nothing."""
    counts = tuple(max(0, late - early) for early, late in zip(before.counts, now.counts, strict=True))
    return HistogramValue(counts=counts, sum_ns=max(0, now.sum_ns - before.sum_ns))


def _more(before: VersionStatistics, now: VersionStatistics, results: Iterable[Result]) -> int:
    return sum(max(0, now.results.get(each, 0) - before.results.get(each, 0)) for each in results)


def _rows(statistics: VersionStatistics) -> int:
    return sum(batch.rows * batch.count for batch in statistics.batches)
