"""What happened between two snapshots: rates, quantiles and batches of the interval. Pure.

When the appliance was started again between the two, its counters began again, and the later snapshot alone counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from appliance.cli.snapshot import ModelSnapshot, Snapshot, WorkerSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One model version over an interval. None: nothing ended. ``refused_per_s`` counts all that got no tensors,
    ``leased`` is the part of the answered ones that the front end served without asking the engine."""

    model: ModelSnapshot
    rate_per_s: float
    refused_per_s: float
    leased: float | None
    p50_us: float | None
    p99_us: float | None
    batch_mean: float | None
    workers: tuple[WorkerSnapshot, ...]

    @property
    def memory_bytes(self) -> int:
        """Private memory of the processes that serve it, shared ones counted whole."""
        return sum(worker.memory_bytes for worker in self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivity:
    """One worker over an interval: the requests that it got, and the part that the front end gave it by itself (None:
    it got none)."""

    worker: WorkerSnapshot
    rate_per_s: float
    leased: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """All that happened until ``now``: by version and by worker, in the snapshot's order, and requests per second that
    were refused for their client's quota, by its name, most first."""

    now: Snapshot
    versions: tuple[Activity, ...] = ()
    workers: tuple[WorkerActivity, ...] = ()
    over_quota: Mapping[str, float] = field(default_factory=dict)

    def only(self, names: Collection[str]) -> Interval:
        """The same with the versions of the models ``names`` alone, or all without any; NAME/VERSION is one of them."""
        kept = (each for each in self.versions if not names or {each.model.name, each.model.key} & set(names))
        return replace(self, versions=tuple(kept))

    def busiest_first(self) -> Interval:
        """The same with the versions by rate, then in the order given."""
        ranked = sorted(self.versions, key=lambda each: -round(each.rate_per_s + each.refused_per_s))
        return replace(self, versions=tuple(ranked))


def between(before: Snapshot | None, now: Snapshot) -> Interval:
    """What happened since ``before``, or since the start of the appliance without that."""
    seconds = max(now.uptime_s, 1e-9)
    if before is not None and before.started_ns != now.started_ns:
        before = None
    if before is not None:
        seconds = max((now.now_ns - before.now_ns) / 1e9, 1e-9)
    models = {model.key: model for model in before.models} if before else {}
    known = {worker.worker: worker for worker in before.workers} if before else {}
    workers = {worker.worker: worker for worker in now.workers}
    return Interval(
        now=now,
        versions=tuple(
            _activity(models.get(model.key), model, workers, now.bounds_us, seconds) for model in now.models
        ),
        workers=tuple(_worker_activity(known.get(each.worker), each, seconds) for each in now.workers),
        over_quota=_over_quota(before.over_quota if before else {}, now.over_quota, seconds),
    )


def _over_quota(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> Mapping[str, float]:
    refused = {name: count - before.get(name, 0) for name, count in now.items()}
    ranked = sorted(refused.items(), key=lambda pair: (-pair[1], pair[0]))
    return {name: count / seconds for name, count in ranked if count > 0}


def _worker_activity(before: WorkerSnapshot | None, now: WorkerSnapshot, seconds: float) -> WorkerActivity:
    leased = now.leased - (before.leased if before else 0)
    given = leased + now.asked - (before.asked if before else 0)
    return WorkerActivity(worker=now, rate_per_s=given / seconds, leased=_share(leased, given))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def quantile_us(counts: Sequence[int], bounds_us: Sequence[float], fraction: float) -> float | None:
    """The quantile of a histogram, interpolated inside its bucket; the last bound for what lies above all."""
    rank = fraction * sum(counts)
    seen = 0
    for index, count in enumerate(counts):
        if count > 0 and seen + count >= rank:
            low = bounds_us[index - 1] if index else 0.0
            high = bounds_us[index] if index < len(bounds_us) else low
            return low + (high - low) * (rank - seen) / count
        seen += count
    return None


def _activity(
    before: ModelSnapshot | None,
    now: ModelSnapshot,
    workers: Mapping[int, WorkerSnapshot],
    bounds_us: Sequence[float],
    seconds: float,
) -> Activity:
    earlier = before.total.counts if before else ()
    counts = [new - old for new, old in zip_longest(now.total.counts, earlier, fillvalue=0)]
    answered = now.requests.get("success", 0) - (before.requests.get("success", 0) if before else 0)
    ended = now.ended - (before.ended if before else 0)
    rows = now.executed_rows - (before.executed_rows if before else 0)
    batches = now.executions - (before.executions if before else 0)
    return Activity(
        model=now,
        rate_per_s=answered / seconds,
        refused_per_s=(ended - answered) / seconds,
        leased=_share(now.leased - (before.leased if before else 0), answered),
        p50_us=quantile_us(counts, bounds_us, 0.50),
        p99_us=quantile_us(counts, bounds_us, 0.99),
        batch_mean=rows / batches if batches > 0 else None,
        workers=tuple(workers[worker] for worker in now.workers if worker in workers),
    )
