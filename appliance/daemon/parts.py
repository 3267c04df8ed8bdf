"""The parts of the daemon and how they are put together: the composition root.

Made inside a running event loop; nothing is opened yet. What is to be closed, and in which order, is said here, too.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

from appliance.config.repository import SettledRepository
from appliance.config.store import PackagesConfig, Unsigned
from appliance.config.tree import ApplianceConfig
from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.processes.restart import RestartPolicy
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.daemon.device_care import DeviceCare
from appliance.daemon.signals import Rereading, Shutdown
from appliance.devices.processor import ProcessorAccount
from appliance.devices.watch import DeviceWatch, find_devices
from appliance.domain.binding import extended
from appliance.domain.device import DeviceName
from appliance.domain.device_reading import DeviceState
from appliance.domain.energy import ProcessorEnergy
from appliance.engine.control.model_cache import HOST, ResidencyTerms
from appliance.engine.control.recorder import SwapTerms
from appliance.engine.control.sizes import Costs
from appliance.engine.engine import Engine, EngineTerms
from appliance.engine.environment import Shell
from appliance.engine.ticker import Ticker
from appliance.engine.versions.environment_fingerprint import EnvironmentFingerprint, this_cpu
from appliance.engine.versions.record_files import FileRecords
from appliance.engine.versions.records import MemoryRecords, Records
from appliance.fleet.membership import Membership
from appliance.frontend.choice import (
    ControlSocket,
    chosen,
    lane_memory,
    make_control_socket,
    make_front_end,
    make_quotas,
)
from appliance.frontend.listening.certificates import CertificateEnds
from appliance.frontend.listening.sockets import place_problem
from appliance.frontend.port import Backend, FrontEnd, Listening
from appliance.frontend.quotas import Quotas
from appliance.frontend.regions.registry import Regions
from appliance.frontend.regions.users import users_of
from appliance.maintenance.interpreter import Collector
from appliance.maintenance.scrubbing import Scrubbing
from appliance.maintenance.store_figures import store_figures
from appliance.process.memory import MemorySamples, free_bytes, memory_bytes
from appliance.reconciler.reconciler import Reconciler
from appliance.runtimes.auto_device import AutoDevice, settled
from appliance.sources.directory import DirectorySource
from appliance.sources.source import Source
from appliance.sources.store import StoreSource
from appliance.store.catalog import InstalledVersion
from appliance.store.layout import FORMS, SERVE, VIEWS
from appliance.store.privacy import Mended, check_own, keep_private
from appliance.store.running import RunningVersion
from appliance.telemetry.device_work import processor_energy
from appliance.telemetry.log import LogControl
from appliance.telemetry.outlet import Outlet, Sight
from appliance.telemetry.recent import RecentFigures
from appliance.telemetry.snapshot import EngineStatus, Meters, Snapshot, StoreFigures
from appliance.telemetry.trace import Tracer, open_tracer
from appliance.workers.arena import Arena
from appliance.workers.daemon.pool import WorkerPool
from appliance.workers.jail.user import workers_user
from appliance.workers.port import PoolEvent
from appliance.workers.seal import driver_changed
from appliance.workers.settings import WorkerTerms

Close = Callable[[], Awaitable[None] | None]
UNBOUNDED_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the daemon opens and runs. ``control``, ``scrubbing`` and ``outlet`` are None where there are none;
    ``closing`` says how each part is closed, in order."""

    ticker: Ticker
    pool: WorkerPool
    engine: Engine
    reconciler: Reconciler
    front_end: FrontEnd
    listening: Listening
    control: ControlSocket | None
    scrubbing: Scrubbing | None
    rereading: Rereading
    collector: Collector
    recent: RecentFigures
    devices: DeviceCare
    outlet: Outlet | None
    closing: tuple[tuple[str, Close], ...]


def make_parts(
    config: ApplianceConfig, log: LogControl, end: Shutdown, reread: Callable[[], ApplianceConfig] | None
) -> Parts:
    """Put everything together. ``end`` is told of parts that fail; ``reread`` reads the configuration again."""
    loop, kind = asyncio.get_running_loop(), chosen(config.frontend.kind)
    _check_open(config, log)
    arena, collector = Arena(config.arena), Collector(loop, lambda: engine.live_requests > 0)
    tracer, records = open_tracer(config.trace, log.event), _open_records(config, log)
    ticker, watch = Ticker(loop, partial(end.failed_part, "the engine")), find_devices()
    tell: Callable[[PoolEvent], None] = lambda event: engine.pool_event(event)  # noqa: E731, PLW0108  it is made of it
    pool = WorkerPool(arena, config.workers, loop, tell, config.repository.runtimes, rings=lane_memory(kind))
    repository, decided = _settled(config, watch)
    config = replace(config, repository=repository)
    devices = DeviceCare(watch, log.event, driver_changed)
    engine = _make_engine(config, arena, pool, records, devices, _make_shell(ticker, log, tracer))
    source, quotas = _make_source(config, engine, log), make_quotas(kind, config.quotas, log.event)
    processor = partial(processor_energy, ProcessorAccount())
    backend = _make_backend(
        config,
        engine,
        log,
        lambda: meters.read(),  # noqa: PLW0108  they read the front end that is made of this
        records,
        tracer,
        partial(_count_energy, processor, devices),
    )
    failed = partial(end.failed_part, "the native front end")
    front_end = make_front_end(kind, backend, config, failed, engine.leases, quotas)
    reconciler = _make_reconciler(source, engine, config, records, log, decided)
    scrubbing, figures = _make_scrubbing(config, source, reconciler, log)
    certificates = CertificateEnds({"grpc": config.grpc, "http": config.http})
    meters = _make_meters(
        engine, front_end, figures, quotas, tracer, backend, certificates, devices, processor
    )
    meters = replace(meters, unused_gpus=repository.unused, membership=lambda: _membership(outlet))
    failed = partial(end.failed_part, "reading the models")
    control = make_control_socket(backend, config.control, reconciler)
    outlet = _make_outlet(config, meters, records, log)
    closing: list[tuple[str, Close | None]] = [
        ("the end of scrubbing", scrubbing.stop if scrubbing is not None else None),
        ("closing the operator's socket", control.close if control is not None else None),
        ("telling the fleet", outlet.close if outlet is not None else None),
        ("closing the front end", front_end.close),
        ("the end of the hour's figures", backend.recent.close),
        ("the end of looking at devices", devices.close),
        ("stopping the workers", engine.stop_workers),
        ("the end of the workers", pool.close),
        ("the end of the engine's turns", ticker.close),
        ("closing the tensors' memory", arena.close),
        ("closing the collector", collector.close),
        ("writing the records", records.close if isinstance(records, FileRecords) else None),
        ("closing the traces", tracer.close if tracer is not None else None),
        ("closing the models", reconciler.close),  # last: a disk that hangs holds it up
    ]
    return Parts(
        ticker=ticker,
        pool=pool,
        engine=engine,
        reconciler=reconciler,
        front_end=front_end,
        listening=backend.listening,
        control=control,
        scrubbing=scrubbing,
        rereading=Rereading(reconciler, front_end, certificates, quotas, reread, log, failed),
        collector=collector,
        recent=backend.recent,
        devices=devices,
        outlet=outlet,
        closing=tuple((what, close) for what, close in closing if close is not None),
    )


def _tell_auto_device(log: LogControl, decided: Sequence[AutoDevice]) -> None:
    """To be called when there is such a model. It is a warning where a GPU may be passed over."""
    for each in decided:
        if each.troubled:
            log.event("models of KIND_AUTO run", on=each.kind.value, reason=each.reason)
        else:
            log.event("models of KIND_AUTO run", on=each.kind.value, why=each.reason)


def _settled(config: ApplianceConfig, watch: DeviceWatch) -> tuple[SettledRepository, Sequence[AutoDevice]]:
    """The section, and what was decided of KIND_AUTO where there is something to tell of it."""
    decided: list[AutoDevice] = []
    return settled(config.repository, watch, decided.append), decided


def _make_reconciler(
    source: Source,
    engine: Engine,
    config: ApplianceConfig,
    records: Records,
    log: LogControl,
    decided: Sequence[AutoDevice],
) -> Reconciler:
    tell_auto = partial(_tell_auto_device, log, decided)
    return Reconciler(source, engine, config.reload, config.repository, records, log.event, tell_auto)


def _count_energy(
    processor: Callable[[EngineStatus], ProcessorEnergy | None], devices: DeviceCare, status: EngineStatus
) -> None:
    """Whoever asks for joules is told of what was used while nobody asked."""
    processor(status)
    devices.count(status)


def _make_meters(
    engine: Engine,
    front_end: FrontEnd,
    store: Callable[[], StoreFigures] | None,
    quotas: Quotas | None,
    tracer: Tracer | None,
    backend: Backend,
    certificates: CertificateEnds,
    devices: DeviceCare,
    processor: Callable[[EngineStatus], ProcessorEnergy | None],
) -> Meters:
    return Meters(
        engine=engine,
        front_end=front_end.figures,
        http=front_end.http_statistics,
        store=store,
        quotas=quotas.figures if quotas is not None else None,
        traces=tracer.figures if tracer is not None else None,
        addresses=backend.listening.urls,
        certificates=certificates.ends,
        wall_ms=wall_ms,
        devices=devices.figures,
        devices_problem=devices.problem,
        processor=processor,
        kwh_price=backend.metrics.kwh_price,
    )


def _make_backend(
    config: ApplianceConfig,
    engine: Engine,
    log: LogControl,
    read: Callable[[], Snapshot],
    records: Records,
    tracer: Tracer | None,
    count_energy: Callable[[EngineStatus], None],
) -> Backend:
    over_tls = frozenset(name for name in ("grpc", "http") if getattr(config, name).tls_certificate)
    return Backend(
        engine=engine,
        log=log,
        read=read,
        history=records.history,
        recent=RecentFigures(records, count_energy),
        metrics=config.metrics,
        tracer=tracer,
        server_name=config.frontend.server_name,
        listening=Listening(over_tls=over_tls),
        regions=Regions(
            config.shared_memory, users_of(config.shared_memory.users), config.grpc.max_message_bytes
        ),
    )


def _make_engine(
    config: ApplianceConfig,
    arena: Arena,
    pool: WorkerPool,
    records: Records,
    devices: DeviceCare,
    shell: Shell,
) -> Engine:
    environment = EnvironmentFingerprint(this_cpu())
    return Engine(
        terms=EngineTerms(
            engine=config.engine,
            placement=config.placement,
            restart=extended(RestartPolicy, config.restart),
            swap=SwapTerms(extended(RolloutPolicy, config.swap), records, environment),
            residency=_residency(config, Costs(records, environment), devices.states),
            workers=WorkerTerms(
                config=config.workers,
                roots=_model_roots(config),
                user=workers_user(),
                visible=devices.visible,
                near=devices.neighbours(os.sched_getaffinity(0)),
            ),
        ),
        scheduler=Scheduler(extended(Planning, config.scheduling)),
        arena=arena,
        pool=pool,
        shell=shell,
    )


def _make_shell(ticker: Ticker, log: LogControl, tracer: Tracer | None) -> Shell:
    return Shell(
        clock=time.monotonic_ns,
        wall_ms=wall_ms,
        pace=ticker,
        memory_of=MemorySamples(time.monotonic_ns).private_bytes,
        log=log,
        tracer=tracer,
    )


def _check_open(config: ApplianceConfig, log: LogControl) -> None:
    """Close what is open to other users of this machine and need not be, and tell of it. Raises StoreUnavailable."""
    if config.control.socket and (problem := place_problem(config.control.socket)):
        log.event("the operator's socket is not safe where it is", problem=problem)
    mended = Mended()
    if config.state_dir:
        state = Path(config.state_dir).absolute()
        check_own(state)
        mended = keep_private(state)
    if mended.entries:
        log.event(
            "the state directory was open to others, or closed to its group, and is not any more",
            entries=mended.entries,
        )
    if mended.problem:
        log.event("the state directory cannot be kept from others", error=mended.problem)


def _open_records(config: ApplianceConfig, log: LogControl) -> Records:
    """What is remembered of versions: where the state is, or for as long as this process lives."""
    if not config.state_dir:
        return MemoryRecords()
    folder = Path(config.state_dir).absolute() / SERVE
    return FileRecords(folder, asyncio.get_running_loop().call_soon_threadsafe, log.event)


def _make_source(config: ApplianceConfig, engine: Engine, log: LogControl) -> Source:
    if not config.state_dir:
        return DirectorySource(Path(config.models), config.repository)
    loop = asyncio.get_running_loop()

    def held() -> list[RunningVersion]:
        return [
            RunningVersion(name=model.name, version=model.version, digest=model.digest)
            for model in engine.held()
            if model.digest
        ]

    def report_unsaid(problem: str) -> None:
        """The source calls, in a thread of its own."""
        note = "until it can, the store's writer removes nothing"
        loop.call_soon_threadsafe(partial(log.event, "what runs cannot be written", error=problem, note=note))

    vouched = trust_of(config.packages, Path(config.state_dir).absolute())
    return StoreSource(
        Path(config.state_dir),
        config.repository,
        held,
        report_unsaid,
        config.store,
        vouched,
        spared=engine.spared_forms,
    )


def trust_of(packages: PackagesConfig, state: Path) -> Callable[[InstalledVersion], str]:
    """Who vouches for installed versions now. Where no keys are named nothing is known of that, and the library that
    reads them is not needed, unless nothing is to be served that they do not vouch for."""
    never = packages.unsigned is Unsigned.NEVER
    if not packages.trusted_keys and not never:
        return attrgetter("trust")
    from appliance.package.keys import read_public_key
    from appliance.package.vouching import check_vouched, trust_now

    keys = [read_public_key(Path(path)) for path in packages.trusted_keys]
    return lambda version: (check_vouched if never else trust_now)(state, version, keys)


def _model_roots(config: ApplianceConfig) -> tuple[str, ...]:
    """Where models lie, as they are called and as they really are: what workers may read that versions share."""
    if config.state_dir:
        state = Path(config.state_dir).absolute()
        named = [str(state / VIEWS), str(state / FORMS)]
    else:
        named = [os.path.abspath(config.models)] if config.models else []
    return tuple(dict.fromkeys((*named, *map(os.path.realpath, named))))


def _make_scrubbing(
    config: ApplianceConfig, source: Source, reconciler: Reconciler, log: LogControl
) -> tuple[Scrubbing | None, Callable[[], StoreFigures] | None]:
    """What looks after the store, and tells of it; nothing where models come from a directory."""
    if not isinstance(source, StoreSource):
        return None, None
    scrubbing = Scrubbing(Path(config.state_dir), config.store, wall_ms, log.event)

    def figures() -> StoreFigures:
        generation, trouble = reconciler.generation, reconciler.trouble
        return store_figures(source.catalog, scrubbing, config.store, generation, trouble)

    return scrubbing, figures


def _make_outlet(config: ApplianceConfig, meters: Meters, records: Records, log: LogControl) -> Outlet | None:
    """What tells the fleet of this box, once it belongs to one; nothing where there is no state directory."""
    if not config.state_dir:
        return None
    post = asyncio.get_running_loop().call_soon_threadsafe
    sight = Sight(read=meters.read, history=records.history, post=post, wall_ms=wall_ms, event=log.event)
    outlet = Outlet(Path(config.state_dir).absolute(), config.fleet.outbox_bytes, sight)
    log.listen(outlet.heard)
    return outlet


def _membership(outlet: Outlet | None) -> Membership | None:
    """Who the box is in its fleet, as the outlet saw last."""
    return None if outlet is None else outlet.membership


def wall_ms() -> int:
    """The wall clock, for people and estimates: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _residency(config: ApplianceConfig, costs: Costs, devices: tuple[DeviceState, ...]) -> ResidencyTerms:
    policy = extended(ResidencyPolicy, config.residency)
    configured = bool(policy.budget_bytes)
    budget = Budget(HOST, _memory_for_models(config), configured=configured)
    return ResidencyTerms(policy, (budget,), _free_bytes, costs, devices)


def _free_bytes(device: DeviceName) -> int:
    """What may be taken above a budget: of the machine's memory what it has left, of a GPU's nothing."""
    return free_bytes() if device.is_cpu else 0


def _memory_for_models(config: ApplianceConfig) -> int:
    """What models and their workers may take: as configured, or what this machine has beside everything else."""
    if config.residency.budget_bytes:
        return config.residency.budget_bytes
    limit = memory_bytes()
    if not limit:
        return UNBOUNDED_BYTES
    others = config.residency.reserve_bytes + config.arena.memory_limit_bytes
    return max(limit - others, limit // 4)
