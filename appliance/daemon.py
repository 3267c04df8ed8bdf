"""The serving daemon: the composition root that opens everything in order and closes it front end first.

Start: workers (the zygote is executed before any socket listens), models, then the front end. Stop: health turns
NOT_SERVING, what was accepted is answered within the grace, the front end closes, workers leave, the arena goes.
SIGTERM and SIGINT drain, a second one cuts the grace short, and one during the start ends that; SIGHUP reads the models
again, once the front end is open if it came before.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from appliance.config.listening import FrontEndKind
from appliance.config.tree import ApplianceConfig
from appliance.core.memory.policy import ResidencyPolicy
from appliance.core.memory.waits import Budget
from appliance.core.processes.restart import RestartPolicy
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.binding import extended
from appliance.domain.errors import OperatorError, WorkerError
from appliance.engine.control.costs import Costs
from appliance.engine.control.model_cache import HOST, ResidencyTerms
from appliance.engine.control.recorder import SwapTerms
from appliance.engine.engine import Engine, EngineTerms
from appliance.engine.environment import Shell
from appliance.engine.port import IndexEntry
from appliance.engine.ticker import Ticker
from appliance.engine.versions.environment_fingerprint import EnvironmentFingerprint, this_cpu
from appliance.engine.versions.record_files import FileRecords
from appliance.engine.versions.records import MemoryRecords, Records
from appliance.frontend.choice import (
    chosen,
    lane_memory,
    make_control_socket,
    make_front_end,
    make_quotas,
    passed_over,
)
from appliance.frontend.listening.descriptors import (
    descriptor_limit,
    descriptor_shortage,
    raise_descriptor_limit,
)
from appliance.frontend.port import Backend, Bound
from appliance.frontend.quota.quotas import Quotas
from appliance.maintenance.interpreter import RESERVE_BYTES, Collector, reserve
from appliance.maintenance.scrubbing import Scrubbing, store_figures
from appliance.reconciler.reconciler import Reconciler
from appliance.repository.directory import RepositoryScan
from appliance.rereading import Rereading
from appliance.shutdown import Shutdown, first_of
from appliance.sources.directory import DirectorySource
from appliance.sources.source import Source
from appliance.sources.store import StoreSource
from appliance.store.layout import SERVE
from appliance.store.running import RunningVersion
from appliance.telemetry.log import LogControl, configure
from appliance.telemetry.notify import notify
from appliance.telemetry.snapshot import Meters, StoreFigures
from appliance.telemetry.trace import Tracer, open_tracer
from appliance.workers.arena import Arena
from appliance.workers.daemon.machine import free_bytes, memory_bytes
from appliance.workers.daemon.pool import WorkerPool
from appliance.workers.memory import MemorySamples
from appliance.workers.port import PoolEvent, worker_settings
from appliance.workers.priority import SHORT_TURN_NS, take_turns

EXIT_OK = 0
EXIT_OPERATOR = 2
EXIT_SOFTWARE = 70
DRAIN_POLL_S = 0.005
SWITCH_INTERVAL_S = 0.0005
"""How long the event loop waits at most for a thread that has the interpreter, as while a model's files are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What the daemon tells whoever started it, once the first load has settled. ``bound`` is where the front end
    listens."""

    front_end: FrontEndKind
    bound: Bound
    index: tuple[IndexEntry, ...]


def run(
    config: ApplianceConfig,
    announce: Callable[[Started], None] = lambda started: None,
    reread: Callable[[], ApplianceConfig] | None = None,
) -> int:
    """Serve until told to stop; gives the exit status: 0, 2 when the configuration or the environment is wrong, 70 when
    the engine or the front end failed and a new start is the only cure. ``reread`` reads the configuration again, of
    which clients' quotas are taken over at SIGHUP, which the caller may block until then."""
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    take_turns(SHORT_TURN_NS)  # all its threads: the runs of large models have the same processors
    try:
        log = configure(config.log)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, log, announce, reread))
    except OperatorError as error:
        print(f"appliance: {error}", file=sys.stderr)
        return EXIT_OPERATOR


async def _serve(
    config: ApplianceConfig,
    log: LogControl,
    announce: Callable[[Started], None],
    reread: Callable[[], ApplianceConfig] | None,
) -> int:
    try:
        return await Daemon(config, log, reread).serve(announce)
    except OperatorError as error:
        if config.log.file:  # else both would be told at one place
            log.event("cannot serve", error=str(error))
        raise


class Daemon:
    """Owns every part of the running daemon. Made inside a running event loop."""

    def __init__(
        self,
        config: ApplianceConfig,
        log: LogControl,
        reread: Callable[[], ApplianceConfig] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._end = Shutdown(log)
        self._config = config
        self._log = log
        arena = Arena(config.arena)
        tracer = open_tracer(config.trace, log.event)
        self._ticker = Ticker(loop, partial(self._end.failed_part, "the engine"))
        kind = chosen(config.frontend.kind)
        self._pool = WorkerPool(
            arena,
            config.workers,
            loop,
            self._on_worker,
            config.repository.runtimes,
            rings=lane_memory(kind),
        )
        records = self._open_records()
        self._engine = self._make_engine(arena, records, tracer)
        source = self._source()
        self._scrubbing: Scrubbing | None = None
        figures: Callable[[], StoreFigures] | None = None
        if isinstance(source, StoreSource):
            self._scrubbing = Scrubbing(Path(config.state_dir), config.store, wall_ms, log.event)
            figures = partial(self._figures, source, self._scrubbing)
        backend = Backend(
            engine=self._engine,
            log=log,
            read=lambda: self._meters.read(),  # noqa: PLW0108  they are made later
            metrics=config.metrics,
            tracer=tracer,
        )
        quotas = make_quotas(kind, config.quotas, log.event)
        self._front_end = make_front_end(
            kind,
            backend,
            config,
            partial(self._end.failed_part, "the native front end"),
            self._engine.leases,
            quotas,
        )
        self._meters = self._make_meters(figures, quotas, tracer)
        self._reconciler = Reconciler(
            source, self._engine, config.reload, config.repository, records, log.event
        )
        self._control = make_control_socket(backend, config.control, self._reconciler)
        self._rereading = Rereading(
            self._reconciler,
            self._front_end,
            quotas,
            reread,
            log,
            partial(self._end.failed_part, "reading the models"),
        )
        self._collector = Collector(loop, lambda: self._engine.live_requests > 0)
        self._room: list[bytes] = []
        self._closing = self._steps(arena, records, tracer)

    async def serve(self, announce: Callable[[Started], None]) -> int:
        """Open, serve until a signal, drain, close; gives the exit status. Raises OperatorError when it cannot open."""
        self._catch_stop()
        try:
            first = await self._unless_stopped(self._prepare())
            if first is not None:
                await self._open_and_serve(first, announce)
        finally:
            await self._close()
        return EXIT_SOFTWARE if self._end.failed else EXIT_OK

    async def _prepare(self) -> RepositoryScan:
        """What the source holds, once workers can be had. Raises OperatorError."""
        self._warn_of_fakes()
        self._warn_about_the_front_end()
        self._warn_of_few_descriptors()
        first = await self._reconciler.begin()
        try:
            await self._pool.open()
        except WorkerError as error:
            raise OperatorError(f"no worker can be started: {error}") from error
        return first

    async def _unless_stopped(self, work: Coroutine[Any, Any, RepositoryScan]) -> RepositoryScan | None:
        """What ``work`` comes to; None when a signal to stop comes first."""
        done = asyncio.Event()
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: done.set())
        await first_of(done, self._end.stop)
        if task.done():
            return task.result()
        notify(STOPPING="1")
        task.cancel()
        await asyncio.wait([task])
        return None

    async def _open_and_serve(self, first: RepositoryScan, announce: Callable[[Started], None]) -> None:
        self._ticker.attach(self._engine)
        self._reconciler.take(first)
        bound = await self._front_end.open()
        if self._control is not None:
            await self._control.open()
        self._catch_reload()
        await self._first_load()
        if not self._end.stop.is_set():  # who waits there is for the next start then
            self._front_end.admit()
        self._reconciler.watch()
        if self._scrubbing is not None:
            self._scrubbing.start()
        self._collector.calm()
        self._room = reserve(RESERVE_BYTES)
        self._engine.watch(self._collector.changed)
        self._announce(
            announce,
            Started(
                front_end=chosen(self._config.frontend.kind),
                bound=bound,
                index=self._engine.index(ready_only=False),
            ),
        )
        await self._end.stop.wait()
        if not self._end.failed:
            await self._end.step("draining", self._drain)

    def _announce(self, announce: Callable[[Started], None], started: Started) -> None:
        self._log.event(
            "serving",
            front_end=started.front_end.value,
            grpc=list(started.bound.grpc),
            http=list(started.bound.http),
            models=len(started.index),
        )
        grpc, http = map(" ".join, started.bound)
        notify(
            READY="1",
            STATUS=f"serving gRPC on {grpc}, HTTP on {http} ({started.front_end.value} front end)",
        )
        self._rereading.announced = True
        announce(started)

    async def _first_load(self) -> None:
        """Wait until every model serves or was given up, or until a signal."""
        settled = asyncio.Event()
        end = self._engine.watch(lambda: settled.set() if self._engine.ready else None)
        try:
            if not self._engine.ready:
                await first_of(settled, self._end.stop)
        finally:
            end()

    # --- signals

    def _catch_stop(self) -> None:
        """The system keeps a SIGHUP that comes from here on until ``_catch_reload``."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end.asked)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])

    def _catch_reload(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])

    def _on_reload(self) -> None:
        if not self._end.stop.is_set():
            self._rereading.begin(self._config.place)

    # --- the end

    async def _drain(self) -> None:
        """Answer what was accepted. Health turns first; then gRPC refuses; then we wait, bounded by the grace."""
        self._rereading.announced = False
        notify(STOPPING="1")
        self._log.event("draining", requests=self._engine.live_requests)
        self._front_end.announce_stop()
        await self._end.step("the end of looking at the models", self._reconciler.stop)
        await first_of(self._end.hurry, timeout_s=self._config.daemon.drain_notice_s)
        self._engine.drain()
        deadline = time.monotonic() + self._config.daemon.drain_grace_s
        while self._engine.live_requests and time.monotonic() < deadline and not self._end.hurry.is_set():
            await first_of(self._end.hurry, timeout_s=DRAIN_POLL_S)
        left = max(0.1, deadline - time.monotonic())
        if self._engine.live_requests:
            self._log.event("grace is over", requests=self._engine.live_requests)
        await self._front_end.drain(left)

    async def _close(self) -> None:
        """Close every part, front end first, whatever becomes of the others."""
        for what, close in self._closing:
            await self._end.step(what, close)
        self._log.event("stopped")

    def _steps(
        self, arena: Arena, records: Records, tracer: Tracer | None
    ) -> list[tuple[str, Callable[[], Awaitable[None] | None]]]:
        """How each part is closed, in order."""
        steps: list[tuple[str, Callable[[], Awaitable[None] | None]]] = []
        if self._scrubbing is not None:
            steps.append(("the end of scrubbing", self._scrubbing.stop))
        if self._control is not None:
            steps.append(("closing the operator's socket", self._control.close))
        steps += [
            ("closing the front end", self._front_end.close),
            ("stopping the workers", self._engine.stop_workers),
            ("the end of the workers", self._pool.close),
            ("closing the tensors' memory", arena.close),
            ("closing the collector", self._collector.close),
        ]
        if isinstance(records, FileRecords):
            steps.append(("writing the records", records.close))
        if tracer is not None:
            steps.append(("closing the traces", tracer.close))
        steps.append(("closing the models", self._reconciler.close))  # last: a disk that hangs holds it up
        return steps

    # --- small things

    def _make_engine(self, arena: Arena, records: Records, tracer: Tracer | None) -> Engine:
        config, environment = self._config, EnvironmentFingerprint(this_cpu())
        return Engine(
            terms=EngineTerms(
                engine=config.engine,
                placement=config.placement,
                supervisor=extended(RestartPolicy, config.supervisor),
                swap=SwapTerms(extended(RolloutPolicy, config.swap), records, environment),
                residency=_residency(config, Costs(records, environment)),
            ),
            scheduler=Scheduler(extended(Planning, config.scheduling)),
            arena=arena,
            pool=self._pool,
            settings=partial(worker_settings, config.workers),
            shell=Shell(
                clock=time.monotonic_ns,
                wall_ms=wall_ms,
                pace=self._ticker,
                memory_of=MemorySamples(time.monotonic_ns).private_bytes,
                log=self._log,
                tracer=tracer,
            ),
        )

    def _make_meters(
        self, store: Callable[[], StoreFigures] | None, quotas: Quotas | None, tracer: Tracer | None
    ) -> Meters:
        return Meters(
            engine=self._engine,
            front_end=self._front_end.figures,
            http=self._front_end.http_statistics,
            store=store,
            quotas=quotas.figures if quotas is not None else None,
            traces=tracer.figures if tracer is not None else None,
        )

    def _open_records(self) -> Records:
        """What is remembered of versions: where the state is, or for as long as this process lives."""
        if not self._config.state_dir:
            return MemoryRecords()
        folder = Path(self._config.state_dir).absolute() / SERVE
        return FileRecords(folder, asyncio.get_running_loop().call_soon_threadsafe, self._log.event)

    def _warn_of_fakes(self) -> None:
        """Its answers are made up: nobody shall take them for a model's."""
        if "fake" in self._config.repository.runtimes:
            reason = "repository.runtimes names it; remove 'fake' there unless this is a test"
            self._log.event("the fake runtime is for tests only", reason=reason)

    def _warn_about_the_front_end(self) -> None:
        """What was set or installed and is not used."""
        if reason := passed_over(self._config.frontend.kind):
            self._log.event("the native front end is passed over", reason=reason)
        http = self._config.http
        if self._config.grpc.tls_client_ca and http.addresses and not http.tls_client_ca:
            reason = "grpc.tls_client_ca asks nobody there; set http.tls_client_ca, or keep http.addresses on loopback"
            self._log.event("models can be asked over HTTP without a certificate", reason=reason)

    def _warn_of_few_descriptors(self) -> None:
        """An HTTP connection that the native front end passes on to Python is three."""
        each = 3 if chosen(self._config.frontend.kind) is FrontEndKind.NATIVE else 1
        connections = self._config.grpc.max_connections + each * self._config.http.max_connections
        if reason := descriptor_shortage(connections, descriptor_limit()):
            self._log.event("connections can use up the descriptors that workers need", reason=reason)

    def _source(self) -> Source:
        if not self._config.state_dir:
            return DirectorySource(Path(self._config.models), self._config.repository)
        state = Path(self._config.state_dir)
        return StoreSource(
            state, self._config.repository, self._held, self._report_unsaid, self._config.store
        )

    def _report_unsaid(self, problem: str) -> None:
        """Whoever looks at the store calls, in a thread of its own."""
        note = "until it can, the store's writer removes nothing"
        say = partial(self._log.event, "what runs cannot be written", error=problem, note=note)
        asyncio.get_running_loop().call_soon_threadsafe(say)

    def _figures(self, source: StoreSource, scrubbing: Scrubbing) -> StoreFigures:
        return store_figures(source.catalog, scrubbing, self._reconciler.generation, self._reconciler.trouble)

    def _held(self) -> list[RunningVersion]:
        return [
            RunningVersion(name=model.name, version=model.version, digest=model.digest)
            for model in self._engine.held()
            if model.digest
        ]

    def _on_worker(self, event: PoolEvent) -> None:
        self._engine.pool_event(event)


def wall_ms() -> int:
    """The wall clock, for people and estimates: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _residency(config: ApplianceConfig, costs: Costs) -> ResidencyTerms:
    policy = extended(ResidencyPolicy, config.residency)
    configured = bool(policy.budget_bytes)
    budget = Budget(HOST, _memory_for_models(config), configured=configured)
    return ResidencyTerms(policy, (budget,), lambda device: free_bytes(), costs)


def _memory_for_models(config: ApplianceConfig) -> int:
    """What models and their workers may take: as configured, or what this machine has beside everything else."""
    if config.residency.budget_bytes:
        return config.residency.budget_bytes
    limit = memory_bytes()
    if not limit:
        return 1 << 62
    others = config.residency.reserve_bytes + config.arena.memory_limit_bytes
    return max(limit - others, limit // 4)
