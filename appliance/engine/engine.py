"""The engine: takes requests from the front ends, owns the scheduler, drives the workers, gives outcomes back.

Requests are admitted or refused at once (``requests/admission``); all else waits: callbacks only enqueue, ``turn``
drains all that has come in, steps the scheduler, performs its actions and only then hands outcomes out, so that workers
are busy again before answers are encoded. No asyncio here: the shell gives a clock and a Pace (when to take turns), and
the simulation gives its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from appliance.config.engine import EngineConfig
from appliance.config.workers import PlacementConfig
from appliance.core.processes.blame import Blame
from appliance.core.processes.restart import RestartPolicy
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.device import DeviceName
from appliance.domain.device_reading import DeviceState
from appliance.domain.errors import ApplianceError, InvalidRequest, NotReady, UnknownModel
from appliance.domain.inference import RequestHead, RequestPlan
from appliance.domain.model import ModelVersion, VersionState
from appliance.domain.validation import plan_request
from appliance.engine.control.hangs import Hangs
from appliance.engine.control.model_cache import ModelCache, ResidencyTerms
from appliance.engine.control.recorder import SwapTerms, default_terms
from appliance.engine.control.rollouts import Rollouts, RolloutTerms
from appliance.engine.environment import Shell
from appliance.engine.fastpath.lanes import Lanes
from appliance.engine.fastpath.leases import Leases
from appliance.engine.fastpath.templates import Templates
from appliance.engine.fastpath.usage import Usage
from appliance.engine.inbox import Inbox
from appliance.engine.port import IndexEntry, Submission, Tensor
from appliance.engine.requests.admission import Admission
from appliance.engine.requests.completion import Completion
from appliance.engine.requests.crashes import Crashes
from appliance.engine.requests.dispatch import Dispatch
from appliance.engine.requests.mirroring import Mirroring
from appliance.engine.requests.outcome import Accounts
from appliance.engine.requests.rerouting import Rerouting
from appliance.engine.requests.table import RequestTable
from appliance.engine.requests.waiting_room import Displaced, WaitingRoom
from appliance.engine.turn import Turn
from appliance.engine.versions.batch_keys import BatchKeys
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served
from appliance.engine.versions.shape_history import ShapeHistory
from appliance.engine.versions.version_status import with_index
from appliance.telemetry.meter import VersionStatistics
from appliance.telemetry.snapshot import EngineStatus, LaneUse, WorkerStatus
from appliance.workers import port as workers
from appliance.workers.arena import Arena
from appliance.workers.settings import WorkerTerms

EPOCH_BITS: Final = 32


BATCH_KEYS_PER_MODEL: Final = 64
"""Distinct request shapes whose run times are remembered per version: more are not told apart by anybody who plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTerms:
    """What an engine goes by."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    swap: SwapTerms = field(default_factory=default_terms)
    residency: ResidencyTerms = field(default_factory=ResidencyTerms)
    workers: WorkerTerms = field(default_factory=WorkerTerms)
    batch_keys_per_model: int = BATCH_KEYS_PER_MODEL


class Engine:
    """Implements EnginePort. The only owner of ``scheduler``."""

    def __init__(
        self,
        *,
        terms: EngineTerms,
        scheduler: Scheduler,
        arena: Arena,
        pool: workers.WorkerPort,
        shell: Shell,
    ) -> None:
        self._shell = shell
        self._arena = arena
        self._started_ns = shell.clock()
        self._settled_once = False
        self._wanted_headers: tuple[str, ...] = ()
        self._routes = Routes()
        self._watchers: list[Callable[[], None]] = []
        self._announced_generation = self._routes.generation
        self._inbox = Inbox(scheduler)
        self._batch_keys = BatchKeys(self._inbox, terms.batch_keys_per_model, ShapeHistory(shell.clock))
        served: dict[int, Served] = {}
        self.leases = self._make_leases(terms.engine, served, pool)
        self._rollouts = self._make_rollouts(terms, served, pool)
        table = RequestTable(arena=arena, batch_keys=self._batch_keys, leases=self.leases, inbox=self._inbox)
        accounts = Accounts(self._routes, shell.log, shell.wall_ms, terms.engine.slow_request_ms)
        rerouting = Rerouting(self._routes, table)
        mirroring = Mirroring(terms.swap.config, arena, shell.pace)
        crashes = Crashes(Blame(terms.restart), self._rollouts.version_blame, table, self.leases, shell)
        completion = Completion(
            pool=pool,
            accounts=accounts,
            table=table,
            rerouting=rerouting,
            mirroring=mirroring,
            crashes=crashes,
        )
        displaced = Displaced(rerouting, completion, shell.pace)
        self._cache = self._make_cache(terms.residency, pool, WaitingRoom(table, completion, displaced))
        self._rollouts.use(self._cache)
        dispatch = Dispatch(
            inbox=self._inbox,
            pool=pool,
            pace=shell.pace,
            leases=self.leases,
            table=table,
            completion=completion,
            crashes=crashes,
            displaced=displaced,
        )
        self._admission = Admission(
            default_deadline_ms=terms.engine.default_deadline_ms,
            shell=shell,
            routes=self._routes,
            accounts=accounts,
            table=table,
            dispatch=dispatch,
            mirroring=mirroring,
            cold=self._cache,
        )
        self._turn = Turn(
            inbox=self._inbox,
            rollouts=self._rollouts,
            cache=self._cache,
            leases=self.leases,
            dispatch=dispatch,
            completion=completion,
            mirroring=mirroring,
            hangs=Hangs(dispatch.batches, self._rollouts.groups, pool, shell.pace),
        )

    def _make_rollouts(
        self, terms: EngineTerms, served: dict[int, Served], pool: workers.WorkerPort
    ) -> Rollouts:
        return Rollouts(
            terms=RolloutTerms(
                swap=terms.swap,
                placement=terms.placement,
                restart=terms.restart,
                workers=terms.workers,
            ),
            served=served,
            routes=self._routes,
            batch_keys=self._batch_keys,
            workers=pool,
            leases=self.leases,
            shell=self._shell,
        )

    def _make_cache(self, terms: ResidencyTerms, pool: workers.WorkerPort, room: WaitingRoom) -> ModelCache:
        return ModelCache(
            terms=terms,
            routes=self._routes,
            rollouts=self._rollouts,
            workers=pool,
            leases=self.leases,
            room=room,
            shell=self._shell,
        )

    def _make_leases(
        self, config: EngineConfig, served: Mapping[int, Served], pool: workers.WorkerPort
    ) -> Leases:
        lanes = Lanes(pool, self._arena, config.lease_limit)
        templates = Templates(
            routes=self._routes,
            batch_keys=self._batch_keys,
            inbox=self._inbox,
            workers=pool,
            lanes=lanes,
            default_timeout_ns=config.default_deadline_ms * 1_000_000,
        )
        usage = Usage(lanes=lanes, templates=templates, versions=served, workers=pool, shell=self._shell)
        return Leases(
            config=config,
            arena=self._arena,
            workers=pool,
            shell=self._shell,
            inbox=self._inbox,
            templates=templates,
            usage=usage,
            lanes=lanes,
        )

    # --- the front ends' side (EnginePort)

    @property
    def generation(self) -> int:
        """See EnginePort."""
        return self._routes.generation

    @property
    def accepting(self) -> bool:
        """See EnginePort."""
        return self._admission.welcome

    @property
    def ready(self) -> bool:
        """See EnginePort."""
        return self.accepting and self._settled_once

    @property
    def live_requests(self) -> int:
        """Requests that have no outcome yet."""
        return self._admission.live

    @property
    def arrivals(self) -> int:
        """Requests admitted so far."""
        return self._admission.admitted

    @property
    def may_wait(self) -> bool:
        """Whether the next turn could dispatch something new, and no worker came back to older requests: then company
        for its batches is worth an instant."""
        return self._turn.may_wait

    @property
    def wanted_headers(self) -> tuple[str, ...]:
        """See EnginePort."""
        return self._wanted_headers

    def epoch(self, model: ModelVersion) -> int:
        """See EnginePort."""
        served = self._routes.find(model.name, model.version)
        return -1 if served is None else served.id << EPOCH_BITS | served.epoch

    def submit(self, submission: Submission, tensors: Sequence[Tensor]) -> int:
        """See EnginePort."""
        return self._admission.submit(submission, tensors)

    def has_memory(self, plan: RequestPlan, tensors: Sequence[Tensor]) -> bool:
        """See EnginePort."""
        return self._admission.has_memory(plan, tensors)

    def now_ns(self) -> int:
        """See EnginePort."""
        return self._shell.clock()

    def resolve(self, name: str, version: str) -> ModelVersion:
        """See EnginePort."""
        return self._routes.resolve(name, version).model

    def in_force(self, name: str, version: str) -> ModelVersion:
        """See EnginePort."""
        return self._routes.resolve(name, version).in_force

    def plan(self, head: RequestHead) -> RequestPlan:
        """See EnginePort."""
        served = self._routes.resolve(head.model_name, head.model_version)
        try:
            return plan_request(served.model, head)
        except InvalidRequest:
            if not head.model_version:
                self._rollouts.refused(served, head)
            raise

    def rejected(self, error: ApplianceError, request_id: str, client: str = "") -> None:
        """See EnginePort."""
        self._admission.rejected(error, request_id, client)

    def cancel(self, handle: int) -> None:
        """See EnginePort."""
        self._admission.cancel(handle)

    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        """See EnginePort."""
        return tuple(served.model for served in self._routes.of(name) if served.state is VersionState.READY)

    def is_ready(self, name: str, version: str) -> bool:
        """See EnginePort."""
        with suppress(UnknownModel, NotReady, InvalidRequest):
            self._routes.resolve(name, version)
            return self.accepting
        return False

    def index(self, ready_only: bool) -> tuple[IndexEntry, ...]:
        """See EnginePort."""
        return self._routes.index(ready_only, self._rollouts.report.said())

    def statistics(self, name: str, version: str) -> tuple[VersionStatistics, ...]:
        """See EnginePort."""
        self.leases.collect()
        if not name:
            return tuple(served.meter.frozen() for served in self._routes.all())
        if version:
            return (self._routes.resolve(name, version).meter.frozen(),)
        known = self._routes.of(name)
        if not known:
            raise UnknownModel(f"requested model '{name}' is not available")
        return tuple(served.meter.frozen() for served in known)

    def status(self) -> EngineStatus:
        """See EnginePort."""
        self.leases.collect()
        self._turn.take_mirrored()
        running = self._turn.batches.running_by_model() + self.leases.running_by_model()
        parked = self.leases.parked_by_model()
        scheduled, usage = self._inbox.scheduler.statistics(), self._arena.statistics()
        queued, held = parked + Counter(scheduled.queued_by_model), self._turn.crashes.held_clients()
        versions = self._rollouts.report.version_statuses(queued, running, held)
        return EngineStatus(
            now_ns=self._shell.clock(),
            started_ns=self._started_ns,
            accepting=self.accepting,
            versions=with_index(versions, self.index(ready_only=False)),
            workers=self._worker_statuses(),
            queued_requests=scheduled.queued + parked.total(),
            queued_bytes=scheduled.queued_bytes,
            batch_keys=scheduled.batch_keys,
            running_requests=running.total(),
            arena_used_bytes=usage.allocated_bytes - self.leases.idle_bytes(),
            arena_limit_bytes=usage.limit_bytes,
            slots=self.leases.slots(),
            swaps=self._rollouts.report.figures(),
            residency=self._cache.figures(),
        )

    def _worker_statuses(self) -> tuple[WorkerStatus, ...]:
        given, served = self._turn.batches.given, self._rollouts.served
        return tuple(
            WorkerStatus(
                worker=worker.id,
                pid=worker.pid,
                state=worker.state,
                models=tuple(sorted(each.key for each in map(served, worker.loaded) if each is not None)),
                memory_bytes=self._shell.memory_of(worker.pid) if worker.pid else 0,
                restarts=group.restarts,
                use=LaneUse(given.get(worker.id, 0), *self.leases.use(worker.id)),
                kept_from=worker.kept_from,
                place=worker.number,
            )
            for worker, group in self._rollouts.groups.workers()
        )

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """See EnginePort."""
        self._watchers.append(changed)

        def end() -> None:
            if changed in self._watchers:
                self._watchers.remove(changed)

        return end

    # --- the daemon's side

    def held(self) -> list[ModelVersion]:
        """All that has, or is about to get, a worker. From whatever thread."""
        return self._rollouts.core.registry.held()

    def spared_forms(self) -> frozenset[str]:
        """Names of packed forms that are about to be of use for others. From whatever thread."""
        return self._rollouts.forms.spared

    def settled_of(self, name: str) -> bool:
        """Whether every version of ``name`` that is wanted either serves or was given up."""
        return self._rollouts.core.registry.settled_of(name)

    def has_failed(self, name: str, number: int) -> bool:
        """See Rollout."""
        return self._rollouts.core.has_failed((name, number))

    def stand_in(self, name: str, candidates: Iterable[CatalogVersion]) -> CatalogVersion | None:
        """See Rollout."""
        return self._rollouts.core.stand_in(name, candidates)

    def apply(self, catalog: Catalog, asked: Collection[str] = ()) -> None:
        """Work towards ``catalog`` from the next turn on. ``asked``: names of models of which an operator wants what
        was given up to be tried again."""
        self._rollouts.apply(catalog, self._shell.clock(), asked)
        self._shell.pace.soon()

    def announce_stop(self) -> None:
        """Tell all who ask or watch that nothing is ready any more; requests are taken until ``drain``."""
        self._admission.announce_stop()
        self._rollouts.touch()
        self._shell.pace.soon()

    def drain(self) -> None:
        """Take no more requests; what was accepted, or had come to the native front end before, is still served."""
        if self._admission.accepting:
            self._rollouts.stopping(self._shell.clock())
        self._admission.close()
        self._rollouts.touch()
        self.leases.forget()
        self._shell.pace.soon()

    def stop_workers(self) -> None:
        """Ask every worker to leave; call after the drain."""
        self._rollouts.stop_all()

    def pool_event(self, event: workers.PoolEvent) -> None:
        """Something happened to a worker; handled in the next turn."""
        self._turn.pool_event(event)
        self._shell.pace.news()

    def devices_told(self, states: tuple[DeviceState, ...]) -> None:
        """This is how all devices are now; handled in the next turn."""
        self._turn.devices_told(states)
        self._shell.pace.soon()

    def worker_pids(self) -> dict[DeviceName, dict[int, int | None]]:
        """The processes that run versions or build their forms, by their device; for each what its versions say that
        they take of that (None: it changes now, or is not said)."""
        found: dict[DeviceName, dict[int, int | None]] = {}
        for worker, group in self._rollouts.groups.workers():
            if worker.pid:
                held = [served for served in group.models if served.id in worker.loaded]
                changes = worker.loading or worker.stopping
                said_bytes = None if changes else self._cache.said_bytes(held)
                found.setdefault(group.device, {})[worker.pid] = said_bytes
        for device, pid in self._rollouts.forms.processes:
            found.setdefault(device, {})[pid] = None
        return found

    # --- one turn

    def turn(self) -> None:
        """Handle everything that has come in since the last turn."""
        now_ns = self._shell.clock()
        self._turn.take(now_ns)
        if self._announced_generation != self._routes.generation:
            self._announce(now_ns)
        self._turn.settle(now_ns)
        if self._turn.has_more:
            self._shell.pace.soon()

    def hand_out(self) -> None:
        """Give out the outcomes that turns left; callbacks may submit again."""
        if self._turn.hand_out(self._shell.clock()) and self._rollouts.leaving:
            self._shell.pace.soon()

    def _announce(self, now_ns: int) -> None:
        """What names mean has changed: look what follows, and tell all who watch."""
        self._announced_generation = self._routes.generation
        self._cache.look(now_ns)
        self._rollouts.look(now_ns)
        self._wanted_headers = self._rollouts.report.headers()
        self._settled_once = self._settled_once or self._rollouts.settled
        for changed in tuple(self._watchers):
            changed()
