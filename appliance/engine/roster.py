"""Groups of workers and the versions they hold: starts, loads, replaces, quarantines.

Takes the catalog that is wanted and the events of workers; gives events to the scheduler and calls to the worker port.
One owner: the engine, which calls from its turn. A version is swapped without a gap: the new one loads beside the old,
routes flip when it is ready, then the old one drains and leaves. A version that fails to load changes nothing for the
one that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from appliance.engine.layout import merges
from appliance.engine.placement import GroupLoad, Placement, PlacementConfig, place
from appliance.engine.port import LaneUse, VersionStatus, WorkerStatus
from appliance.engine.routes import Catalog, Routes, Served
from appliance.engine.supervisor import Supervisor, SupervisorConfig
from appliance.engine.workforce import Group, Worker
from appliance.model import Batching, ModelVersion, VersionState
from appliance.scheduling.events import (
    Event,
    GroupClosed,
    GroupOpened,
    LaneClosed,
    LaneOpened,
    ModelClosed,
    ModelOpened,
)
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import (
    ExitCause,
    ModelLoaded,
    ModelRefused,
    WorkerExited,
    WorkerPort,
    WorkerSettings,
    WorkerStarted,
)

NEVER_NS = 1 << 62


class Roster:
    """Keeps the workers that the catalog needs. ``feed`` takes scheduler events; ``idle`` tells whether a model id has
    no request anywhere; ``at`` asks for ``tick`` at a time; ``settings`` are those of the n-th process."""

    def __init__(
        self,
        *,
        routes: Routes,
        workers: WorkerPort,
        placement: PlacementConfig,
        supervisor: SupervisorConfig,
        settings: Callable[[int], WorkerSettings],
        feed: Callable[[Event], None],
        idle: Callable[[int], bool],
        at: Callable[[int], None],
        report: Callable[..., None],
    ) -> None:
        self._routes = routes
        self._port = workers
        self._placement = placement
        self._supervisor = Supervisor(supervisor)
        self._settings = settings
        self._feed = feed
        self._idle = idle
        self._at = at
        self._report = report
        self._groups: dict[int, Group] = {}
        self._workers: dict[int, Worker] = {}
        self._served: dict[int, Served] = {}
        self._incoming: dict[tuple[str, int], Served] = {}
        self._leaving: list[Served] = []
        self._troubled: dict[str, str] = {}
        self._next_id = 1
        self._next_due_ns = NEVER_NS

    # --- what is wanted

    def apply(self, catalog: Catalog, now_ns: int) -> None:
        """Work towards ``catalog``: new and changed versions load, unwanted ones leave when they can be spared."""
        self._routes.set_problems({(p.name, p.version): p.reason for p in catalog.problems})
        self._troubled = {problem.name: problem.reason for problem in catalog.problems}
        wanted = {(entry.model.name, entry.model.version): entry for entry in catalog.versions}
        fresh = []
        for key, entry in wanted.items():
            current = self._incoming.get(key) or self._routes.find(*key)
            if (
                current is not None
                and current.fingerprint == entry.fingerprint
                and current.model == entry.model
                and not self._gave_up(current)
            ):
                current.retiring = False
                continue
            fresh.append(self._admit(entry.model, entry.fingerprint, now_ns))
        for served in list(self._routes.all()):
            if (served.model.name, served.model.version) not in wanted:
                served.retiring = True
            self._explain(served)
        for key in [key for key in self._incoming if key not in wanted]:
            self._forget(self._incoming.pop(key), now_ns)
        self._place(fresh, now_ns)
        self._retire(now_ns)
        self._routes.touch()

    def _explain(self, served: Served) -> None:
        """Say of a version that only stays because its replacement is broken why it is still there."""
        if served.state is VersionState.READY:
            trouble = self._troubled.get(served.model.name) if served.retiring else None
            served.reason = (
                f"serving what was loaded before; the files now have problems: {trouble}" if trouble else ""
            )

    def _gave_up(self, served: Served) -> bool:
        return served.state is VersionState.UNAVAILABLE

    def _admit(self, model: ModelVersion, fingerprint: str, now_ns: int) -> Served:
        """A new entry; it takes its place in the routes at once unless an older file of the same version serves."""
        current = self._routes.find(model.name, model.version)
        served = Served(
            id=self._take_id(),
            model=model,
            fingerprint=fingerprint,
            meter=current.meter if current else VersionMeter(model.name, model.version),
        )
        self._served[served.id] = served
        self._supervisor.forgive(served.key)
        if current is not None and current.state is VersionState.READY:
            self._incoming[model.name, model.version] = served
        else:
            previous = self._routes.put(served)
            if previous is not None:
                self._forget(previous, now_ns)
        return served

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # --- placing and starting

    def _place(self, fresh: Sequence[Served], now_ns: int) -> None:
        loads = [
            GroupLoad(
                group=group.id,
                device=group.device,
                shared=group.shared,
                processes=group.processes,
                models=len(group.models),
            )
            for group in self._groups.values()
            if not group.closing
        ]
        by_model = {id(served.model): served for served in fresh}
        for placement in place([served.model for served in fresh], loads, self._placement):
            self._fill(placement, [by_model[id(model)] for model in placement.models], now_ns)

    def _fill(self, placement: Placement, members: Sequence[Served], now_ns: int) -> None:
        group = self._groups.get(placement.group)
        if group is None:
            group = Group(
                id=self._take_id(),
                device=placement.device,
                shared=placement.shared,
                processes=placement.processes,
            )
            self._groups[group.id] = group
            self._feed(GroupOpened(group.id))
            group.due_ns = [now_ns] * group.processes
        for served in members:
            served.group = group.id
            group.models.append(served)
            for worker in group.workers.values():
                self._load(worker, served)
        self._start_due(group, now_ns)

    def _start_due(self, group: Group, now_ns: int) -> None:
        due = [at for at in group.due_ns if at <= now_ns]
        group.due_ns = [at for at in group.due_ns if at > now_ns]
        for _ in due:
            worker = Worker(id=self._take_id(), group=group.id, number=self._free_number(), started_ns=now_ns)
            group.workers[worker.id] = self._workers[worker.id] = worker
            self._port.start(worker.id, self._settings(worker.number))
            for served in group.models:
                self._load(worker, served)
        for at in group.due_ns:
            self._next_due_ns = min(self._next_due_ns, at)
            self._at(at)

    def _free_number(self) -> int:
        """The lowest number no process has, so that a replacement gets the processors of the one that ended."""
        taken = {worker.number for worker in self._workers.values()}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _load(self, worker: Worker, served: Served) -> None:
        if served.state is not VersionState.UNAVAILABLE and not worker.stopping:
            self._port.load(worker.id, served.id, served.model)

    def tick(self, now_ns: int) -> None:
        """Time passed: start what is due, let go what has drained."""
        if now_ns >= self._next_due_ns:
            self._next_due_ns = NEVER_NS
            for group in list(self._groups.values()):
                if group.due_ns:
                    self._start_due(group, now_ns)
        if self._leaving:
            self._let_go(now_ns)

    # --- what workers say

    def worker_started(self, event: WorkerStarted) -> None:
        """The process exists; its loads are under way."""
        worker = self._workers.get(event.worker)
        if worker is not None:
            worker.pid = event.pid

    def model_loaded(self, event: ModelLoaded, now_ns: int) -> None:
        """One worker holds one more model: maybe its lane opens, maybe the model does."""
        worker, served = self._workers.get(event.worker), self._served.get(event.model)
        if worker is None or served is None:
            return
        worker.loaded.add(served.id)
        served.seeds = served.seeds or event.seeds
        group = self._groups[worker.group]
        group.load_ns = max(group.load_ns, now_ns - worker.started_ns)
        self._review(group, now_ns)

    def _review(self, group: Group, now_ns: int) -> None:
        """Open what can be opened now. A lane opens when its worker holds every model the group has opened; a model
        opens when every open lane holds it."""
        opened = {served.id for served in group.models if served.opened}
        for worker in group.workers.values():
            if worker.loaded and opened <= worker.loaded and not worker.open and not worker.stopping:
                worker.open = True
                self._feed(LaneOpened(worker.id, group.id))
        lanes = [worker for worker in group.workers.values() if worker.open]
        for served in list(group.models):
            if lanes and not served.opened and all(served.id in worker.loaded for worker in lanes):
                self._open(served, now_ns)

    def _open(self, served: Served, now_ns: int) -> None:
        served.opened = True
        max_batch = served.model.max_batch_size if merges(served.model) else 1
        self._feed(ModelOpened(served.id, served.group, max_batch, served.model.batching or Batching()))
        served.state, served.reason = VersionState.READY, ""
        self._report("version ready", model=served.key)
        self._promote(served, now_ns)
        self._retire(now_ns)
        self._routes.touch()

    def _promote(self, served: Served, now_ns: int) -> None:
        """Put a reloaded version in the place of the one that served so far."""
        key = (served.model.name, served.model.version)
        if self._incoming.get(key) is served:
            del self._incoming[key]
            previous = self._routes.put(served)
            if previous is not None:
                self._leave(previous, now_ns)

    def model_refused(self, event: ModelRefused, now_ns: int) -> None:
        """The runtime will not have it: UNAVAILABLE with the runtime's reason."""
        served = self._served.get(event.model)
        if served is not None:
            self._give_up(served, event.reason, now_ns)

    def _give_up(self, served: Served, reason: str, now_ns: int) -> None:
        served.state, served.reason = VersionState.UNAVAILABLE, reason
        self._report("version unavailable", model=served.key, reason=reason)
        self._close(served)
        group = self._groups.get(served.group)
        if group is not None and served in group.models:
            group.models.remove(served)
            for worker in group.workers.values():
                if served.id in worker.loaded:
                    worker.loaded.discard(served.id)
                    self._port.unload(worker.id, served.id)
            self._close_if_empty(group)
            self._review(group, now_ns)
        served.group = -1
        key = (served.model.name, served.model.version)
        if self._incoming.get(key) is served:
            del self._incoming[key]
            current = self._routes.find(*key)
            if current is not None:
                current.reason = f"still serving the previous file; the new one failed: {reason}"
            self._served.pop(served.id, None)
        self._retire(now_ns)
        self._routes.touch()

    def _close(self, served: Served) -> None:
        if served.opened:
            served.opened = False
            self._feed(ModelClosed(served.id))

    def worker_exited(
        self, event: WorkerExited, model_of_batch: Callable[[int], int], blamed: int, had: int, now_ns: int
    ) -> None:
        """A process is gone: close its lane, find the culprit, plan the replacement. ``had``: requests that it had by
        grant, the oldest of the model ``blamed``."""
        worker = self._workers.pop(event.worker, None)
        if worker is None:
            return
        group = self._groups[worker.group]
        del group.workers[worker.id]
        if worker.stopping or event.cause is ExitCause.STOPPED:
            self._close_lane(worker, 0)
            self._end_if_empty(group)
            return
        culprit = self._culprit(event, model_of_batch, blamed)
        self._report(
            "worker exited", worker=worker.id, pid=worker.pid, detail=event.detail,
            model=culprit.key if culprit else None, batches_lost=len(event.batches), requests_handed_over=had,
            reason=event.cause.value,
        )  # fmt: skip
        group.restarts += 1
        back_at = now_ns + self._supervisor.restart_delay_ns(group.id, now_ns - worker.started_ns)
        self._close_lane(worker, back_at + group.load_ns + 1)
        group.due_ns.append(back_at)
        if culprit is not None and self._supervisor.crashed(culprit.key, now_ns):
            self._give_up(
                culprit, f"quarantined after repeated crashes: {event.cause.value}, {event.detail}", now_ns
            )
        if not group.closing:
            self._start_due(group, now_ns)
            self._review(group, now_ns)

    def _culprit(self, event: WorkerExited, model_of: Callable[[int], int], blamed: int) -> Served | None:
        """The version that was loading or running when the process ended; None when it was idle."""
        if event.cause is ExitCause.SUPERVISOR:
            return None
        if event.batches:
            return self._served.get(model_of(event.batches[0]))
        return self._served.get(event.loading if event.loading >= 0 else blamed)

    def _close_lane(self, worker: Worker, back_at_ns: int) -> None:
        if worker.open:
            worker.open = False
            self._feed(LaneClosed(worker.id, back_at_ns))

    # --- leaving

    def _retire(self, now_ns: int) -> None:
        """Let unwanted versions go once what is wanted of the same name serves, or nothing of it is wanted. A version
        that should replace them and is broken keeps them serving."""
        for served in [served for served in self._routes.all() if served.retiring]:
            others = [other for other in self._routes.of(served.model.name) if not other.retiring]
            serving = any(other.state is VersionState.READY for other in others)
            unwanted = not others and served.model.name not in self._troubled
            if serving or unwanted or served.state is not VersionState.READY:
                self._routes.remove(served)
                self._leave(served, now_ns)

    def _leave(self, served: Served, now_ns: int) -> None:
        served.state = VersionState.UNLOADING
        self._leaving.append(served)
        self._let_go(now_ns)

    def _let_go(self, now_ns: int) -> None:
        for served in [served for served in self._leaving if self._idle(served.id)]:
            self._leaving.remove(served)
            self._forget(served, now_ns)

    @property
    def leaving(self) -> bool:
        """Whether some version waits for its last requests."""
        return bool(self._leaving)

    def _forget(self, served: Served, now_ns: int) -> None:
        self._close(served)
        self._served.pop(served.id, None)
        group = self._groups.get(served.group)
        if group is None or served not in group.models:
            return
        group.models.remove(served)
        self._report("version unloaded", model=served.key)
        for worker in group.workers.values():
            worker.loaded.discard(served.id)
            if group.models:
                self._port.unload(worker.id, served.id)
        self._close_if_empty(group)
        self._review(group, now_ns)

    def _close_if_empty(self, group: Group) -> None:
        """End a group without models; its lanes close when their processes have ended, with what they still run."""
        if group.models or group.closing:
            return
        group.closing = True
        group.due_ns.clear()
        for worker in group.workers.values():
            worker.stopping = True
            self._port.stop(worker.id)
        self._end_if_empty(group)

    def _end_if_empty(self, group: Group) -> None:
        if group.closing and not group.workers and self._groups.pop(group.id, None) is not None:
            self._supervisor.group_closed(group.id)
            self._feed(GroupClosed(group.id))

    def stop_all(self) -> None:
        """The daemon ends: every worker is asked to leave."""
        for group in self._groups.values():
            group.closing = True
            group.due_ns.clear()
        for worker in self._workers.values():
            worker.stopping = True
            self._port.stop(worker.id)

    # --- what others ask

    @property
    def settled(self) -> bool:
        """Whether every version that is wanted either serves or was given up."""
        waiting = any(served.state is VersionState.LOADING for served in self._served.values())
        return not waiting and not self._incoming

    def settled_of(self, name: str) -> bool:
        """Whether that holds for every version of ``name``."""
        loading = (served for served in self._served.values() if served.state is VersionState.LOADING)
        return not any(
            of == name for of in (*(each.model.name for each in loading), *(key[0] for key in self._incoming))
        )

    def served(self, model: int) -> Served | None:
        """The version with model id ``model``."""
        return self._served.get(model)

    def version_statuses(
        self, queued: Mapping[int, int], running: Mapping[int, int]
    ) -> tuple[VersionStatus, ...]:
        """All versions, for people; ``queued`` and ``running`` count requests by model id."""
        return tuple(
            VersionStatus(
                name=served.model.name,
                version=served.model.version,
                state=served.state,
                reason=served.reason,
                queued=queued.get(served.id, 0),
                running=running.get(served.id, 0),
                workers=self.workers_of(served),
                statistics=served.meter.frozen(),
            )
            for served in self._routes.all()
        )

    def workers_of(self, served: Served) -> tuple[int, ...]:
        """Worker ids that hold ``served``."""
        workers = self._groups[served.group].workers.values() if served.group in self._groups else ()
        return tuple(worker.id for worker in workers if served.id in worker.loaded)

    def worker_statuses(
        self, memory_of: Callable[[int], int], use_of: Callable[[int], LaneUse]
    ) -> tuple[WorkerStatus, ...]:
        """All processes, for people; ``memory_of`` knows the bytes of a process, ``use_of`` who gave work to a lane."""
        return tuple(
            WorkerStatus(
                worker=worker.id,
                pid=worker.pid,
                state=worker.state,
                models=tuple(self._keys(worker.loaded, self._served)),
                memory_bytes=memory_of(worker.pid) if worker.pid else 0,
                restarts=self._groups[worker.group].restarts if worker.group in self._groups else 0,
                use=use_of(worker.id),
            )
            for worker in self._workers.values()
        )

    @staticmethod
    def _keys(models: Iterable[int], served: Mapping[int, Served]) -> list[str]:
        return sorted(served[model].key for model in models if model in served)
