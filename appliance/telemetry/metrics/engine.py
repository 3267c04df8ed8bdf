"""Every figure of a snapshot as Prometheus families; those of queues, workers and states are here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from appliance.config.telemetry import MetricsConfig
from appliance.domain.model import VersionState
from appliance.telemetry.metrics.exposition import Family, family, gauge, label_text
from appliance.telemetry.metrics.front_end import front_end_families
from appliance.telemetry.metrics.http import http_families
from appliance.telemetry.metrics.memory import residency_families
from appliance.telemetry.metrics.quotas import quota_families
from appliance.telemetry.metrics.rollout import swap_families
from appliance.telemetry.metrics.store import store_families
from appliance.telemetry.metrics.traces import trace_family
from appliance.telemetry.metrics.triton import triton_families
from appliance.telemetry.metrics.versions import Labelled, version_families
from appliance.telemetry.snapshot import EngineStatus, SlotUse, Snapshot, VersionStatus, WorkerStatus


def snapshot_families(
    snapshot: Snapshot, versions: Sequence[Labelled], config: MetricsConfig
) -> Iterator[Family]:
    """Everything countable; ``versions`` are those of the snapshot, in order."""
    yield from engine_families(snapshot.engine, versions, config)
    yield from http_families(snapshot.http)
    yield from front_end_families(snapshot.front_end)
    if snapshot.store is not None:
        yield from store_families(snapshot.store)
    if snapshot.quotas is not None:
        yield from quota_families(snapshot.quotas)
    if snapshot.traces is not None:
        yield trace_family(snapshot.traces)


def engine_families(
    status: EngineStatus, versions: Sequence[Labelled], config: MetricsConfig
) -> Iterator[Family]:
    """Everything the engine tells, as Prometheus families; ``versions`` are those of ``status``, in order."""
    yield gauge(
        "appliance_accepting", "1 while new requests are taken, 0 while draining.", int(status.accepting)
    )
    yield gauge("appliance_queue_requests", "Requests waiting.", status.queued_requests)
    yield gauge("appliance_queue_bytes", "Bytes of waiting requests.", status.queued_bytes)
    yield gauge("appliance_running_requests", "Requests with a worker.", status.running_requests)
    yield gauge("appliance_arena_used_bytes", "Shared memory in use for tensors.", status.arena_used_bytes)
    yield gauge(
        "appliance_arena_limit_bytes", "Shared memory there may be for tensors.", status.arena_limit_bytes
    )
    yield from _slot_families(status.slots)
    yield from _worker_families(status.workers)
    labels = [version.labels for version in versions]
    yield from _state_families(status.versions, labels)
    yield from swap_families(status, labels)
    yield from residency_families(status, labels)
    yield from version_families(versions, stages=config.stage_histograms)
    if config.triton_names:
        yield from triton_families(versions, [version.queued for version in status.versions])


def _worker_families(workers: Iterable[WorkerStatus]) -> Iterator[Family]:
    pairs = [(label_text({"worker": str(worker.worker)}), worker) for worker in workers]
    ups = [(labels, int(worker.pid > 0)) for labels, worker in pairs]
    yield family("appliance_worker_up", "gauge", "1 while the worker has a process.", ups)
    memory = [(labels, worker.memory_bytes) for labels, worker in pairs]
    meaning = "Private memory of the worker process; 0: unknown."
    yield family("appliance_worker_memory_bytes", "gauge", meaning, memory)
    restarts = [(labels, worker.restarts) for labels, worker in pairs]
    meaning = "Times the worker was started again after it died."
    yield family("appliance_worker_restarts_total", "counter", meaning, restarts)
    asked = [(f'{labels},by="engine"', worker.use.asked) for labels, worker in pairs]
    leased = [(f'{labels},by="lease"', worker.use.leased) for labels, worker in pairs]
    meaning = "Requests that the worker got, from the engine or from the front end under a lease."
    yield family("appliance_worker_requests_total", "counter", meaning, [*asked, *leased])
    now = [(labels, int(worker.use.leased_now)) for labels, worker in pairs]
    meaning = "1 while the front end may give the worker requests without asking the engine."
    yield family("appliance_worker_leased", "gauge", meaning, now)


def _slot_families(slots: Iterable[SlotUse]) -> Iterator[Family]:
    pairs = [(label_text({"bytes": str(slot.size_bytes)}), slot) for slot in slots]
    kept = [(labels, slot.slots) for labels, slot in pairs]
    yield family(
        "appliance_front_end_slots",
        "gauge",
        "Places that the front end keeps for requests under leases.",
        kept,
    )
    free = [(labels, slot.slots - slot.used) for labels, slot in pairs]
    yield family("appliance_front_end_free_slots", "gauge", "Those of them that are free.", free)


def _state_families(versions: Iterable[VersionStatus], labels: Iterable[str]) -> Iterator[Family]:
    pairs = list(zip(labels, versions, strict=True))
    states = (
        (f'{label},state="{state.value}"', int(version.state is state))
        for label, version in pairs
        for state in VersionState
    )
    meaning = "1 for the state that the version is in, 0 for the others."
    yield family("appliance_version_state", "gauge", meaning, states)
    queued = [(label, version.queued) for label, version in pairs]
    yield family("appliance_version_queued_requests", "gauge", "Requests waiting for the version.", queued)
    running = [(label, version.running) for label, version in pairs]
    meaning = "Requests of the version with a worker."
    yield family("appliance_version_running_requests", "gauge", meaning, running)
