"""Every figure of a snapshot as Prometheus families; those of queues, workers, rollouts, memory and the store are
here. Pure. docs/METRICS.md describes each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from appliance.config.telemetry import MetricsConfig
from appliance.core.memory.footprint import Residency
from appliance.domain.model import VersionState
from appliance.telemetry.metrics.devices import device_families, energy_families
from appliance.telemetry.metrics.exposition import Family, family, label_text, singles, split
from appliance.telemetry.metrics.front_end import (
    front_end_families,
    http_families,
    quota_families,
    trace_families,
)
from appliance.telemetry.metrics.versions import Labelled, triton_families, version_families
from appliance.telemetry.snapshot import (
    EngineStatus,
    ResidencyFigures,
    SlotUse,
    Snapshot,
    StoreFigures,
    SwapFigures,
    VersionStatus,
    WorkerStatus,
)

Version = tuple[str, VersionStatus]
"""A version with its labels."""


def snapshot_families(
    snapshot: Snapshot, versions: Sequence[Labelled], config: MetricsConfig, *, exemplars: bool = False
) -> Iterator[Family]:
    """Everything countable; ``versions`` are those of the snapshot, in order. Only OpenMetrics can say
    ``exemplars``."""
    status = snapshot.engine
    known = snapshot.traces.exemplars if exemplars and snapshot.traces is not None else {}
    pairs = [(each.labels, version) for each, version in zip(versions, status.versions, strict=True)]
    yield from _engine_families(status)
    yield from _slot_families(status.slots)
    yield from _worker_families(status.workers)
    yield from _state_families(pairs)
    yield from _swap_families(status.swaps)
    yield from _trial_families(pairs)
    yield _forms(pairs)
    yield from _residency_families(status.residency)
    yield from version_families(versions, known, stages=config.stage_histograms)
    if config.triton_names:
        yield from triton_families(versions, [version.queued for version in status.versions])
    yield from http_families(snapshot.http)
    yield from front_end_families(snapshot.front_end)
    meaning = "When the certificate of the port's server ends, in seconds since 1970."
    yield split("appliance_certificate_expiry_timestamp_seconds", meaning, "port", snapshot.certificates)
    yield from device_families(snapshot.devices)
    yield from energy_families(snapshot)
    if snapshot.store is not None:
        yield from _store_families(snapshot.store)
    if snapshot.quotas is not None:
        yield from quota_families(snapshot.quotas)
    if snapshot.traces is not None:
        yield from trace_families(snapshot.traces)


def _engine_families(status: EngineStatus) -> Iterator[Family]:
    accepting = "1 while new requests are welcome, 0 from the signal to stop on."
    return singles(
        [
            ("appliance_accepting", accepting, int(status.accepting)),
            ("appliance_queue_requests", "Requests waiting.", status.queued_requests),
            ("appliance_queue_bytes", "Bytes of waiting requests.", status.queued_bytes),
            ("appliance_batch_keys", "Shapes of requests whose times are learned.", status.batch_keys),
            ("appliance_running_requests", "Requests with a worker.", status.running_requests),
            ("appliance_arena_used_bytes", "Shared memory in use for tensors.", status.arena_used_bytes),
            (
                "appliance_arena_limit_bytes",
                "Shared memory there may be for tensors.",
                status.arena_limit_bytes,
            ),
        ]
    )


def _worker_families(workers: Iterable[WorkerStatus]) -> Iterator[Family]:
    """By their places, which stay when a worker is replaced; one family says which models are where."""
    pairs = [(label_text({"worker": str(worker.place)}), worker) for worker in workers]
    held = [(labels, key.rpartition("/")) for labels, worker in pairs for key in worker.models]
    models = [
        (f"{labels},{label_text({'model': name, 'version': number})}", 1)
        for labels, (name, _, number) in held
    ]
    yield family("appliance_worker_info", "Which versions the worker holds; always 1.", models)
    ups = [(labels, int(worker.pid > 0)) for labels, worker in pairs]
    yield family("appliance_worker_up", "1 while the worker has a process.", ups)
    memory = [(labels, worker.memory_bytes) for labels, worker in pairs]
    meaning = "Private memory of the worker process; 0: unknown."
    yield family("appliance_worker_memory_bytes", meaning, memory)
    asked = [(f'{labels},by="engine"', worker.use.asked) for labels, worker in pairs]
    leased = [(f'{labels},by="lease"', worker.use.leased) for labels, worker in pairs]
    meaning = "Requests that the worker got, from the engine or from the front end under a lease."
    yield family("appliance_worker_requests_total", meaning, [*asked, *leased])
    now = [(labels, int(worker.use.leased_now)) for labels, worker in pairs]
    meaning = "1 while the front end may give the worker requests without asking the engine."
    yield family("appliance_worker_leased", meaning, now)


def _slot_families(slots: Sequence[SlotUse]) -> Iterator[Family]:
    kept = {str(slot.size_bytes): slot.slots for slot in slots}
    meaning = "Places that the front end keeps for requests under leases."
    yield split("appliance_front_end_slots", meaning, "bytes", kept)
    free = {str(slot.size_bytes): slot.slots - slot.used for slot in slots}
    yield split("appliance_front_end_free_slots", "Those of them that are free.", "bytes", free)


def _state_families(pairs: Sequence[Version]) -> Iterator[Family]:
    states = (
        (f'{label},state="{state.value}"', int(version.state is state))
        for label, version in pairs
        for state in VersionState
    )
    meaning = "1 for the state that the version is in, 0 for the others."
    yield family("appliance_version_state", meaning, states)
    queued = [(label, version.queued) for label, version in pairs]
    yield family("appliance_version_queued_requests", "Requests waiting for the version.", queued)
    running = [(label, version.running) for label, version in pairs]
    yield family("appliance_version_running_requests", "Requests of the version with a worker.", running)
    held = [(label, version.held_clients) for label, version in pairs]
    meaning = "Clients that are refused for a while, because their requests ended workers of the version."
    yield family("appliance_version_held_clients", meaning, held)
    restarts = (
        (f"{label},{label_text({'cause': cause})}", count)
        for label, version in pairs
        for cause, count in version.restarts.items()
    )
    meaning = "Workers that held the version and were started again, by why the ones before had ended."
    yield family("appliance_version_restarts_total", meaning, restarts)
    memory = [(label, version.memory_bytes) for label, version in pairs]
    meaning = "Memory that the version takes now, with its processes."
    yield family("appliance_version_memory_bytes", meaning, memory)
    weights = [(label, version.weights_bytes) for label, version in pairs]
    yield family("appliance_version_weights_bytes", "Its weights among that.", weights)


def _swap_families(swaps: SwapFigures) -> Iterator[Family]:
    """What became of versions on their way to serving."""
    endings = dict(sorted(swaps.endings.items()))
    yield split("appliance_swaps_total", "Tries of versions that ended, by how.", "ending", endings)
    yield from singles(
        [
            ("appliance_loads_total", "Loads of versions that came through.", swaps.loads),
            ("appliance_load_seconds_total", "Time they took.", swaps.load_ns / 1e9),
            (
                "appliance_swap_retries_total",
                "Tries of versions that had been given up, because nothing else of their models served.",
                swaps.retries,
            ),
            ("appliance_canary_requests_total", "Requests led to versions on trial.", swaps.canary_requests),
        ]
    )
    assessed = {"held": swaps.assessments - swaps.assessments_failed, "failed": swaps.assessments_failed}
    meaning = "Versions held to what they promise."
    yield split("appliance_assessments_total", meaning, "outcome", assessed)
    shadow = {"run": swaps.shadow_requests, "dropped": swaps.shadow_dropped}
    meaning = "Requests run in the shadow, or left out."
    yield split("appliance_shadow_requests_total", meaning, "outcome", shadow)
    answers = {"alike": swaps.compared - swaps.differing, "different": swaps.differing}
    meaning = "Answers compared in the shadow."
    yield split("appliance_shadow_answers_total", meaning, "outcome", answers)


def _trial_families(pairs: Sequence[Version]) -> Iterator[Family]:
    fallen = [(label, version.fallen_back) for label, version in pairs]
    meaning = "Requests that failed on the version and were answered by the one before."
    yield family("appliance_version_fallbacks_total", meaning, fallen)
    left = [(label, version.tries_left) for label, version in pairs]
    meaning = "How often the version may still be tried before it is given up."
    yield family("appliance_version_tries_left", meaning, left)
    next_tries = [(label, version.next_try_ms / 1_000) for label, version in pairs if version.next_try_ms]
    meaning = "When the version that was given up is tried again, in seconds since 1970."
    yield family("appliance_version_next_try_timestamp_seconds", meaning, next_tries)
    trials = [
        (f"{label},{label_text({'stage': version.trial.stage})}", 1)
        for label, version in pairs
        if version.trial
    ]
    meaning = "1 for the stage of its trial that the version is in."
    yield family("appliance_version_trial", meaning, trials)


def _forms(pairs: Sequence[Version]) -> Family:
    forms = (
        (f'{label},residency="{form.value}"', int(version.residency == form.value))
        for label, version in pairs
        for form in Residency
    )
    meaning = "1 for how much of the version is in memory, 0 for the others."
    return family("appliance_version_residency", meaning, forms)


def _residency_families(own: ResidencyFigures) -> Iterator[Family]:
    """Models in and out of memory."""
    yield from singles(
        [
            ("appliance_residency_budget_bytes", "Memory there is for models and workers.", own.budget_bytes),
            ("appliance_residency_used_bytes", "Memory that models and workers take.", own.used_bytes),
            (
                "appliance_residency_weights_evicted_bytes",
                "Weights that models in memory are without.",
                own.weights_evicted_bytes,
            ),
            ("appliance_residency_waiting_requests", "Requests that wait for models.", own.waiting),
            ("appliance_residency_waiting_bytes", "Bytes of those requests.", own.waiting_bytes),
            ("appliance_residency_misses_total", "Requests for models not in memory.", own.misses),
            ("appliance_residency_refused_total", "Those that did not wait.", own.refused),
            ("appliance_residency_loads_total", "Models loaded to serve again.", own.loads),
            ("appliance_residency_page_ins_total", "Models whose weights came back.", own.page_ins),
            ("appliance_residency_paged_in_bytes_total", "Bytes read for that.", own.paged_in_bytes),
            (
                "appliance_weights_verified_total",
                "Files of weights read into memory and found to be as they were stored.",
                own.verified,
            ),
            ("appliance_weights_verified_bytes_total", "Bytes of those.", own.verified_bytes),
            (
                "appliance_weights_not_as_stored_total",
                "Files of weights that were not, or could not be read.",
                own.not_as_stored,
            ),
        ]
    )
    evictions = {Residency.WEIGHTS_EVICTED.value: own.evictions, Residency.COLD.value: own.unloads}
    meaning = "Models that left memory, and how far."
    yield split("appliance_residency_evictions_total", meaning, "to", evictions)


def _store_families(own: StoreFigures) -> Iterator[Family]:
    """The store that is served from."""
    made = [
        (label_text({"model": each.name, "version": str(each.version), "artifact": each.kind}), each.made_s)
        for each in own.artifacts
    ]
    meaning = "When what the store has of a version that shall be served was made, in seconds since 1970."
    yield family("appliance_store_artifact_timestamp_seconds", meaning, made)
    yield from singles(
        [
            ("appliance_store_versions", "Versions that are installed.", own.versions),
            ("appliance_store_wanted_versions", "Installed versions that shall be served.", own.wanted),
            (
                "appliance_store_unsigned_versions",
                "Installed versions without a trusted signature.",
                own.unsigned,
            ),
            ("appliance_store_bytes", "Bytes of the blobs of installed versions.", own.bytes),
            ("appliance_store_taken_bytes", "Bytes of all blobs and packed forms.", own.taken_bytes),
            ("appliance_store_quota_bytes", "Most bytes that these may be; 0: no bound.", own.quota_bytes),
            ("appliance_store_free_bytes", "Bytes that are free on the store's disk.", own.free_bytes),
            ("appliance_store_free_floor_bytes", "Those of them that stay free.", own.free_floor_bytes),
            ("appliance_store_damaged_blobs", "Blobs that are not what their name says.", own.damaged),
            ("appliance_store_scrubs_total", "Passes of the scrub that ended.", own.passes),
            ("appliance_store_scrub_failures_total", "Passes of the scrub that failed.", own.failures),
            (
                "appliance_store_scrubbed_timestamp_seconds",
                "When the last pass of the scrub ended; 0: never.",
                own.scrubbed_at_s,
            ),
            (
                "appliance_store_generation",
                "Number of the catalog that is served; each change counts one up.",
                own.generation,
            ),
            (
                "appliance_store_unreadable",
                "Whether the catalog cannot be read at present.",
                int(bool(own.trouble)),
            ),
        ]
    )
