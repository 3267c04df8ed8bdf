"""The engine: takes requests from the edges, owns the scheduler, drives the workers, gives outcomes back.

Requests are admitted or refused at once (``intake``); all else waits: callbacks only enqueue, ``turn`` drains all that
has come in, steps the scheduler, performs its actions and only then hands outcomes out, so that workers are busy again
before answers are encoded. No asyncio here: the shell gives a clock and a Pace (when to take turns), and the simulation
gives its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from appliance.core.scheduling import actions, events
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.errors import ApplianceError, InvalidRequest, NotReady, UnknownModel
from appliance.domain.inference import RequestHead, RequestPlan
from appliance.domain.model import ModelVersion, VersionState
from appliance.domain.validation import plan_request
from appliance.engine.control.lodging import Room
from appliance.engine.control.placement import PlacementConfig
from appliance.engine.control.residence import Residence
from appliance.engine.control.residency_settings import ResidencyTerms
from appliance.engine.control.roster import Roster
from appliance.engine.control.supervisor import SupervisorConfig
from appliance.engine.control.swap_settings import SwapConfig
from appliance.engine.control.swaps import SwapTerms, default_terms
from appliance.engine.environment import Pace, RequestLog
from appliance.engine.fastpath.grants import Grants
from appliance.engine.port import Buffer, EngineStatus, IndexEntry, LaneUse
from appliance.engine.requests.accounts import Accounts
from appliance.engine.requests.displaced import Displaced
from appliance.engine.requests.endings import Endings
from appliance.engine.requests.intake import Intake, Refusal
from appliance.engine.requests.request import Request
from appliance.engine.requests.shapes import Shapes
from appliance.engine.requests.turn import Turn
from appliance.engine.settings import EngineConfig
from appliance.engine.versions.routes import Catalog, Routes, Served
from appliance.telemetry.meter import VersionStatistics
from appliance.telemetry.trace import Tracer
from appliance.workers import port as workers
from appliance.workers.arena import Arena

EPOCH_BITS: Final = 32


class Engine:
    """Implements EnginePort. ``wall_ms`` is the wall clock in milliseconds: for people, and for pauses between
    tries that outlive the process."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        placement: PlacementConfig,
        supervisor: SupervisorConfig,
        scheduler: Scheduler,
        arena: Arena,
        pool: workers.WorkerPort,
        settings: Callable[[int], workers.WorkerSettings],
        clock: Callable[[], int],
        wall_ms: Callable[[], int],
        pace: Pace,
        memory_of: Callable[[int], int],
        log: RequestLog,
        tracer: Tracer | None = None,
        swap: SwapTerms | None = None,
        residency: ResidencyTerms | None = None,
    ) -> None:
        terms = swap or default_terms()
        self._scheduler = scheduler
        self._arena = arena
        self._clock = clock
        self._pace = pace
        self._memory_of = memory_of
        self._started_ns = clock()
        self._watchers: list[Callable[[], None]] = []
        self._changed = self._settled_once = False
        self._wanted_headers: tuple[str, ...] = ()
        self._routes = Routes(self._note_change)
        self._accounts = Accounts(self._routes, log, wall_ms, config.slow_request_ms)
        self._shapes = Shapes(self._feed, config.shapes_per_model)
        self._roster = Roster(
            routes=self._routes, workers=pool, placement=placement, supervisor=supervisor, swap=terms,
            settings=settings, feed=self._feed, idle=self._is_idle, soon=pace.soon, at=pace.at,
            report=log.event, wall_ms=wall_ms, room=self._has_room, rests=self._rests,
        )  # fmt: skip
        self.direct = Grants(
            config=config, workers=pool, scheduler=scheduler, arena=arena, shapes=self._shapes,
            routes=self._routes, feed=self._feed, served=self._roster.served, pace=pace,
            clock=clock, slow=self._accounts.slow, tracer=tracer, wall_ms=wall_ms,
        )  # fmt: skip
        self._intake = self._make_intake(config, terms.config)
        self.submit, self.has_memory = self._intake.submit, self._intake.has_memory
        """See EnginePort."""
        endings = Endings(
            arena=arena, pool=pool, accounts=self._accounts, shapes=self._shapes,
            requests=self._intake.requests, elsewhere=self._intake.detours.elsewhere,
            again=self._intake.again,
        )  # fmt: skip
        self._endings = endings
        self._displaced = Displaced(
            reroute=self._intake.detours.reroute, follow=self._intake.detours.follow, wait=self._wait,
            end=endings.end, soon=pace.soon,
        )  # fmt: skip
        self._residence = self._make_residence(residency or ResidencyTerms(), pool, log)
        self._turn = Turn(
            scheduler=scheduler, pool=pool, pace=pace, intake=self._intake, roster=self._roster,
            direct=self.direct, endings=endings, residence=self._residence, displaced=self._displaced,
        )  # fmt: skip

    def _make_intake(self, config: EngineConfig, swap: SwapConfig) -> Intake:
        return Intake(
            config=config, swap=swap, scheduler=self._scheduler, arena=self._arena, routes=self._routes,
            swaps=self._roster.swaps, accounts=self._accounts, shapes=self._shapes, direct=self.direct,
            pace=self._pace, clock=self._clock,
            perform=self._perform, ask=self._ask, cancel_waiting=self._cancel_waiting,
        )  # fmt: skip

    def _make_residence(self, terms: ResidencyTerms, pool: workers.WorkerPort, log: RequestLog) -> Residence:
        return Residence(
            terms=terms, routes=self._routes, roster=self._roster, workers=pool, direct=self.direct,
            arena=self._arena, end=self._endings.end, proceed=self._intake.proceed,
            displaced=self._displaced.add, soon=self._pace.soon, at=self._pace.at, report=log.event,
        )  # fmt: skip

    # --- the edges' side (EnginePort)

    @property
    def generation(self) -> int:
        """See EnginePort."""
        return self._routes.generation

    @property
    def accepting(self) -> bool:
        """See EnginePort."""
        return self._intake.accepting

    @property
    def ready(self) -> bool:
        """See EnginePort."""
        return self._intake.accepting and self._settled_once

    @property
    def live_requests(self) -> int:
        """Requests that have no outcome yet."""
        return len(self._intake.requests)

    @property
    def arrivals(self) -> int:
        """Requests admitted so far."""
        return self._intake.admitted

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

    def now_ns(self) -> int:
        """See EnginePort."""
        return self._clock()

    def resolve(self, name: str, version: str) -> ModelVersion:
        """See EnginePort."""
        return self._routes.resolve(name, version).model

    def plan(self, head: RequestHead) -> RequestPlan:
        """See EnginePort."""
        served = self._routes.resolve(head.model_name, head.model_version)
        try:
            return plan_request(served.model, head)
        except InvalidRequest:
            if not head.model_version:
                self._roster.swaps.refused(served, head)
            raise

    def rejected(self, error: ApplianceError, request_id: str, client: str = "") -> None:
        """See EnginePort."""
        self._accounts.rejected(error, request_id, client)

    def cancel(self, handle: int) -> None:
        """See EnginePort."""
        self._intake.cancel(handle)

    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        """See EnginePort."""
        return tuple(served.model for served in self._routes.of(name) if served.state is VersionState.READY)

    def is_ready(self, name: str, version: str) -> bool:
        """See EnginePort."""
        with suppress(UnknownModel, NotReady, InvalidRequest):
            self._routes.resolve(name, version)
            return self._intake.accepting
        return False

    def index(self, ready_only: bool) -> tuple[IndexEntry, ...]:
        """See EnginePort."""
        return self._routes.index(ready_only, self._roster.said_of)

    def statistics(self, name: str, version: str) -> tuple[VersionStatistics, ...]:
        """See EnginePort."""
        self.direct.collect()
        if not name:
            return tuple(served.meter.frozen() for served in self._routes.all())
        if version:
            return (self._routes.resolve(name, version).meter.frozen(),)
        return tuple(served.meter.frozen() for served in self._routes.of(name))

    def status(self) -> EngineStatus:
        """See EnginePort."""
        self.direct.collect()
        running = self._turn.batches.running_by_model() + self.direct.running_by_model()
        parked = self.direct.parked_by_model()
        scheduled, usage = self._scheduler.statistics(), self._arena.statistics()
        return EngineStatus(
            now_ns=self._clock(), started_ns=self._started_ns, accepting=self._intake.accepting,
            versions=self._roster.version_statuses(parked + Counter(scheduled.queued_by_model), running),
            workers=self._roster.groups.statuses(self._roster.key_of, self._memory_of, self._lane_use),
            queued_requests=scheduled.queued + parked.total(), queued_bytes=scheduled.queued_bytes,
            running_requests=running.total(),
            arena_used_bytes=usage.allocated_bytes - self.direct.idle_bytes(),
            arena_limit_bytes=usage.limit_bytes, slots=self.direct.slots(),
            swaps=self._roster.swaps.figures(), residency=self._residence.figures(),
        )  # fmt: skip

    def _lane_use(self, worker: int) -> LaneUse:
        return LaneUse(self._turn.batches.given.get(worker, 0), *self.direct.use(worker))

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
        return self._roster.held()

    def settled_of(self, name: str) -> bool:
        """Whether every version of ``name`` that is wanted either serves or was given up."""
        return self._roster.settled_of(name)

    def apply(self, catalog: Catalog, asked: Collection[str] = ()) -> None:
        """Work towards ``catalog`` from the next turn on. ``asked``: names of models of which an operator wants what
        was given up to be tried again."""
        self._roster.apply(catalog, self._clock(), asked)
        self._pace.soon()

    def drain(self) -> None:
        """Take no more requests; what was accepted, or had come to the native door before, is still served."""
        if self._intake.accepting:
            self._roster.swaps.spare()
        self._intake.close()
        self._routes.touch()
        self.direct.forget()
        self._pace.soon()

    def stop_workers(self) -> None:
        """Ask every worker to leave; call after the drain."""
        self._roster.stop_all()

    def pool_event(self, event: workers.PoolEvent) -> None:
        """Something happened to a worker; handled in the next turn."""
        self._turn.pool_event(event)

    # --- one turn

    def turn(self) -> None:
        """Handle everything that has come in since the last turn."""
        now_ns = self._clock()
        self._turn.take(now_ns)
        if self._changed:
            self._announce(now_ns)
        self._displaced.settle(now_ns)
        self._turn.ask_again()

    def hand_out(self) -> None:
        """Give out the outcomes that turns left; callbacks may submit again."""
        if self._endings.hand_out(self._clock()) and self._roster.leaving:
            self._pace.soon()

    # --- small things

    def _feed(self, event: events.Event) -> None:
        self._intake.feed(event)

    def _has_room(self, served: Served, before: Served | None, now_ns: int) -> Room:
        return self._residence.admit(served, before, now_ns)

    def _rests(self, served: Served) -> bool:
        return self._residence.rests(served)

    def _perform(self, action: actions.Action, now_ns: int) -> None:
        self._turn.perform(action, now_ns)

    def _ask(self, request: Request, tensors: Sequence[Buffer], now_ns: int) -> Refusal | None:
        return self._residence.ask(request, tensors, now_ns)

    def _wait(self, request: Request, now_ns: int) -> Refusal | None:
        return self._residence.ask(request, None, now_ns)

    def _cancel_waiting(self, request: Request, now_ns: int) -> bool:
        return self._residence.cancel(request, now_ns)

    def _is_idle(self, model: int) -> bool:
        served = self._roster.served(model)
        return served is None or (served.live == 0 and self.direct.is_through(model))

    def _note_change(self, moved: Sequence[Served]) -> None:
        self._changed = True
        for served in moved:
            served.epoch += 1
            self.direct.forget(served.id)

    def _announce(self, now_ns: int) -> None:
        self._changed = False
        self._residence.look(now_ns)
        self._roster.look(now_ns)
        self._wanted_headers = self._roster.swaps.headers()
        self._settled_once = self._settled_once or self._roster.settled
        for changed in tuple(self._watchers):
            changed()
