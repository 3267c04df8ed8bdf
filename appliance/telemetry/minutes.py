"""What was done since the last look, as records for the fleet: the differences of two snapshots. Pure.

What was taken counts as told only when it is ``settled``: until then it is in the next record, too, whose window is
longer by as much, so a disk that fails loses no count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from appliance.domain.histogram import HistogramValue
from appliance.fleet.records import Health, Latency, Minute, VersionMinute
from appliance.telemetry.meter import Result, Stage, VersionStatistics
from appliance.telemetry.metrics.front_end import FAMILIES
from appliance.telemetry.notices import notices
from appliance.telemetry.snapshot import Snapshot, SwapFigures, VersionStatus

VERSIONS_PER_RECORD: Final = 256
"""So that one record stays small, however many models there are."""
MS_NS: Final = 1_000_000
_LEVELS: Final = frozenset(key for key, family, _ in FAMILIES if not family.endswith("_total"))
"""What a front end tells that is no count: what is open now."""


class Minutes:
    """Remembers the snapshot that was settled last; before the first everything counts since the daemon began."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, int], tuple[VersionStatistics, str]] = {}
        self._swaps: Mapping[str, int] = {}
        self._fronts: Mapping[str, int] = {}
        self._until_ns = 0

    def take(self, now: Snapshot) -> tuple[Minute, ...]:
        """What was done since; one record at least."""
        engine = now.engine
        window_ns = engine.now_ns - (self._until_ns or engine.started_ns)
        told = [each for version in engine.versions if (each := self._version(version)) is not None]
        starts = range(0, max(len(told), 1), VERSIONS_PER_RECORD)
        parts = [tuple(told[start : start + VERSIONS_PER_RECORD]) for start in starts]
        return tuple(
            Minute(
                at_ms=int(now.wall_s * 1000),
                window_ms=max(window_ns, 0) // MS_NS,
                uptime_ms=max(engine.now_ns - engine.started_ns, 0) // MS_NS,
                versions=part,
                swaps={} if place else _more(self._swaps, _swap_counts(engine.swaps)),
                fronts={} if place else _more(self._fronts, _front_counts(now)),
            )
            for place, part in enumerate(parts)
        )

    def settled(self, now: Snapshot) -> None:
        """What was taken of this snapshot is told."""
        self._versions = {
            (each.name, each.version): (each.statistics, each.state.value) for each in now.engine.versions
        }
        self._swaps = _swap_counts(now.engine.swaps)
        self._fronts = _front_counts(now)
        self._until_ns = now.engine.now_ns

    def _version(self, version: VersionStatus) -> VersionMinute | None:
        """What it did; None where that was nothing, and its state is told."""
        now, state = version.statistics, version.state.value
        before, state_before = self._versions.get((version.name, version.version), (None, ""))
        # A thousand idle ones cost nothing.
        if now is before and state == state_before and not version.queued:
            return None
        if before is not None and _began_anew(before, now):
            before = None
        outcomes = [
            now.results.get(each, 0) - (before.results.get(each, 0) if before else 0) for each in Result
        ]
        while outcomes and not outcomes[-1]:
            outcomes.pop()
        return VersionMinute(
            name=version.name,
            version=version.version,
            outcomes=tuple(outcomes),
            rows=now.inferences - (before.inferences if before else 0),
            queue=_since(before, now, Stage.QUEUE),
            run=_since(before, now, Stage.RUN),
            total=_since(before, now, Stage.TOTAL),
            batches=tuple(_batches(before, now)),
            queued=version.queued,
            retries=now.retries - (before.retries if before else 0),
            state=state,
        )


def health(now: Snapshot) -> Health:
    """How the box is."""
    engine, store = now.engine, now.store
    return Health(
        at_ms=int(now.wall_s * 1000),
        uptime_ms=max(engine.now_ns - engine.started_ns, 0) // MS_NS,
        accepting=engine.accepting,
        queued=engine.queued_requests,
        running=engine.running_requests,
        workers=len(engine.workers),
        restarts=sum(each.restarts for each in engine.workers),
        memory_bytes=sum(each.memory_bytes for each in engine.workers),
        models_bytes=engine.residency.used_bytes,
        models_limit_bytes=engine.residency.budget_bytes,
        store_bytes=store.taken_bytes if store else 0,
        store_free_bytes=store.free_bytes if store else 0,
        store_damaged=store.damaged if store else 0,
        notices=tuple(notices(now)),
    )


def _began_anew(before: VersionStatistics, now: VersionStatistics) -> bool:
    """Whether the figures are of a meter that counts from nothing."""
    total_before, total = before.stages[Stage.TOTAL], now.stages[Stage.TOTAL]
    return (
        now.inferences < before.inferences
        or now.executions < before.executions
        or any(now.results.get(each, 0) < before.results.get(each, 0) for each in Result)
        or any(late < early for early, late in zip(total_before.counts, total.counts, strict=True))
    )


def _since(before: VersionStatistics | None, now: VersionStatistics, stage: Stage) -> Latency:
    late: HistogramValue = now.stages[stage]
    if before is None:
        return Latency.of(late.counts, late.sum_ns)
    early = before.stages[stage]
    counts = [b - a for a, b in zip(early.counts, late.counts, strict=True)]
    return Latency.of(counts, late.sum_ns - early.sum_ns)


def _batches(before: VersionStatistics | None, now: VersionStatistics) -> Iterator[tuple[int, int]]:
    had = {each.rows: each.count for each in before.batches} if before else {}
    for each in now.batches:
        if more := each.count - had.get(each.rows, 0):
            yield each.rows, more


def _swap_counts(swaps: SwapFigures) -> Mapping[str, int]:
    rest: Sequence[tuple[str, object]] = list(swaps._asdict().items())
    counts = {name: value for name, value in rest if isinstance(value, int)}
    return counts | {f"ending {name}": count for name, count in swaps.endings.items()}


def _front_counts(now: Snapshot) -> Mapping[str, int]:
    bounds = {f"bound {name}": count for name, count in now.front_end.limits.items()}
    counts = {name: count for name, count in now.front_end.counts.items() if name not in _LEVELS}
    return {**counts, **bounds}


def _more(before: Mapping[str, int], now: Mapping[str, int]) -> Mapping[str, int]:
    """How much more each is; nothing of what is the same, and all of what began anew."""
    grown = ((name, count, count - before.get(name, 0)) for name, count in now.items())
    return {name: more if more > 0 else count for name, count, more in grown if more and count}
