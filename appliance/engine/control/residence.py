"""Models in and out of memory: carries out what ``core/memory/residency`` decides, and keeps the requests that wait.

A version is looked after from the moment it serves; it stays READY for clients whether or not it is in memory. One
that is not RESIDENT is closed for the scheduler, and the door forgets its lessons, so that every request for it comes
here. One whose weights are evicted keeps its workers and its place in them; COLD ends them. Versions on their way to
serving are not looked after, but memory is kept for them (``lodging``). Owner: the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.core.memory import residency_port as port
from appliance.core.memory.residency import Residency
from appliance.core.memory.residency_port import Form
from appliance.domain.errors import ApplianceError, Cancelled, DeadlineExpired, QueueFull
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import VersionState
from appliance.engine.control.in_use import InUse
from appliance.engine.control.lodging import Lodging, Room, Stay
from appliance.engine.control.renewals import Renewals, comes_quickly
from appliance.engine.control.residency_settings import ResidencyTerms
from appliance.engine.control.roster import Roster
from appliance.engine.fastpath.leases import Leases
from appliance.engine.port import Buffer
from appliance.engine.requests.away import refusal
from appliance.engine.requests.outcome import not_ready
from appliance.engine.requests.request import Request
from appliance.engine.requests.waiting_room import WaitingRoom
from appliance.engine.versions.routes import Routes, Served
from appliance.engine.versions.verified import by_load, by_page_in, by_refusal
from appliance.telemetry.meter import Result
from appliance.telemetry.snapshot import ResidencyFigures
from appliance.workers.arena import Arena
from appliance.workers.port import (
    LoadWish,
    ModelLoaded,
    ModelProgress,
    ModelRefused,
    PoolEvent,
    WeightsEvicted,
    WeightsPagedIn,
    WorkerExited,
    WorkerPort,
)

SAMPLE_NS = 1_000_000_000
"""How often it is looked how much models are used."""
DRAIN_NS = 1_000_000
"""How often it is looked whether a model has drained that is to leave memory."""
FAILURES_MAX = 2
"""A version that cannot be loaded so often in a row, though it could be once, is given up."""


class Residence:
    """``end`` ends a request, ``proceed`` gives one to the scheduler, ``displaced`` is told of one whose version is
    gone. ``at`` asks for ``tick`` at a time, ``soon`` at once."""

    def __init__(
        self,
        *,
        terms: ResidencyTerms,
        routes: Routes,
        roster: Roster,
        workers: WorkerPort,
        direct: Leases,
        arena: Arena,
        end: Callable[[Request, ApplianceError, Result], None],
        proceed: Callable[[Request], None],
        displaced: Callable[[Request], None],
        soon: Callable[[], None],
        at: Callable[[int], None],
        report: Callable[..., None],
    ) -> None:
        config, budget_bytes, spare_bytes, costs = terms
        self._config = config
        self._routes = routes
        self._roster, self._groups = roster, roster.groups
        self._workers = workers
        self._direct = direct
        self._arena = arena
        self._end = end
        self._proceed = proceed
        self._displaced = displaced
        self._soon = soon
        self._at = at
        self._report = report
        self._residency = Residency(config, budget_bytes)
        self._lodging, self._renewals = Lodging(config, budget_bytes, spare_bytes, costs), Renewals()
        self._in_use = InUse(self._running, self._lodging.protects)
        self._room = WaitingRoom()
        self._tenants: dict[int, Served] = {}
        self._answered: dict[int, int] = {}
        self._pending: dict[int, set[int]] = {}
        """Workers that have yet to do what was asked for a model."""
        self._draining: list[Served] = []
        self._failures: dict[int, int] = {}
        self._moved_ns: dict[int, int] = {}
        self._pinned_bytes = 0
        """What nobody takes from versions that serve."""
        self._sampled_ns = 0
        self._wake_ns = NO_DEADLINE
        self._figures = ResidencyFigures(budget_bytes=budget_bytes)
        self._problems: tuple[str, ...] = ()

    # --- requests

    def ask(
        self, request: Request, tensors: Sequence[Buffer] | None, now_ns: int
    ) -> tuple[ApplianceError, Result] | None:
        """A request for a version that the scheduler does not have: it waits with its tensors, or why not. None: it has
        waited before, for another version, and they are where they were."""
        served = request.served
        if served.id not in self._tenants or request.is_mirrored:
            return not_ready(request.plan.model), Result.UNAVAILABLE
        self._sample(now_ns)
        self._count(misses=tensors is not None)
        asked = port.Asked(served.id, request.handle, request.deadline_ns, request.memory.nbytes)
        actions = self._residency.step(asked, now_ns, self._in_use)
        answer, *others = actions
        assert isinstance(answer, port.Wait | port.Refuse), "what is in memory is open"
        refused = None
        if isinstance(answer, port.Refuse):
            self._count(refused=1)
            refused = self._refusal(request, answer), Result.REFUSED
        elif tensors is not None and not request.store(self._arena, tensors):
            others = [*others, *self._step_of(port.Withdrawn(served.id, request.handle), now_ns)]
            refused = QueueFull("Exceeds maximum queue size: no memory left for tensors"), Result.REFUSED
        elif (deadline_ns := self._room.enter(request)) is not None:
            self._at(deadline_ns)
        self._perform(others, now_ns)
        return refused

    def cancel(self, request: Request, now_ns: int) -> bool:
        """Nobody waits for its answer; True when it was waiting here."""
        if self._room.leave(request.handle) is None:
            return False
        self._end(request, Cancelled("Request cancelled"), Result.CANCELLED)
        self._tell(port.Withdrawn(request.served.id, request.handle), now_ns)
        return True

    # --- time

    def tick(self, now_ns: int) -> None:
        """Time passed: deadlines, models that have drained, loads that wait for room."""
        for request in list(self._room.late(now_ns)):
            self._end(request, DeadlineExpired("Request timeout expired"), Result.EXPIRED)
            self._tell(port.Withdrawn(request.served.id, request.handle), now_ns)
        if self._draining:
            self._drain(now_ns)
        if self._lodging.keeps and self._lodging.forget_gone(self._roster.served):
            self._tell(self._budget(), now_ns)
        if now_ns >= self._wake_ns:
            self._wake_ns = NO_DEADLINE
            self._tell(port.Settle(), now_ns)
        if now_ns - self._sampled_ns >= SAMPLE_NS:
            self._sample(now_ns)
        if self._room:
            self._at(self._room.next_deadline_ns)

    def look(self, now_ns: int) -> None:
        """The routes have changed: look after what serves now. Told at once, for what one leaves another one has."""
        there = {served.id: served for served in self._routes.all()}
        news: list[port.Told] = []
        for model, served in list(self._tenants.items()):
            if there.get(model) is not served or served.state is not VersionState.READY:
                news.append(self._remove(served, now_ns))
        if self._lodging.release(self._roster.served, self._routes.current):
            news.append(self._budget())
        for served in there.values():
            if served.id not in self._tenants and self._lodging.settles(served):
                news.append(self._add(served))
            if served.id in self._tenants:
                news.append(self._lodging.kept(served))
        self._tell(port.Changed(tuple(news)), now_ns)
        kept = {served: self._lodging.kept(served) for served in self._tenants.values()}
        self._pinned_bytes = sum(self._lodging.footprint(each).bytes for each in kept if kept[each].stays)
        found = tuple(self._lodging.problems(there.values(), kept, self._routes.is_aside))
        for problem in [each for each in found if each not in self._problems]:
            self._report("models do not fit as configured", reason=problem)
        self._problems = found

    def admit(self, served: Served, before: Served | None, now_ns: int) -> Room:
        """Whether there is memory to load a version that is on its way to serving, in the place of ``before``."""
        stay = Stay(self._residency.statistics().used_bytes, self._pinned_beside(before))
        left_bytes = self._lodging.left_bytes
        room = self._lodging.ask(served, before, stay, now_ns)
        if self._lodging.left_bytes != left_bytes:
            self._tell(self._budget(), now_ns)
        if not room.there:
            self._at(max(room.again_ns, now_ns + self._config.retry_ns))
        return room

    def _budget(self) -> port.BudgetChanged:
        return port.BudgetChanged(self._lodging.left_bytes, self._lodging.whole_bytes)

    def rests(self, served: Served) -> bool:
        """Whether a version that is known to serve begins COLD, because memory has no room for it at the start."""
        name = served.model.name
        if not served.model.on_cpu or name in self._config.pins or self._config.keep_warm_s.get(name):
            return False
        return self._lodging.rest(served, self._residency.statistics().used_bytes)

    def _add(self, served: Served) -> port.Added:
        self._tenants[served.id] = served
        self._answered[served.id] = served.meter.answered
        footprint, costs_ns = self._lodging.footprint(served), self._lodging.costs_ns(served)
        return port.Added(served.id, served.form, footprint, *costs_ns)

    def _remove(self, served: Served, now_ns: int) -> port.Removed:
        """Look after it no more. On its way in or out of memory it is out: nobody would hear how that ends."""
        model = served.id
        if not served.opened and (served.returning or model in self._pending or served in self._draining):
            self._roster.put_out(served, now_ns)
            served.form = Form.COLD
        del self._tenants[model]
        self._renewals.forget(model)
        for known in (self._answered, self._pending, self._failures, self._moved_ns):
            known.pop(model, None)
        self._draining = [other for other in self._draining if other is not served]
        for request in self._room.of(model):
            self._room.leave(request.handle)
            self._displaced(request)
        return port.Removed(model)

    def _sample(self, now_ns: int) -> None:
        """Tell how much models were used that need not ask."""
        self._sampled_ns = now_ns
        for model, served in self._tenants.items():
            answered = served.meter.answered
            more = answered - self._answered[model]
            if more > 0:
                self._answered[model] = answered
                self._residency.step(port.Used(model, more), now_ns, self._in_use)

    # --- what is to be done

    def _tell(self, event: port.Event, now_ns: int) -> None:
        self._perform(self._step_of(event, now_ns), now_ns)

    def _step_of(self, event: port.Event, now_ns: int) -> list[port.Action]:
        return self._residency.step(event, now_ns, self._in_use)

    def _perform(self, actions: Sequence[port.Action], now_ns: int) -> None:
        for action in actions:
            match action:
                case port.Load():
                    self._load(self._tenants[action.model], now_ns)
                case port.PageIn():
                    self._page_in(self._tenants[action.model], now_ns)
                case port.EvictWeights():
                    self._evict(self._tenants[action.model], now_ns)
                case port.Unload():
                    self._drop(self._tenants[action.model], now_ns)
                case port.Release():
                    self._release(action)
                case port.Refuse():
                    self._refuse(action)
                case port.WakeAt():
                    self._wake_ns = min(self._wake_ns, action.at_ns)
                    self._at(action.at_ns)

    def _release(self, action: port.Release) -> None:
        for handle in action.requests:
            request = self._room.leave(handle)
            if request is not None:
                self._proceed(request)
        # They are counted once more when they are answered, and were when they asked.
        self._answered[action.model] += len(action.requests)
        self._soon()

    def _refuse(self, action: port.Refuse) -> None:
        request = self._room.leave(action.request)
        if request is not None:
            self._count(refused=1)
            self._end(request, self._refusal(request, action), Result.REFUSED)
            self._soon()

    def _load(self, served: Served, now_ns: int) -> None:
        self._count(loads=1)
        self._moved_ns[served.id] = now_ns
        quick = comes_quickly(served.model, self._config.early_bytes) and served.id not in self._failures
        self._renewals.asked(served, now_ns)
        self._roster.bring(served, now_ns, quick=quick)

    def _page_in(self, served: Served, now_ns: int) -> None:
        self._count(page_ins=1)
        self._moved_ns[served.id] = now_ns
        holders = self._groups.holders(served)
        self._pending[served.id] = set(holders)
        for worker in holders:
            self._workers.page_in(worker, served.id, self._config.verify)
        if not holders:
            self._fail(served, now_ns)

    def _evict(self, served: Served, now_ns: int) -> None:
        holders = self._groups.holders(served)
        if self._running(served.id):
            self._tell(port.Declined(served.id), now_ns)
            return
        self._count(evictions=1)
        self._roster.send_away(served)
        self._pending[served.id] = set(holders)
        for worker in holders:
            self._workers.evict_weights(worker, served.id)

    def _drop(self, served: Served, now_ns: int) -> None:
        if self._running(served.id):
            self._tell(port.Declined(served.id), now_ns)
            return
        self._count(unloads=1)
        self._roster.send_away(served)
        self._draining.append(served)
        self._soon()

    def _drain(self, now_ns: int) -> None:
        """End the workers of models that are to leave and have nothing in flight any more."""
        draining, self._draining = self._draining, []
        for served in draining:
            if self._running(served.id):
                self._draining.append(served)
                self._at(now_ns + DRAIN_NS)
                continue
            ending = self._roster.put_out(served, now_ns)
            self._pending[served.id] = set(ending)
            if not ending:
                self._out(served, now_ns)

    def _out(self, served: Served, now_ns: int) -> None:
        self._pending.pop(served.id, None)
        served.form = Form.COLD
        self._tell(port.Done(served.id), now_ns)

    # --- what workers say

    def news(self, event: PoolEvent, now_ns: int) -> None:
        """Something happened to versions in workers: this and the roster have to know."""
        match event:
            case ModelLoaded():
                self._loaded(event, now_ns)
            case ModelProgress():
                self._roster.groups.progressed(event, self._roster.served(event.model))
            case ModelRefused():
                self._count(**by_refusal(event))
                self._groups.refused(event)
                if not self._refused(event, now_ns):
                    self._roster.model_refused(event, now_ns)
            case WeightsEvicted():
                self._evicted(event, now_ns)
            case WeightsPagedIn():
                self._paged_in(event, now_ns)
        # What is said of one may open others that come back and that its process holds already.
        for each in self._groups.members(event.worker):
            if each.id in self._tenants and each.opened and each.form is Form.COLD:
                self._back(each, now_ns)

    def _loaded(self, event: ModelLoaded, now_ns: int) -> None:
        served = self._roster.served(event.model)
        self._renewals.renewed(event.model, event.worker)
        quick = self._groups.loads_quickly(event.worker, event.model)
        if served is not None and quick:
            self._renewals.opened(served, event.worker)
        elif served is not None:
            served.quick = False
            self._count(**by_load(served.model, event))
            self._lodging.measured(served, event)
        self._roster.model_loaded(event, now_ns)
        if served is not None and served.id in self._tenants and not quick:
            self._tell(port.Measured(served.id, self._lodging.footprint(served)), now_ns)

    def _back(self, served: Served, now_ns: int) -> None:
        took_ns = now_ns - self._moved_ns.pop(served.id, now_ns)
        if self._renewals.busy(served.id):  # its weights are still arriving: as last time is counted with
            took_ns = self._renewals.took_ns(served, max(took_ns, self._lodging.load_ns(served)))
        self._arrived(served, now_ns, took_ns, self._lodging.footprint(served).bytes)

    def _arrived(self, served: Served, now_ns: int, took_ns: int, size_bytes: int) -> None:
        self._lodging.came_back(served, took_ns)
        served.form, served.returning = Form.RESIDENT, False
        self._failures.pop(served.id, None)
        self._tell(port.Measured(served.id, self._lodging.footprint(served)), now_ns)
        self._tell(port.Done(served.id, took_ns, size_bytes), now_ns)

    def _evicted(self, event: WeightsEvicted, now_ns: int) -> None:
        """A worker let the weights go."""
        served = self._answering(event.model, event.worker)
        if served is not None:
            served.form = Form.WEIGHTS_EVICTED
            self._tell(port.Done(served.id, event.ns), now_ns)

    def _paged_in(self, event: WeightsPagedIn, now_ns: int) -> None:
        """A worker has the weights again, or not as they should be."""
        served = self._tenants.get(event.model)
        if served is not None and (self._config.verify or self._renewals.awaits(event.model, event.worker)):
            self._count(**by_page_in(served.model, event))
        if served is not None and event.failure:
            if event.worker in self._pending.get(event.model, ()):
                self._come_anew(served, event.failure, now_ns)
            elif self._renewals.rejected(event.model, event.worker):
                self._roster.model_refused(ModelRefused(event.worker, event.model, event.failure), now_ns)
        elif served is not None and self._renewals.arrived(served, event.worker, now_ns):
            self._workers.load(event.worker, served.id, served.model, LoadWish(background=True))
        elif self._answering(event.model, event.worker) is not None and served is not None:
            self._roster.take_back(served)
            self._count(paged_in_bytes=event.nbytes)
            took_ns = now_ns - self._moved_ns.pop(served.id, now_ns)
            self._arrived(served, now_ns, took_ns, event.nbytes)

    def _answering(self, model: int, worker: int) -> Served | None:
        """The version whose last worker has done now what it was asked for."""
        pending = self._pending.get(model)
        if pending is None:
            return None
        pending.discard(worker)
        if pending:
            return None
        del self._pending[model]
        return self._tenants.get(model)

    def _refused(self, event: ModelRefused, now_ns: int) -> bool:
        """A version that comes back was refused, maybe for want of memory; True: it is tried again, or serves on."""
        served = self._tenants.get(event.model)
        if self._renewals.renewed(event.model, event.worker) and served is not None:
            self._report("model goes on with its quick session", model=served.key, reason=event.reason)
            return True
        if served is None or served.opened or self._failures.get(served.id, 0) + 1 >= FAILURES_MAX:
            return False
        self._come_anew(served, event.reason, now_ns)
        return True

    def _come_anew(self, served: Served, reason: str, now_ns: int) -> None:
        """It could not be brought back. What is to blame for that may be a packed form, which is held against what it
        was when it is loaded anew, and passed over."""
        self._failures[served.id] = self._failures.get(served.id, 0) + 1
        self._report("model could not be brought back", model=served.key, reason=reason)
        self._fail(served, now_ns)

    def exiting(self, event: WorkerExited) -> list[Served]:
        """Versions that an ending worker held or was to hold, and that are not open; for ``exited``."""
        return [
            served
            for served in self._groups.members(event.worker)
            if served.id in self._tenants and not served.opened
        ]

    def exited(self, event: WorkerExited, held: Sequence[Served], now_ns: int) -> None:
        """A process is gone: what left with it is out; what it was to bring back is to be brought back anew."""
        self._renewals.lost(event.worker)
        for served in held:
            if served.id in self._tenants and served.state is VersionState.READY:
                self._fail(served, now_ns)
            elif served.id in self._tenants:  # what was given up because of this is not brought back
                self._tell(self._remove(served, now_ns), now_ns)
        for model, pending in list(self._pending.items()):
            if event.worker in pending and model in self._tenants:
                pending.discard(event.worker)
                if not pending:
                    self._out(self._tenants[model], now_ns)

    def _fail(self, served: Served, now_ns: int) -> None:
        self._pending.pop(served.id, None)
        self._draining = [other for other in self._draining if other is not served]
        self._roster.put_out(served, now_ns)
        served.form = Form.COLD
        self._tell(port.Failed(served.id), now_ns)

    # --- small things

    def _running(self, model: int) -> bool:
        served = self._tenants.get(model)
        if served is None:
            return False
        if served.live > self._room.counts.get(model, 0) or self._direct.in_flight(model) > 0:
            return True
        return self._renewals.busy(model) or (served.opened and not self._groups.complete(served))

    def _count(self, **more: int) -> None:
        figures = self._figures
        sums = {key: getattr(figures, key) + value for key, value in more.items()}
        self._figures = figures._replace(**sums)

    def figures(self) -> ResidencyFigures:
        """For people, as of now."""
        sums = self._residency.statistics()
        evicted = [served for served in self._tenants.values() if served.form is Form.WEIGHTS_EVICTED]
        return self._figures._replace(
            used_bytes=sums.used_bytes + self._lodging.others_bytes,
            problems=self._problems,
            waiting=sums.waiting_requests,
            waiting_bytes=sums.waiting_bytes,
            weights_evicted_bytes=sum(self._lodging.footprint(served).evictable_bytes for served in evicted),
        )

    def _pinned_beside(self, served: Served | None) -> int:
        """What is pinned of others."""
        own = served is not None and served.id in self._tenants and self._lodging.kept(served).stays
        return self._pinned_bytes - (self._lodging.footprint(served).bytes if served and own else 0)

    def _refusal(self, request: Request, action: port.Refuse) -> ApplianceError:
        budget = self._lodging.budget_in_words(self._pinned_beside(request.served))
        return refusal(request.plan.model.name, action, self._lodging.footprint(request.served).bytes, budget)
