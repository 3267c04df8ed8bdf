"""Performs what ``core/rollout`` decides, and tells it what happens: the versions there are, and their workers.

Takes the wanted catalog and what workers say; gives events to the scheduler. Owner: the engine, in its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from appliance.config.workers import PlacementConfig
from appliance.core.processes.restart import RestartPolicy, Restarts, load_is_to_blame
from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.catalog import Catalog
from appliance.core.rollout.rollout import Rollout
from appliance.core.scheduling.events import ModelClosed, ModelOpened
from appliance.domain.errors import ApplianceError
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import RequestHead
from appliance.domain.model import Batching
from appliance.domain.validation import plan_request
from appliance.engine.control.forms import Forms
from appliance.engine.control.instance_group import Held, Here
from appliance.engine.control.instance_groups import InstanceGroups
from appliance.engine.control.memory_port import MemoryPort, memory_answered
from appliance.engine.control.recorder import Recorder, SwapTerms
from appliance.engine.control.rollout_report import RolloutReport
from appliance.engine.control.traffic import Traffic
from appliance.engine.control.version_blame import VersionBlame
from appliance.engine.environment import Shell
from appliance.engine.fastpath.leases import Leases
from appliance.engine.versions.batch_keys import BatchKeys
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Placed, Served
from appliance.engine.versions.wording import remark_text
from appliance.workers.port import (
    FormBuilt,
    ModelLoaded,
    ModelRefused,
    WorkerExited,
    WorkerPort,
    WorkerStarted,
)
from appliance.workers.settings import WorkerTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTerms:
    """What rollouts go by, and the processes that versions are loaded into."""

    swap: SwapTerms
    placement: PlacementConfig
    restart: RestartPolicy
    workers: WorkerTerms


class Rollouts:
    """``served`` are the versions that are here, by id: each that has, or is to get, a worker. Only this changes it."""

    def __init__(
        self,
        *,
        terms: RolloutTerms,
        served: dict[int, Served],
        routes: Routes,
        batch_keys: BatchKeys,
        workers: WorkerPort,
        leases: Leases,
        shell: Shell,
    ) -> None:
        self._served, self._routes = served, routes
        self._batch_keys = batch_keys
        self._leases = leases
        self._shell = shell
        self._memory: MemoryPort | None = None
        self._restarts = Restarts(terms.restart)
        self._recorder = Recorder(terms.swap, shell.wall_ms)
        self._core = Rollout(terms.swap.config, self._recorder)
        self._groups = InstanceGroups(
            workers=workers,
            placement=terms.placement,
            processes=terms.workers,
            feed=leases,
            pace=shell.pace,
            ids=self._core.registry,
            here=Here(served, self._core.trials.attempts),
            restarts=self._restarts,
        )
        ids, history = self._core.registry, batch_keys.history
        self.forms = Forms(workers=workers, processes=terms.workers, ids=ids, history=history, shell=shell)
        self.version_blame = VersionBlame(
            served=served,
            routes=routes,
            restarts=self._restarts,
            forms=self.forms,
            attempts=self._core.trials.attempts,
            pace=shell.pace,
        )
        self._traffic = Traffic(self._served, self._recorder)
        self._told: deque[told.Event] = deque()
        self._busy = False

    def use(self, memory: MemoryPort) -> None:
        """Ask ``memory`` from now on."""
        self._memory = memory
        self._groups.use(memory)

    # --- the core

    def _tell(self, event: told.Event, now_ns: int) -> None:
        """Tell the core, and perform what it wants, until it wants nothing more."""
        self._told.append(event)
        if self._busy:
            return
        self._busy, touched = True, False
        try:
            while self._told:
                for action in self._core.step(self._told.popleft(), now_ns):
                    touched |= isinstance(action, do.Touch)
                    self._perform(action, now_ns)
        finally:
            self._busy = False
        if touched:
            self.touch()

    def _perform(self, action: do.Action, now_ns: int) -> None:
        match action:
            case do.Add():
                self._add(action)
            case do.Route():
                self._route(action)
            case do.Unroute():
                self._moved(self._routes.remove(self._served[action.version]))
            case do.Split() | do.Resplit() | do.Unsplit() | do.FallBack() | do.LimitRuns():
                self._traffic.perform(action)
            case do.ReadFigures():
                self._told.append(self._traffic.figures(action))
            case do.ReserveMemory():
                self._told.append(self._reserve(action, now_ns))
            case do.Rest():
                assert self._memory is not None, "memory is in use before there is any"
                self._memory.rest(self._served[action.version])
            case do.RecordAttempts():
                self._recorder.record_attempts(action, partial(self._recorded, action.versions))
            case do.Load():
                fresh = [self._served[version] for version in action.versions]
                self._groups.place(fresh, now_ns, alone=action.alone)
            case do.Unload():
                self._open(self._groups.drop(self._served[action.version]), now_ns)
            case do.Close():
                self._close(self._served[action.version])
            case do.Forget():
                self._served.pop(action.version, None)
                self._traffic.forget(action.version)
            case do.ConsiderForm() | do.RefuseForm() | do.ForgetForm():
                self._form(action)
            case do.Report():
                self._report(action)
            case do.WakeAt():
                self._wake(action.at_ns)
            case do.Touch():
                pass  # see ``_tell``
            case _:
                self._recorder.perform(action)

    def _add(self, action: do.Add) -> None:
        version, like = action.version, self._served.get(action.like or 0)
        meter = like.meter if like is not None else self._recorder.meter_of(version)
        placed = Placed(mixes=self._recorder.rows_mix(version))
        self._served[version.id] = Served(version=version, meter=meter, placed=placed)

    def _route(self, action: do.Route) -> None:
        served = self._served[action.version]
        previous = self._routes.find(*served.version.slot)
        self._moved(self._routes.put(served))
        if action.counted and previous is not None:
            previous.meter.absorb(served.meter)
            served.meter = previous.meter

    def _reserve(self, action: do.ReserveMemory, now_ns: int) -> told.MemoryAnswered:
        assert self._memory is not None, "memory is in use before there is any"
        served = self._served[action.version]
        if action.rest and self._memory.rests(served, now_ns):
            return told.MemoryAnswered(served.id, asked=False, rests=True)
        if not action.reserve:
            return told.MemoryAnswered(served.id, asked=False)
        before = self._served[action.before] if action.before is not None else None
        return memory_answered(served.id, self._memory.reserve(served, before, now_ns))

    def _recorded(self, versions: tuple[int, ...], problem: str | None) -> None:
        self._tell(told.AttemptsRecorded(versions, problem), self._shell.clock())

    def _form(self, action: do.ConsiderForm | do.RefuseForm | do.ForgetForm) -> None:
        match action:
            case do.ForgetForm():
                self.forms.forget(action.identity)
            case do.ConsiderForm():
                self._consider_form(self._served[action.version])
            case do.RefuseForm():
                served = self._served[action.version]
                if not served.memory.quick:  # that session runs from no form
                    known, reason = self.version_blame.knows(served), remark_text(action.reason)
                    self.forms.refuse(served, reason, known=known and not action.passing)
                    if action.serving is not None:
                        self.forms.goes_without(self._served[action.serving], reason)

    def _consider_form(self, served: Served) -> None:
        if self._core.config.packed_forms:
            self.forms.consider(served)

    def _report(self, action: do.Report) -> None:
        fields = dict(action.fields)
        if action.reason is not None:
            fields["reason"] = remark_text(action.reason)
        self._shell.log.event(action.what, **fields)

    def _wake(self, at_ns: int) -> None:
        if at_ns:
            self._shell.pace.at(at_ns)
        else:
            self._shell.pace.soon()

    # --- what is wanted

    def apply(self, catalog: Catalog, now_ns: int, asked: Collection[str] = ()) -> None:
        """Work towards ``catalog``: new and changed versions load, unwanted ones leave when they can be spared.
        ``asked``: see Wanted."""
        self._moved(self._routes.set_problems(catalog.problems))
        self._routes.set_aside(catalog.aside)
        wanted = told.Wanted(catalog=catalog, asked=frozenset(asked), wall_ms=self._shell.wall_ms())
        self._tell(wanted, now_ns)

    def stopping(self, now_ns: int) -> None:
        """The daemon is asked to stop."""
        self._tell(told.Stopping(), now_ns)

    def tick(self, now_ns: int) -> None:
        """Time passed: start what is due, look at trials, let go what has drained."""
        self._groups.tick(now_ns)
        self._tell_blame(now_ns)
        self._tell(told.Tick(frozenset(self._groups.loading_aside()), self._shell.wall_ms()), now_ns)
        self.forms.tick(now_ns)
        if self._core.calm:
            self._build_form(now_ns)
        drained = tuple(each.id for each in self._core.registry.leaving if self._is_idle(each.id))
        if drained:
            self._tell(told.Drained(drained), now_ns)

    def _build_form(self, now_ns: int) -> None:
        """Build the next form that its version would still change over to."""
        while (served := self.forms.next) is not None:
            if self._core.succession.lacks_form(served.version):
                self.forms.build(self._groups.form_room_bytes(served), now_ns)
            else:
                self.forms.skip()

    def _is_idle(self, model: int) -> bool:
        """Whether a version has no request anywhere."""
        served = self._served.get(model)
        return served is None or (served.requests.live == 0 and self._leases.is_through(model))

    def touch(self) -> None:
        """What names mean has changed."""
        self._moved(self._routes.touch())

    def _moved(self, moved: Sequence[Served]) -> None:
        """Requests of these go elsewhere: front ends forget their templates of them."""
        for served in moved:
            served.epoch += 1
            self._leases.forget(served.id)

    def look(self, now_ns: int) -> None:
        """The routes have changed."""
        self._tell(told.Changed(self._shell.wall_ms()), now_ns)

    # --- what requests say

    def compared(self, served: Served, difference: str | None) -> None:
        """An answer of it lay beside the real one; taken in with the next ``tick``."""
        self._told.append(told.Compared(served.id, difference))
        self._recorder.count(compared=1, differing=difference is not None)
        self._shell.pace.soon()

    def count_mirrored(self, mirrored: int, left_out: int) -> None:
        """So many requests were mirrored, or were to be and there was no room."""
        self._recorder.count(shadow_requests=mirrored, shadow_dropped=left_out)

    def refused(self, served: Served, head: RequestHead) -> None:
        """A request that named no version was none for ``served``, which serves its model."""
        before = self._core.awaits_requests_of(served.id)
        if before is None:
            return
        with suppress(ApplianceError):
            plan_request(before.model, head)
            self._told.append(told.Missed(served.id))

    # --- what workers say

    def worker_started(self, event: WorkerStarted) -> None:
        """The process exists; its loads are under way."""
        self._groups.worker_started(event)

    def model_loaded(self, event: ModelLoaded, now_ns: int) -> None:
        """One worker holds one more model: maybe its lane opens, maybe the model does."""
        served = self.served(event.model)
        if served is not None:
            self._recorder.loaded(event, served.version)
            self._tell(told.Loaded(served.id, event.assessment, event.seeds, event.packed), now_ns)
            comes = served.memory.returning or event.worker in self._groups.holders(served)
            quick = self._groups.loads_quickly(event.worker, served.id)
            if comes and not quick and served.id not in self._core.trials.attempts:
                # What began out of memory had no chance yet to have its form built. A quick session uses none.
                self._consider_form(served)
        merged = served.merges if served is not None and served.opened else None
        self._open(self._groups.loaded(event, served, now_ns), now_ns)
        if served is not None and merged is not None and served.merges is not merged:
            self.send_away(served)  # what is queued comes back to be merged, or not to be
            self.take_back(served)

    def model_refused(self, event: ModelRefused, now_ns: int) -> None:
        """The runtime will not have it, or it gave wrong answers."""
        if event.model in self._core.registry.versions:
            self._recorder.count(assessments=event.assessed, assessments_failed=event.assessed)
            # A process that has held others may say this of them, too, and they would stay out for its word alone.
            unsupported = event.unsupported and self._groups.did_only(event.worker, event.model)
            version = self._core.registry.versions[event.model]
            self._tell(told.Refused(event.model, event.reason, unsupported), now_ns)
            serving = self._core.registry.find(version.slot)
            if event.full and version.is_packed and serving is not None:
                self.forms.try_later(self._served[serving.id], event.reason, now_ns)

    def _open(self, there: Sequence[Served], now_ns: int) -> None:
        """The scheduler may have them; whether they serve is for their trials to say."""
        for served in there:
            if not served.opened and served.placed.group >= 0:
                self.take_back(served)
                self._tell(told.Opened(served.id), now_ns)

    def worker_exited(self, event: WorkerExited, held: Held, now_ns: int) -> None:
        """A process is gone: close its lane, find the culprit, plan the replacement."""
        known = self._groups.exited(event.worker)
        if known is None:
            self.forms.exited(event.worker, event.detail)
            return
        worker, group = known
        if worker.stopping or event.cause is ExitCause.STOPPED:
            self._groups.left(worker, group)
            return
        culprit = self.load_to_blame(event, running=held.running)
        self._shell.log.event(
            "worker exited",
            worker=worker.id,
            pid=worker.pid,
            detail=event.detail,
            **({"model": busy.key} if (busy := culprit or held.asked) else {}),
            models=group.names(worker),
            batches_lost=len(event.batches),
            requests_handed_over=held.leased,
            reason=event.cause.value,
        )
        at_work = culprit is None and (held.running or held.leased)
        delay_ns = 0 if at_work else self._restarts.restart_delay_ns(group.id, now_ns - worker.started_ns)
        if self._memory is not None:  # a load on a device that failed would be held against the version
            delay_ns = max(delay_ns, self._memory.pause_ns(group.device))
        self._groups.lost(worker, group, event.cause, now_ns + delay_ns, final=held.final)
        if culprit is not None:
            wish = worker.loading.get(culprit.id)
            quick = wish is not None and wish.quick
            certain = worker.did_only(culprit.id) and not (held.running or held.leased)
            self.version_blame.loaded(culprit, event, now_ns, quick=quick, known=certain)
        elif event.cause is ExitCause.GAVE_UP and held.asked is not None:
            self._groups.leave_uncaptured(held.asked)
        self._tell_blame(now_ns)
        self._open(self._groups.resume(group, now_ns), now_ns)

    def load_to_blame(self, event: WorkerExited, *, running: bool) -> Served | None:
        """The version whose load ended a process; None: none did."""
        loads_new = self._core.registry.is_new(event.loading)
        blamed = load_is_to_blame(event.cause, running=running, loads_new=loads_new)
        return self.served(event.loading) if blamed else None

    def _tell_blame(self, now_ns: int) -> None:
        for event in self.version_blame.take(now_ns):
            self._tell(event, now_ns)

    # --- what memory wants

    def _close(self, served: Served) -> None:
        """The scheduler may have it no more."""
        if served.opened:
            served.opened = False
            self._leases.put(ModelClosed(served.id))
            self._batch_keys.forget(served.id)

    def send_away(self, served: Served) -> None:
        """It serves on, but has to be asked for: its requests go by the scheduler no more."""
        self._close(served)
        served.epoch += 1

    def take_back(self, served: Served) -> None:
        """It is in memory: the scheduler may have it."""
        served.opened = True
        max_batch = served.model.max_batch_size if served.merges else 1
        batching = served.model.batching or Batching()
        self._leases.put(ModelOpened(served.id, served.placed.group, max_batch, batching))

    def put_out(self, served: Served, now_ns: int) -> tuple[int, ...]:
        """It leaves its workers; gives those that end with that."""
        self._close(served)
        group = served.placed.group
        self._open(self._groups.drop(served), now_ns)
        return self._groups.ending(group)

    def bring(self, served: Served, now_ns: int) -> None:
        """Load it again, for it serves: it is taken back when a worker has it."""
        self._groups.place([served], now_ns)

    # --- devices

    def move(self, served: Served, now_ns: int) -> bool:
        """Have it be loaded for another device, and take its own place; whether that is under way."""
        self._tell(told.Displaced(served.id), now_ns)
        copy = self._core.registry.incoming.get(served.version.slot)
        return copy is not None and copy.spec.moved

    @property
    def moving(self) -> bool:
        """Whether a version is being loaded for another device, to take its own place."""
        return any(copy.spec.moved for copy in self._core.registry.incoming.values())

    def on_devices(self) -> list[Served]:
        """All versions that run, or are to run, on a device other than the processor."""
        return [served for served in self._served.values() if not served.model.on_cpu]

    # --- what else happens

    def form_built(self, event: FormBuilt, now_ns: int) -> None:
        """A packed form is there, or is not to be had."""
        served = self.forms.ended(event, now_ns)
        if served is not None:
            self._tell(told.FormBuilt(served.id, event.compared), now_ns)

    def stop_all(self) -> None:
        """The daemon ends: every worker is asked to leave."""
        self.forms.stop()
        self._groups.stop_all()

    # --- what others ask

    @property
    def report(self) -> RolloutReport:
        """What there is to tell of versions, as of now."""
        return RolloutReport(
            core=self._core,
            routes=self._routes,
            groups=self._groups,
            traffic=self._traffic,
            recorder=self._recorder,
            memory=self._memory,
        )

    @property
    def groups(self) -> InstanceGroups:
        """To be asked only."""
        return self._groups

    @property
    def settled(self) -> bool:
        """See Registry."""
        return self._core.registry.settled

    @property
    def leaving(self) -> bool:
        """Whether some version waits for its last requests."""
        return bool(self._core.registry.leaving)

    @property
    def core(self) -> Rollout:
        """What decides: to be asked, not told."""
        return self._core

    def served(self, model: int) -> Served | None:
        """The version with model id ``model``, if it has, or is about to get, a worker."""
        return self._served.get(model)
