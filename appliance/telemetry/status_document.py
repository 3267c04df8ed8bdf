"""The JSON document behind ``/status.json``: the engine's status as plain JSON values.

Pure. ``docs/STATUS.md`` describes every field; ``FORMAT`` changes when a field changes its meaning or goes
away, not when one is added. Counters only grow while the appliance runs: a reader takes two documents and
subtracts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import Enum

from appliance import __version__
from appliance.devices.energy import METHOD, WINDOW_S
from appliance.devices.rapl import METHOD as RAPL
from appliance.domain.device_reading import DeviceFigures, VersionEnergy, fault_words, troubles
from appliance.domain.energy import ProcessorEnergy, inference_energy
from appliance.domain.histogram import BOUNDS_US, HistogramValue
from appliance.domain.protocol import SERVER_NAME
from appliance.fleet.membership import Membership
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

Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


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
        "fleet": _fleet_document(snapshot.membership),
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
        "processor": _processor_document(snapshot.processor, snapshot.kwh_price),
        "certificates": dict(snapshot.certificates),
        "notices": list(notices(snapshot)),
        "quotas": None if quotas is None else _quotas_document(quotas),
        "bounds_us": list(BOUNDS_US),
        "workers": [_worker_document(worker) for worker in status.workers],
    }


def _fleet_document(membership: Membership | None) -> Json:
    return None if membership is None else {"device": membership.device, "group": membership.group}


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
        "golden": None
        if version.golden is None
        else {"cases": version.golden.cases, "failure": version.golden.failure},
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


def device_document(figures: DeviceFigures, kwh_price: float) -> dict[str, Json]:
    """One entry of ``devices``; what the driver does not tell is left out."""
    device, reading = asdict(figures.device), asdict(figures.reading)
    device["instance_of"] = figures.device.instance_of or None
    known = {key: _json(value) for key, value in (device | reading).items() if value is not None}
    energy: dict[str, Json] = {name: _used(each, kwh_price) for name, each in figures.energy.items()}
    how: dict[str, Json] = {"method": METHOD, "window_s_min": WINDOW_S, "idle_w": figures.idle_w}
    shares = {
        "budget_bytes": figures.budget_bytes,
        "others_bytes": figures.others_bytes,
        "unsaid_bytes": figures.unsaid_bytes,
    }
    known |= {key: size for key, size in shares.items() if size is not None}
    if words := fault_words(figures.reading):
        known["fault"] = words
    if figures.slow:
        known["slow"] = figures.slow
    return {**known, "troubles": list(troubles(figures.reading)), "energy": {**how, "models": energy}}


def _processor_document(energy: ProcessorEnergy | None, kwh_price: float) -> Json:
    """The value of ``processor``."""
    if energy is None:
        return None
    models: dict[str, Json] = {name: _used(each, kwh_price) for name, each in energy.versions.items()}
    how: dict[str, Json] = {"method": RAPL, "window_s_min": WINDOW_S, "idle_w": energy.idle_w}
    return {"energy": {**how, "models": models}}


def _used(used: VersionEnergy, kwh_price: float) -> dict[str, Json]:
    """The cost is left out where it is not known."""
    each = inference_energy(used, kwh_price)
    said: dict[str, Json] = {
        "joules": used.joules,
        "inferences": used.inferences,
        "window_s": used.window_s,
        "joules_per_inference": used.per_inference_j,
    }
    if each is not None and each.cost_per_million is not None:
        said["cost_per_million_inferences"] = each.cost_per_million
    return said


def _json(value: object) -> Json:
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items() if each is not None}
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return list(value)
    assert isinstance(value, bool | int | float | str)
    return value


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
