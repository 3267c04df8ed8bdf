"""The JSON document behind ``/status.json``: the engine's status as plain JSON values.

Pure. ``docs/STATUS.md`` describes every field; ``FORMAT`` changes when a field changes its meaning or goes
away, not when one is added. Counters only grow while the appliance runs: a reader takes two documents and
subtracts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from appliance import __version__
from appliance.domain.histogram import BOUNDS_US, HistogramValue
from appliance.domain.protocol import SERVER_NAME
from appliance.telemetry.device_work import Json, device_document, processor_document
from appliance.telemetry.meter import Result, Stage, VersionStatistics
from appliance.telemetry.notices import notices
from appliance.telemetry.snapshot import (
    QuotaFigures,
    Snapshot,
    SwapFigures,
    VersionStatus,
    WorkerStatus,
)

FORMAT = 1


def status_header(snapshot: Snapshot) -> dict[str, Json]:
    """The document without its ``models``, which is cheap however many there are."""
    status, store, quotas = snapshot.engine, snapshot.store, snapshot.quotas
    return {
        "format": FORMAT,
        "server": {
            "name": SERVER_NAME,
            "version": __version__,
            "front_end": snapshot.front_end.kind,
            "pid": snapshot.pid,
            "addresses": {protocol: list(urls) for protocol, urls in snapshot.addresses.items()},
        },
        "accepting": status.accepting,
        "now_ns": status.now_ns,
        "started_ns": status.started_ns,
        "uptime_ms": max(0, status.now_ns - status.started_ns) // 1_000_000,
        "queued_requests": status.queued_requests,
        "queued_bytes": status.queued_bytes,
        "running_requests": status.running_requests,
        "arena_used_bytes": status.arena_used_bytes,
        "arena_limit_bytes": status.arena_limit_bytes,
        "slots": [
            {"size_bytes": slot.size_bytes, "count": slot.slots, "used": slot.used} for slot in status.slots
        ],
        "swaps": _swaps_document(status.swaps),
        "residency": {**status.residency._asdict(), "problems": list(status.residency.problems)},
        "store": None if store is None else asdict(store),
        "devices": [device_document(each, snapshot.kwh_price) for each in snapshot.devices],
        "processor": processor_document(snapshot.processor, snapshot.kwh_price),
        "certificates": dict(snapshot.certificates),
        "notices": list(notices(snapshot)),
        "quotas": None if quotas is None else _quotas_document(quotas),
        "bounds_us": list(BOUNDS_US),
        "workers": [_worker_document(worker) for worker in status.workers],
    }


def model_document(version: VersionStatus, rates: Sequence[float] = ()) -> dict[str, Json]:
    """One entry of ``models``; ``rates``: see RecentFigures."""
    statistics = version.statistics
    return {
        "name": version.name,
        "version": version.version,
        "state": version.state.value,
        "phase": version.phase.value,
        "reason": version.reason,
        "outlook": version.outlook.value,
        "waiting": version.waiting,
        "trust": version.trust,
        "device": version.placed,
        "residency": version.residency,
        "memory_bytes": version.memory_bytes,
        "weights_bytes": version.weights_bytes,
        "restarts": dict(version.restarts),
        "packed": version.packed,
        "golden": None if version.golden is None else dict(version.golden._asdict()),
        "interface": [dict(row._asdict()) for row in version.interface],
        "queued": version.queued,
        "running": version.running,
        "held_clients": version.held_clients,
        "workers": list(version.workers),
        "requests": {result.value: statistics.results.get(result, 0) for result in Result},
        "inferences": statistics.inferences,
        "executions": statistics.executions,
        "executed_rows": statistics.executed_rows,
        "retries": statistics.retries,
        "leased": statistics.leased,
        "batch_mean": batch_mean(statistics),
        "rates_per_s": list(rates),
        "last_inference_ms": statistics.last_inference_ms,
        "trial": None if version.trial is None else dict(version.trial._asdict()),
        "tries_left": version.tries_left,
        "next_try_ms": version.next_try_ms,
        "run_p50_us": version.run_p50_ns / 1_000,
        "run_p99_us": version.run_p99_ns / 1_000,
        "load_ms": version.load_ns / 1_000_000,
        "loading": None if version.loading is None else dict(version.loading._asdict()),
        "fallen_back": version.fallen_back,
        "untried": version.untried,
        "notes": list(version.notes),
        "stages": dict(_stage_documents(statistics)),
    }


def _quotas_document(quotas: QuotaFigures) -> dict[str, Json]:
    return {"clients": quotas.clients, "refused": [dict(each._asdict()) for each in quotas.refusals]}


def _swaps_document(swaps: SwapFigures) -> dict[str, Json]:
    return {**swaps._asdict(), "endings": dict(swaps.endings)}


def batch_mean(statistics: VersionStatistics) -> float | None:
    """Rows per executed batch, or None when none ran. A batch counts with its rows whatever came of it."""
    return round(statistics.executed_rows / statistics.executions, 3) if statistics.executions else None


def _worker_document(worker: WorkerStatus) -> dict[str, Json]:
    return {
        "worker": worker.worker,
        "place": worker.place,
        "pid": worker.pid,
        "state": worker.state,
        "models": list(worker.models),
        "memory_bytes": worker.memory_bytes,
        "restarts": worker.restarts,
        "confinement": list(worker.kept_from),
        "asked": worker.use.asked,
        "leased": worker.use.leased,
        "leased_now": worker.use.leased_now,
    }


def _stage_documents(statistics: VersionStatistics) -> Iterator[tuple[str, Json]]:
    for stage in Stage:
        histogram = statistics.stages.get(stage)
        yield stage.value, _histogram_document(histogram)


def _histogram_document(histogram: HistogramValue | None) -> dict[str, Json]:
    if histogram is None or not any(histogram.counts):
        return {"count": 0, "sum_ns": 0, "p50_us": None, "p99_us": None, "counts": []}
    counts = list(histogram.counts)
    while not counts[-1]:
        counts.pop()
    return {
        "count": sum(counts),
        "sum_ns": histogram.sum_ns,
        "p50_us": histogram.quantile_ns(0.50) / 1_000,
        "p99_us": histogram.quantile_ns(0.99) / 1_000,
        "counts": list[Json](counts),
    }
