"""What happened between two snapshots: rates, quantiles and batches of the interval. Pure.

When the appliance was started again between the two, its counters began again, and the later snapshot alone counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from appliance.cli.snapshot import ModelSnapshot, Snapshot, WorkerSnapshot

NOTHING: Mapping[str, ModelSnapshot] = {}


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


def since_start(now: Snapshot) -> tuple[Activity, ...]:
    """Activity from the start of the appliance until ``now``."""
    return _all(NOTHING, now, max(now.uptime_s, 1e-9))


def between(before: Snapshot, now: Snapshot) -> tuple[Activity, ...]:
    """Activity of every version that is there ``now``, in the snapshot's order."""
    if before.started_ns != now.started_ns:
        return since_start(now)
    seconds = max((now.now_ns - before.now_ns) / 1e9, 1e-9)
    return _all({model.key: model for model in before.models}, now, seconds)


def workers_between(before: Snapshot | None, now: Snapshot) -> tuple[WorkerActivity, ...]:
    """What each worker got between the two; since the start of the appliance without ``before``."""
    if before is None or before.started_ns != now.started_ns:
        known: Mapping[int, WorkerSnapshot] = {}
        seconds = max(now.uptime_s, 1e-9)
    else:
        known = {worker.worker: worker for worker in before.workers}
        seconds = max((now.now_ns - before.now_ns) / 1e9, 1e-9)
    return tuple(_worker_activity(known.get(worker.worker), worker, seconds) for worker in now.workers)


def over_quota_between(before: Snapshot | None, now: Snapshot) -> Mapping[str, float]:
    """Requests per second that were refused for their client's quota, by its name, most first; since the start of the
    appliance without ``before``."""
    known: Mapping[str, int] = {}
    seconds = max(now.uptime_s, 1e-9)
    if before is not None and before.started_ns == now.started_ns:
        known = before.over_quota
        seconds = max((now.now_ns - before.now_ns) / 1e9, 1e-9)
    refused = {name: count - known.get(name, 0) for name, count in now.over_quota.items()}
    ranked = sorted(refused.items(), key=lambda pair: (-pair[1], pair[0]))
    return {name: count / seconds for name, count in ranked if count > 0}


def _worker_activity(before: WorkerSnapshot | None, now: WorkerSnapshot, seconds: float) -> WorkerActivity:
    leased = now.leased - (before.leased if before else 0)
    given = leased + now.asked - (before.asked if before else 0)
    return WorkerActivity(worker=now, rate_per_s=given / seconds, leased=_share(leased, given))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def busiest_first(activities: Sequence[Activity]) -> list[Activity]:
    """By rate, then in the order given."""
    return sorted(activities, key=lambda activity: -round(activity.rate_per_s + activity.refused_per_s))


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


def _all(before: Mapping[str, ModelSnapshot], now: Snapshot, seconds: float) -> tuple[Activity, ...]:
    workers = {worker.worker: worker for worker in now.workers}
    return tuple(
        _activity(before.get(model.key), model, workers, now.bounds_us, seconds) for model in now.models
    )


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
