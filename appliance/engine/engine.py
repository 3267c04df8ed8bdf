"""The engine: takes requests from the edges, owns the scheduler, drives the workers, gives outcomes back.

A request is admitted or refused within ``submit``, before its tensors are copied: under overload a refusal must cost
little and come at once. All else waits: callbacks only enqueue; ``turn`` drains everything that has come in, steps the
scheduler, performs its actions and only then hands outcomes out, so that workers are busy again before answers are
encoded. No asyncio here: the shell gives a clock and a Pace (when to take turns), and the simulation gives its own.
Tensor bytes are copied once, into the slot, in ``submit``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from appliance.engine.accounts import Accounts
from appliance.engine.batches import Batches
from appliance.engine.detours import Detours
from appliance.engine.endings import Endings
from appliance.engine.environment import Pace, RequestLog
from appliance.engine.grants import Grants
from appliance.engine.outcome import Ended, deadline_of, end_of, not_ready
from appliance.engine.placement import PlacementConfig
from appliance.engine.port import NO_HEADERS, Buffer, EngineStatus, IndexEntry, LaneUse
from appliance.engine.request import Request
from appliance.engine.residence import Residence, ResidencyTerms
from appliance.engine.roster import Roster
from appliance.engine.routes import Catalog, Routes, Served
from appliance.engine.settings import EngineConfig
from appliance.engine.shapes import Shapes
from appliance.engine.supervisor import SupervisorConfig
from appliance.engine.swap_settings import SwapConfig
from appliance.engine.swaps import SwapTerms, default_terms
from appliance.errors import (
    ApplianceError,
    InvalidRequest,
    NotReady,
    QueueFull,
    Stopping,
    UnknownModel,
)
from appliance.inference import Outcome, RequestPlan
from appliance.model import ModelVersion, VersionState
from appliance.scheduling import actions, events
from appliance.scheduling.scheduler import Scheduler
from appliance.telemetry.meter import Result, VersionStatistics
from appliance.telemetry.trace import Trace, Tracer
from appliance.workers import port as workers
from appliance.workers.arena import Arena


class Engine:
    """Implements EnginePort. ``wall_ms`` is the wall clock in milliseconds, for statistics only."""

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
        self._config = config
        self._scheduler = scheduler
        self._arena = arena
        self._pool = pool
        self._clock = clock
        self._pace = pace
        self._memory_of = memory_of
        self._started_ns = clock()
        self._watchers: list[Callable[[], None]] = []
        self._changed = False
        self._routes = Routes(self._note_change)
        self._accounts = Accounts(self._routes, log, wall_ms, config.slow_request_ms)
        self._shapes = Shapes(self._feed, config.shapes_per_model)
        self._roster = Roster(
            routes=self._routes, workers=pool, placement=placement, supervisor=supervisor, swap=terms,
            settings=settings, feed=self._feed, idle=self._is_idle, soon=pace.soon, at=pace.at,
            report=log.event, wall_ms=wall_ms, room=self._has_room,
        )  # fmt: skip
        self.direct = Grants(
            config=config,
            workers=pool,
            scheduler=scheduler,
            arena=arena,
            shapes=self._shapes,
            routes=self._routes,
            feed=self._feed,
            served=self._roster.served,
            pace=pace,
            slow=self._accounts.slow,
            tracer=tracer,
            wall_ms=wall_ms,
        )
        self._inbox: list[events.Event] = []
        self._news: list[workers.PoolEvent] = []
        self._requests: dict[int, Request] = {}
        self._batches = Batches()
        self._detours = self._make_detours(terms.config)
        self._endings = self._make_endings()
        self._residence = self._make_residence(residency or ResidencyTerms(), log)
        self._last_handle = self._admitted = 0
        self._left_queued, self._accepting = 0, True
        self._settled_once = False
        self._wanted_headers: tuple[str, ...] = ()

    def _make_detours(self, config: SwapConfig) -> Detours:
        swaps = self._roster.swaps
        return Detours(
            config=config,
            arena=self._arena,
            routes=self._routes,
            shapes=self._shapes,
            admit=lambda request, tensors: self._admit(request, tensors) is None,
            arrive=lambda request: self._inbox.append(self._arrival(request)),
            begin=self._begin,
            take_handle=self._take_handle,
            compared=swaps.compared,
            left_out=swaps.accounts.count_shadow,
        )

    def _make_endings(self) -> Endings:
        return Endings(
            arena=self._arena, pool=self._pool, accounts=self._accounts, shapes=self._shapes,
            requests=self._requests, elsewhere=self._detours.elsewhere,
        )  # fmt: skip

    def _make_residence(self, terms: ResidencyTerms, log: RequestLog) -> Residence:
        return Residence(
            terms=terms, routes=self._routes, roster=self._roster, workers=self._pool, direct=self.direct,
            arena=self._arena, end=self._endings.end, proceed=self._proceed, reroute=self._detours.reroute,
            soon=self._pace.soon, at=self._pace.at, report=log.event,
        )  # fmt: skip

    # --- the edges' side (EnginePort)

    @property
    def generation(self) -> int:
        """See EnginePort."""
        return self._routes.generation

    @property
    def accepting(self) -> bool:
        """See EnginePort."""
        return self._accepting

    @property
    def ready(self) -> bool:
        """See EnginePort."""
        return self._accepting and self._settled_once

    @property
    def live_requests(self) -> int:
        """Requests that have no outcome yet."""
        return len(self._requests)

    @property
    def arrivals(self) -> int:
        """Requests admitted so far."""
        return self._admitted

    @property
    def may_wait(self) -> bool:
        """Whether the next turn could dispatch something new, and no worker came back to older requests: then company
        for its batches is worth an instant."""
        return self._scheduler.unsettled and not (self._news and self._left_queued)

    @property
    def wanted_headers(self) -> tuple[str, ...]:
        """See EnginePort."""
        return self._wanted_headers

    def epoch(self, model: ModelVersion) -> int:
        """See EnginePort."""
        served = self._routes.find(model.name, model.version)
        return served.epoch if served is not None else 0

    def now_ns(self) -> int:
        """See EnginePort."""
        return self._clock()

    def resolve(self, name: str, version: str) -> ModelVersion:
        """See EnginePort."""
        return self._routes.resolve(name, version).model

    def submit(
        self,
        plan: RequestPlan,
        tensors: Sequence[Buffer],
        *,
        request_id: str,
        arrived_ns: int,
        deadline_ns: int,
        on_done: Callable[[Outcome], None],
        attempts: int = 0,
        client: str = "",
        trace: Trace | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> int:
        """See EnginePort."""
        model = plan.model
        served = self._routes.find(model.name, model.version)
        if served is None or served.model is not model:
            raise not_ready(model)
        deadline_ns = deadline_of(plan, arrived_ns, deadline_ns, self._config.default_deadline_ms)
        request = Request(self._take_handle(), plan, served, request_id, arrived_ns, deadline_ns, on_done)
        request.attempts, request.client, request.trace = attempts, client, trace
        diversion = served.diversion
        try:
            if diversion is not None and self._detours.divert(diversion, request, tensors, headers):
                refused = None
            else:
                refused = self._admit(request, tensors)
        except Exception as bug:
            self._pace.broken(bug)
            raise
        if refused is not None:
            self._shapes.give(request.shape)
            self._accounts.ended(request, *refused, self._clock())
            try:
                raise refused[0]
            finally:
                del refused  # the error's traceback holds this frame: a cycle would keep the tensors
        if trace is not None:
            trace.admitted_ns = self._clock()
        self._begin(request)
        self._admitted += 1
        if request.detour is not None:
            self._detours.shadow(request, tensors)
        self._pace.arrived()
        return request.handle

    def _has_room(self, served: Served, now_ns: int) -> bool:
        return self._residence.admit(served, now_ns)

    def _proceed(self, request: Request) -> None:
        request.shape = self._shapes.take(request.served, request.plan)
        self._inbox.append(self._arrival(request))

    def _take_handle(self) -> int:
        self._last_handle += 1
        return self._last_handle

    def _begin(self, request: Request) -> None:
        self._requests[request.handle] = request
        request.served.live += 1

    def _admit(self, request: Request, tensors: Sequence[Buffer]) -> tuple[ApplianceError, Result] | None:
        """Queue ``request`` with its tensors; or why not, and how that is counted."""
        served = request.served
        if not self._accepting:
            return Stopping("Server is stopping"), Result.UNAVAILABLE
        request.measure(tensors)
        if not served.opened:
            return self._residence.ask(request, tensors, self._clock())
        request.shape = self._shapes.take(served, request.plan)
        now_ns = self._clock()
        self.direct.refresh(served.group)
        self._step_inbox(now_ns)
        for action in self._scheduler.step(self._arrival(request), now_ns):
            assert isinstance(action, Ended), "an arrival is queued or ends"
            return end_of(request, action)
        if request.store(self._arena, tensors):
            return None
        self._scheduler.step(events.CancelRequested(request.handle), now_ns)
        return QueueFull("Exceeds maximum queue size: no memory left for tensors"), Result.REFUSED

    def rejected(self, error: ApplianceError, request_id: str, client: str = "") -> None:
        """See EnginePort."""
        self._accounts.rejected(error, request_id, client)

    def cancel(self, handle: int) -> None:
        """See EnginePort."""
        request = self._requests.get(handle)
        if request is not None and not request.cancelled:
            request.cancelled = True
            if not self._residence.cancel(request, self._clock()):
                self._inbox.append(events.CancelRequested(handle))
            self._pace.soon()

    def versions(self, name: str) -> tuple[ModelVersion, ...]:
        """See EnginePort."""
        return tuple(served.model for served in self._routes.of(name) if served.state is VersionState.READY)

    def is_ready(self, name: str, version: str) -> bool:
        """See EnginePort."""
        with suppress(UnknownModel, NotReady, InvalidRequest):
            self._routes.resolve(name, version)
            return self._accepting
        return False

    def index(self, ready_only: bool) -> tuple[IndexEntry, ...]:
        """See EnginePort."""
        return self._routes.index(ready_only)

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
        running = self._batches.running_by_model() + self.direct.running_by_model()
        scheduled, usage = self._scheduler.statistics(), self._arena.statistics()
        return EngineStatus(
            now_ns=self._clock(), started_ns=self._started_ns, accepting=self._accepting,
            versions=self._roster.version_statuses(scheduled.queued_by_model, running),
            workers=self._roster.groups.statuses(self._roster.key_of, self._memory_of, self._lane_use),
            queued_requests=scheduled.queued, queued_bytes=scheduled.queued_bytes,
            running_requests=running.total(),
            arena_used_bytes=usage.allocated_bytes - self.direct.idle_bytes(),
            arena_limit_bytes=usage.limit_bytes, slots=self.direct.slots(),
            swaps=self._roster.swaps.figures(), residency=self._residence.figures(),
        )  # fmt: skip

    def _lane_use(self, worker: int) -> LaneUse:
        return LaneUse(self._batches.given.get(worker, 0), *self.direct.use(worker))

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """See EnginePort."""
        self._watchers.append(changed)

        def end() -> None:
            if changed in self._watchers:
                self._watchers.remove(changed)

        return end

    # --- the daemon's side

    def held(self) -> list[tuple[str, str]]:
        """Names and versions of all that has, or is about to get, a worker. From whatever thread."""
        return self._roster.held()

    def settled_of(self, name: str) -> bool:
        """Whether every version of ``name`` that is wanted either serves or was given up."""
        return self._roster.settled_of(name)

    def apply(self, catalog: Catalog, asked: Collection[str] = ()) -> None:
        """Work towards ``catalog`` from the next turn on. ``asked``: names of models of which an operator wants what
        was given up to be tried again."""
        self._roster.apply(catalog, self._clock(), asked)
        self._pace.soon()

    def roll_back(self, name: str, reason: str) -> None:
        """Go back to the version that served ``name`` before, from the next request on. Raises UnknownModel, and
        InvalidRequest when there is nothing to go back to."""
        self._roster.recall(name, reason, self._clock())
        self._pace.soon()

    def drain(self) -> None:
        """Take no more requests; what was accepted is still served."""
        if self._accepting:
            self._roster.swaps.spare()
        self._accepting = False
        self._routes.touch()
        self._pace.soon()

    def stop_workers(self) -> None:
        """Ask every worker to leave; call after the drain."""
        self._roster.stop_all()

    def pool_event(self, event: workers.PoolEvent) -> None:
        """Something happened to a worker; handled in the next turn."""
        self._news.append(event)
        self._pace.news()

    # --- one turn

    def turn(self) -> None:
        """Handle everything that has come in since the last turn."""
        now_ns = self._clock()
        finished = self._take_news(now_ns)
        self._roster.tick(now_ns)
        self._residence.tick(now_ns)
        self._step_inbox(now_ns)
        for action in self._scheduler.step(events.Settle(), now_ns):
            self._perform(action, now_ns)
        self._left_queued = self._scheduler.queued
        self.direct.look(now_ns)
        for request, result in finished:
            self._endings.finish(request, result, now_ns)
        if self._changed:
            self._announce(now_ns)
        if self._inbox or self._news:
            self._pace.soon()

    def _step_inbox(self, now_ns: int) -> None:
        while self._inbox:
            inbox, self._inbox = self._inbox, []
            for event in inbox:
                for action in self._scheduler.step(event, now_ns):
                    self._perform(action, now_ns)

    def _take_news(self, now_ns: int) -> list[tuple[Request, workers.RunResult]]:
        news, self._news = self._news, []
        finished: list[tuple[Request, workers.RunResult]] = []
        for event in news:
            if type(event) is workers.RunFinished:
                self._inbox.append(self._batches.back(event, finished))
            elif type(event) is workers.Fetched:
                request = self._endings.fetched(event)
                if request is not None:
                    finished.append((request, event.result))
            elif type(event) is workers.WorkerStarted:
                self._roster.worker_started(event)
            elif type(event) is workers.FormBuilt:
                self._roster.form_built(event, now_ns)
            elif type(event) is workers.WorkerExited:
                self._worker_exited(event, now_ns)
            else:
                self._residence.news(event, now_ns)
        return finished

    def _worker_exited(self, event: workers.WorkerExited, now_ns: int) -> None:
        blamed, had = self.direct.worker_exited(event.worker)
        away = self._residence.exiting(event)
        self._roster.worker_exited(event, self._batches.model_of, blamed, had, now_ns)
        self._residence.exited(event, away, now_ns)
        self._batches.lost(event.worker, event.batches)
        self._endings.lost(event.worker)

    def _perform(self, action: actions.Action, now_ns: int) -> None:
        if type(action) is actions.Dispatch:
            self._dispatch(action, now_ns)
        elif type(action) is actions.WakeAt:
            self._pace.at(action.at_ns)
        elif type(action) is actions.Evicted:
            request = self._requests[action.request]
            if not self._detours.reroute(request):
                self._endings.end(request, not_ready(request.plan.model), Result.UNAVAILABLE)
        elif type(action) is actions.Grant or type(action) is actions.Revoke:
            self.direct.perform(action)
        elif isinstance(action, Ended):
            request = self._requests[action.request]
            if type(action) is not actions.Lost or not self._detours.elsewhere(request):
                self._endings.end(request, *end_of(request, action))

    def _dispatch(self, action: actions.Dispatch, now_ns: int) -> None:
        requests = tuple([self._requests[handle] for handle in action.requests])
        self._pool.dispatch(action.lane, self._batches.go(action, requests, now_ns))

    def hand_out(self) -> None:
        """Give out the outcomes that turns left; callbacks may submit again."""
        if self._endings.hand_out(self._clock()) and self._roster.leaving:
            self._pace.soon()

    # --- small things

    def _feed(self, event: events.Event) -> None:
        self._inbox.append(self.direct.note(event))
        if type(event) is events.ModelClosed:
            self._shapes.forget(event.model)

    def _arrival(self, request: Request) -> events.Arrived:
        plan = request.plan
        return events.Arrived(
            request.handle,
            request.shape,
            (plan.rows or 1) if request.layout.merging else 1,
            sum(request.sizes),
            plan.head.priority,
            request.deadline_ns,
            plan.head.timeout_us,
            request.attempts > 0,
        )

    def _is_idle(self, model: int) -> bool:
        served = self._roster.served(model)
        return served is None or (served.live == 0 and not self.direct.in_flight(model))

    def _note_change(self) -> None:
        self._changed = True
        self.direct.forget()

    def _announce(self, now_ns: int) -> None:
        self._changed = False
        self._residence.look(now_ns)
        self._wanted_headers = self._roster.swaps.headers()
        self._settled_once = self._settled_once or self._roster.settled
        for changed in tuple(self._watchers):
            changed()
