"""``/metrics``: every figure of the engine and of this edge in the Prometheus text format, sent in slices.

A scrape runs on the loop that serves requests. It is one snapshot, and then text in slices of well under a
millisecond with everybody's turn between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from appliance.config.metrics import MetricsConfig
from appliance.domain.model import VersionState
from appliance.engine.port import EnginePort, EngineStatus, SlotUse, VersionStatus, WorkerStatus
from appliance.frontend.http.compression import compressor, response_encoding
from appliance.frontend.http.overview import overview
from appliance.frontend.http.quota_metrics import quota_families
from appliance.frontend.http.residency_metrics import residency_families
from appliance.frontend.http.swap_metrics import swap_families
from appliance.frontend.quota.quotas import Quotas
from appliance.telemetry.door_metrics import DoorFigures, door_families
from appliance.telemetry.exposition import CONTENT_TYPE, Family, exposition, label_text, sample
from appliance.telemetry.prometheus import ProcessMetrics
from appliance.telemetry.store_metrics import StoreFigures, store_families
from appliance.telemetry.trace import Tracer
from appliance.telemetry.trace_metrics import trace_family
from appliance.telemetry.triton_metrics import triton_families
from appliance.telemetry.version_metrics import Labelled, labelled, version_families

SLICE_CHARACTERS: Final = 32 * 1024
SLICE_VERSIONS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStatistics:
    """This edge's own figures: answers by status code, TLS handshakes that came to nothing by why, and what is open
    now."""

    answers: tuple[tuple[int, int], ...]
    handshakes: tuple[tuple[str, int], ...]
    connections: int
    refused_connections: int
    in_flight: int
    body_bytes: int
    answer_bytes: int
    refused_answers: int


class MetricsHandler:
    """Handles ``GET /metrics``. ``own`` and ``door`` give the figures of this edge and of the gRPC door,
    ``store`` those of the store that is served from; ``tracer`` knows those of traces, ``quotas`` those of quotas."""

    def __init__(
        self,
        engine: EnginePort,
        config: MetricsConfig,
        own: Callable[[], HttpStatistics],
        door: Callable[[], DoorFigures] | None,
        store: Callable[[], StoreFigures] | None = None,
        tracer: Tracer | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas
        self._engine = engine
        self._tracer = tracer
        self._door = door
        self._store = store
        self._config = config
        self._own = own
        self._process = ProcessMetrics()

    async def metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        """All families."""
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        coding = response_encoding(request.headers.get("Accept-Encoding", ""), tensors=False)
        if coding:
            response.headers["Content-Encoding"] = coding
        await response.prepare(request)
        if request.method != "HEAD":
            status = overview(self._engine)
            await _write(response, self._text(status, await _all_labelled(status)), coding)
        await response.write_eof()
        return response

    def _text(self, status: EngineStatus, versions: Sequence[Labelled]) -> Iterator[str]:
        yield self._process.text()
        yield from exposition(engine_families(status, versions, self._config))
        yield from exposition(http_families(self._own()))
        if self._door is not None:
            yield from exposition(door_families(self._door()))
        if self._store is not None:
            yield from exposition(store_families(self._store()))
        if self._quotas is not None:
            yield from exposition(quota_families(self._quotas.figures()))
        if self._tracer is not None:
            yield from exposition([trace_family(self._tracer.figures())])


async def _all_labelled(status: EngineStatus) -> list[Labelled]:
    versions: list[Labelled] = []
    for version in status.versions:
        versions.append(labelled(version.statistics))
        if len(versions) % SLICE_VERSIONS == 0:
            await asyncio.sleep(0)
    return versions


async def _write(response: web.StreamResponse, pieces: Iterable[str], coding: str) -> None:
    squeeze = compressor(coding) if coding else None
    for text in _slices(pieces):
        data = text.encode()
        if squeeze is not None:
            data = squeeze.compress(data)
        if data:
            await response.write(data)
        await asyncio.sleep(0)
    if squeeze is not None:
        await response.write(squeeze.flush())


def _slices(pieces: Iterable[str]) -> Iterator[str]:
    gathered: list[str] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= SLICE_CHARACTERS:
            yield "".join(gathered)
            gathered, size = [], 0
    yield "".join(gathered)


def engine_families(
    status: EngineStatus, versions: Sequence[Labelled], config: MetricsConfig
) -> Iterator[Family]:
    """Everything the engine tells, as Prometheus families; ``versions`` are those of ``status``, in order."""
    yield _gauge(
        "appliance_accepting", "1 while new requests are taken, 0 while draining.", int(status.accepting)
    )
    yield _gauge("appliance_queue_requests", "Requests waiting.", status.queued_requests)
    yield _gauge("appliance_queue_bytes", "Bytes of waiting requests.", status.queued_bytes)
    yield _gauge("appliance_running_requests", "Requests with a worker.", status.running_requests)
    yield _gauge("appliance_arena_used_bytes", "Shared memory in use for tensors.", status.arena_used_bytes)
    yield _gauge(
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


def http_families(own: HttpStatistics) -> Iterator[Family]:
    """This edge's own figures as Prometheus families."""
    codes = [(label_text({"code": str(code)}), count) for code, count in own.answers]
    yield _family("appliance_http_responses_total", "counter", "HTTP answers, by status code.", codes)
    yield _gauge("appliance_http_connections", "Open HTTP connections.", own.connections)
    yield _gauge("appliance_http_in_flight_requests", "HTTP requests being handled.", own.in_flight)
    yield _gauge("appliance_http_body_bytes", "Bytes held in HTTP request bodies.", own.body_bytes)
    meaning = "Bytes of HTTP answers to inferences that clients have yet to take."
    yield _gauge("appliance_http_answer_bytes", meaning, own.answer_bytes)
    meaning = "Inferences refused because such answers held all the memory there may be for them."
    yield _family("appliance_http_refused_answers_total", "counter", meaning, [("", own.refused_answers)])
    meaning = "HTTP connections closed at once because there were too many."
    reasons = [(label_text({"reason": reason}), count) for reason, count in own.handshakes]
    yield _family(
        "appliance_http_failed_handshakes_total", "counter", "TLS handshakes that failed, by why.", reasons
    )
    refused = [("", own.refused_connections)]
    yield _family("appliance_http_refused_connections_total", "counter", meaning, refused)


def _family(name: str, kind: str, meaning: str, values: Iterable[tuple[str, int]]) -> Family:
    """A family of one line per (labels, value)."""
    return Family(name, kind, meaning, (sample(name, labels, value) for labels, value in values))


def _gauge(name: str, meaning: str, value: int) -> Family:
    return _family(name, "gauge", meaning, [("", value)])


def _worker_families(workers: Iterable[WorkerStatus]) -> Iterator[Family]:
    pairs = [(label_text({"worker": str(worker.worker)}), worker) for worker in workers]
    ups = [(labels, int(worker.pid > 0)) for labels, worker in pairs]
    yield _family("appliance_worker_up", "gauge", "1 while the worker has a process.", ups)
    memory = [(labels, worker.memory_bytes) for labels, worker in pairs]
    meaning = "Private memory of the worker process; 0: unknown."
    yield _family("appliance_worker_memory_bytes", "gauge", meaning, memory)
    restarts = [(labels, worker.restarts) for labels, worker in pairs]
    meaning = "Times the worker was started again after it died."
    yield _family("appliance_worker_restarts_total", "counter", meaning, restarts)
    asked = [(f'{labels},by="engine"', worker.use.asked) for labels, worker in pairs]
    granted = [(f'{labels},by="grant"', worker.use.granted) for labels, worker in pairs]
    meaning = "Requests that the worker got, from the engine or from the door under a grant."
    yield _family("appliance_worker_requests_total", "counter", meaning, [*asked, *granted])
    now = [(labels, int(worker.use.granted_now)) for labels, worker in pairs]
    meaning = "1 while the door may give the worker requests without asking the engine."
    yield _family("appliance_worker_granted", "gauge", meaning, now)


def _slot_families(slots: Iterable[SlotUse]) -> Iterator[Family]:
    pairs = [(label_text({"bytes": str(slot.size_bytes)}), slot) for slot in slots]
    kept = [(labels, slot.slots) for labels, slot in pairs]
    yield _family(
        "appliance_door_slots", "gauge", "Places that the door keeps for requests under grants.", kept
    )
    free = [(labels, slot.slots - slot.used) for labels, slot in pairs]
    yield _family("appliance_door_free_slots", "gauge", "Those of them that are free.", free)


def _state_families(versions: Iterable[VersionStatus], labels: Iterable[str]) -> Iterator[Family]:
    pairs = list(zip(labels, versions, strict=True))
    states = (
        (f'{label},state="{state.value}"', int(version.state is state))
        for label, version in pairs
        for state in VersionState
    )
    meaning = "1 for the state that the version is in, 0 for the others."
    yield _family("appliance_version_state", "gauge", meaning, states)
    queued = [(label, version.queued) for label, version in pairs]
    yield _family("appliance_version_queued_requests", "gauge", "Requests waiting for the version.", queued)
    running = [(label, version.running) for label, version in pairs]
    meaning = "Requests of the version with a worker."
    yield _family("appliance_version_running_requests", "gauge", meaning, running)
