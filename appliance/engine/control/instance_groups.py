"""Instance groups of worker processes: placed, started, restarted, closed, and which of them hold which versions.

Knows nothing of what versions are for: the rollout says which are wanted, and is told when one can be opened. One
owner: the rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from appliance.config.workers import PlacementConfig
from appliance.core.memory.budget import WaitsForProcess
from appliance.core.processes.placement import GroupLoad, Placement, has_processes, place
from appliance.core.processes.restart import Restarts
from appliance.core.rollout.attempt import Attempt
from appliance.core.rollout.phase import ON_ITS_WAY, SERVING, Phase
from appliance.core.scheduling.events import GroupClosed, GroupOpened, LaneClosed, LaneOpened
from appliance.domain.device import DeviceName
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion
from appliance.engine.control.instance_group import Here, Ids, InstanceGroup, Worker
from appliance.engine.control.memory_port import MemoryPort
from appliance.engine.environment import Pace
from appliance.engine.inbox import Feed
from appliance.engine.versions.served import Served
from appliance.workers.port import (
    ModelLoaded,
    ModelProgress,
    ModelRefused,
    WorkerPort,
    WorkerStarted,
)
from appliance.workers.settings import WorkerSettings, WorkerTerms

NEVER_NS = 1 << 62
UNCAPTURED: Final = (
    "it runs without CUDA graphs until it has other files or the appliance starts anew: its session went with the "
    "capture of one, could not be made anew, and its worker ended for that"
)


class InstanceGroups:
    """``feed`` takes scheduler events; ``pace`` is asked for turns, with ``tick``; ``processes`` are the settings of
    workers; ``restarts`` forgets a group that is gone. What gives versions gives those that can be opened now."""

    def __init__(
        self,
        *,
        workers: WorkerPort,
        placement: PlacementConfig,
        processes: WorkerTerms,
        feed: Feed,
        pace: Pace,
        ids: Ids,
        here: Here,
        restarts: Restarts,
    ) -> None:
        self._port = workers
        self._placement = placement
        self._processes = processes
        self._feed = feed
        self._pace = pace
        self._ids = ids
        self._here = here
        self._restarts = restarts
        self._memory: MemoryPort | None = None
        self._groups: dict[int, InstanceGroup] = {}
        self._workers: dict[int, Worker] = {}
        self._next_due_ns = NEVER_NS

    def use(self, memory: MemoryPort) -> None:
        """Have ``memory`` say from now on how much of a device each load may take."""
        self._memory = memory

    # --- placing and starting

    def place(self, fresh: Sequence[Served], now_ns: int, *, alone: bool = False) -> None:
        """Give each version a group and load it there; ``alone``: each in processes of its own."""
        loads, known = self._loads(), {served.id for served in fresh}
        promised = [served.model for served in self.promised() if served.id not in known]
        by_model = {id(served.model): served for served in fresh}
        together, apart = self._sharing([served.model for served in fresh], alone=alone)
        device_of = lambda model: by_model[id(model)].memory.device  # noqa: E731
        placements = (
            *place(together, loads, self._placement, promised=promised, device_of=device_of),
            *place(apart, loads, self._placement, alone=True, device_of=device_of),
        )
        for placement in placements:
            self._fill(placement, [by_model[id(model)] for model in placement.models], now_ns)

    def promised(self) -> list[Served]:
        """Versions that are to have a worker of their own, and have none now. One that waits for something else, which
        may never come, has no use for a process."""
        return [
            served
            for served in self._here.served.values()
            if served.model.own_worker
            and served.placed.group < 0
            and served.phase in SERVING | ON_ITS_WAY
            and isinstance(served.version.waiting, WaitsForProcess | None)
        ]

    def lack(
        self, served: Served, before: Served | None, promised: Sequence[Served]
    ) -> WaitsForProcess | None:
        """Whether there is no process for a version that is to have its own, in the place of ``before``; ``promised``
        are others that come first."""
        models = [each.model for each in promised if each is not served]
        replaces = before.placed.group if before is not None else -1
        loads, config = self._loads(), self._placement
        if has_processes(served.model, loads, config, promised=models, replaces=replaces):
            return None
        return WaitsForProcess(processes=config.max_processes)

    def _loads(self) -> list[GroupLoad]:
        return [
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

    def _sharing(
        self, models: Sequence[ModelVersion], *, alone: bool
    ) -> tuple[list[ModelVersion], list[ModelVersion]]:
        """Those that may share a process, and those that get their own: because they are to be alone, or because their
        files lie where a worker that others have cannot read, as those of a model that was given by hand."""
        settings = self._processes.settings(0)
        together = [model for model in models if not alone and settings.covers(model)]
        return together, [model for model in models if model not in together]

    def _fill(self, placement: Placement, members: Sequence[Served], now_ns: int) -> None:
        group = self._groups.get(placement.group)
        if group is None:
            group = InstanceGroup(
                id=self._ids.take_id(),
                device=placement.device,
                shared=placement.shared,
                processes=placement.processes,
            )
            self._groups[group.id] = group
            self._feed.put(GroupOpened(group.id))
            group.due_ns = [now_ns] * group.processes
        for served in members:
            served.placed.group = group.id
            group.models.append(served)
            for worker in group.workers.values():
                self._load(worker, served)
        self._start_due(group, now_ns)

    def _start_due(self, group: InstanceGroup, now_ns: int) -> None:
        due = [at for at in group.due_ns if at <= now_ns]
        group.due_ns = [at for at in group.due_ns if at > now_ns]
        for _ in due:
            number = self._free_number()
            worker = Worker(id=self._ids.take_id(), group=group.id, number=number, started_ns=now_ns)
            group.workers[worker.id] = self._workers[worker.id] = worker
            self._port.start(worker.id, group.id, self._settings_of(worker, group))
            for served in group.models:
                self._load(worker, served)
        for at in group.due_ns:
            self._next_due_ns = min(self._next_due_ns, at)
            self._pace.at(at)

    def _settings_of(self, worker: Worker, group: InstanceGroup) -> WorkerSettings:
        models = [served.model for served in group.models]
        settings = self._processes.settings(worker.number, group.device)
        return settings.serving(models, shared=group.shared, device=group.device)

    def _free_number(self) -> int:
        """The lowest number no process has, so that a replacement gets the processors of the one that ended."""
        taken = {worker.number for worker in self._workers.values()}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _load(self, worker: Worker, served: Served) -> None:
        if served.phase is not Phase.FAILED and not worker.stopping:
            room_bytes = self._memory.room_bytes(served) if self._memory is not None else 0
            wish = load_wish(served, self._here.attempts.get(served.id))
            wish = wish._replace(room_bytes=room_bytes, probe=served.rows_untried)
            worker.loading[served.id] = wish
            model = served.in_force
            if served.placed.uncaptured:
                model = replace(model, cuda_graphs=False)
            if model.cuda_graphs and not model.on_cpu:
                worker.capturing.add(served.id)
            self._port.load(worker.id, served.id, model, wish)

    def tick(self, now_ns: int) -> None:
        """Time passed: start what is due."""
        if now_ns >= self._next_due_ns:
            self._next_due_ns = NEVER_NS
            for group in list(self._groups.values()):
                if group.due_ns:
                    self._start_due(group, now_ns)

    # --- what workers say

    def worker_started(self, event: WorkerStarted) -> None:
        """The process exists; its loads are under way."""
        worker = self._workers.get(event.worker)
        if worker is not None:
            worker.pid = event.pid
            worker.kept_from = event.kept_from

    def progressed(self, event: ModelProgress, served: Served | None) -> None:
        """A load is so far; of several, the one that said so last is shown."""
        if served is not None:
            served.placed.progress = event

    def loaded(self, event: ModelLoaded, served: Served | None, now_ns: int) -> list[Served]:
        """One worker holds one more model: maybe its lane opens, maybe the model does. ``served`` None: nothing wants
        the model any more."""
        worker = self._workers.get(event.worker)
        if worker is None:
            return []
        first = not worker.whole
        worker.answered(event.model)
        worker.had.add(event.model)
        if served is None:
            if not worker.stopping:
                self._port.unload(event.worker, event.model)
            return []
        group = self._groups[worker.group]
        if served not in group.models:  # taken out meanwhile, and its worker was told
            return []
        worker.loaded.add(served.id)
        if first:  # else it was asked for when the process had been there for long
            group.load_ns = max(group.load_ns, now_ns - worker.started_ns)
        served.placed.load_ns, served.placed.progress, served.placed.note = event.load_ns, None, event.note
        if event.mixes is not None:
            served.placed.mixes = event.mixes or bool(served.placed.mixes)
        return self._review(group)

    def refused(self, event: ModelRefused) -> None:
        """One worker will not have a model."""
        worker = self._workers.get(event.worker)
        if worker is not None:
            worker.answered(event.model)

    def _review(self, group: InstanceGroup) -> list[Served]:
        """Open what can be opened now. A lane opens when its worker holds every model the group has opened; a model
        opens when every open lane holds it."""
        opened = {served.id for served in group.models if served.opened}
        for worker in group.workers.values():
            if worker.loaded and opened <= worker.loaded and not worker.open and not worker.stopping:
                worker.open = True
                self._feed.put(LaneOpened(worker.id, group.id))
        lanes = [worker for worker in group.workers.values() if worker.open]
        can_open = []
        for served in group.models:
            wanted = served.phase in ON_ITS_WAY or served.memory.returning
            fresh = wanted and not served.opened
            if lanes and fresh and all(served.id in worker.loaded for worker in lanes):
                can_open.append(served)
        return can_open

    def exited(self, worker_id: int) -> tuple[Worker, InstanceGroup] | None:
        """A process is gone; gives what it was. Its lane is closed by ``lost`` or ``left``."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return None
        group = self._groups[worker.group]
        del group.workers[worker.id]
        return worker, group

    def left(self, worker: Worker, group: InstanceGroup) -> None:
        """It ended because it was told to."""
        self._close_lane(worker, 0)
        self._end_if_empty(group)

    def lost(
        self, worker: Worker, group: InstanceGroup, cause: ExitCause, back_at_ns: int, *, final: bool
    ) -> None:
        """It ended otherwise, which counts for all that it held; a replacement starts at ``back_at_ns``, with
        ``resume`` at the latest after that. ``final``: what it ran is not tried again."""
        group.restarts += 1
        for served in group.models:
            served.placed.restarts[cause] += 1
        self._close_lane(worker, back_at_ns + group.load_ns + 1, final=final)
        group.due_ns.append(back_at_ns)

    def leave_uncaptured(self, served: Served) -> None:
        """Load a version without CUDA graphs from now on: its worker gave up a session that went with one."""
        if served.model.cuda_graphs and not served.model.on_cpu:
            served.placed.uncaptured = UNCAPTURED

    def may_give_up(self, worker_id: int, served: Served | None) -> bool:
        """Whether what a worker captures includes ``served``, or None: anything. It says itself that it gave up: each
        version excuses one end of each worker that was to capture it, and no more."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return False
        return bool(worker.capturing) if served is None else served.id in worker.capturing

    def resume(self, group: InstanceGroup, now_ns: int) -> list[Served]:
        """Start what is due in ``group``, and open what its other workers can do alone."""
        if group.closing:
            return []
        self._start_due(group, now_ns)
        return self._review(group)

    def _close_lane(self, worker: Worker, back_at_ns: int, *, final: bool = False) -> None:
        if worker.open:
            worker.open = False
            self._feed.put(LaneClosed(worker.id, back_at_ns, final))

    # --- leaving

    def drop(self, served: Served) -> list[Served]:
        """Take a version out of its group; a group without models ends."""
        group = self._groups.get(served.placed.group)
        served.placed.group = -1
        if group is None or served not in group.models:
            return []
        group.models.remove(served)
        for worker in group.workers.values():
            worker.loaded.discard(served.id)
            if group.models:
                self._port.unload(worker.id, served.id)
        self._close_if_empty(group)
        return self._review(group)

    def _close_if_empty(self, group: InstanceGroup) -> None:
        """End a group without models; its lanes close when their processes have ended, with what they still run. One
        that only loads what is not wanted any more ends at once."""
        if group.models or group.closing:
            return
        group.closing = True
        group.due_ns.clear()
        for worker in group.workers.values():
            worker.stopping = True
            if worker.loading and not worker.open:
                self._port.kill(worker.id, ExitCause.STOPPED)
            else:
                self._port.stop(worker.id)
        self._end_if_empty(group)

    def _end_if_empty(self, group: InstanceGroup) -> None:
        if group.closing and not group.workers and self._groups.pop(group.id, None) is not None:
            self._restarts.group_closed(group.id)
            self._feed.put(GroupClosed(group.id))

    def end_left(self, device: DeviceName) -> None:
        """End the processes that are to leave a device which is gone: what they still run cannot end well."""
        for worker in self._workers.values():
            if worker.stopping and self._groups[worker.group].device == device:
                self._port.kill(worker.id, ExitCause.STOPPED)

    def stop_all(self) -> None:
        """The daemon ends: every worker is asked to leave."""
        for group in self._groups.values():
            group.closing = True
            group.due_ns.clear()
        for worker in self._workers.values():
            worker.stopping = True
            self._port.stop(worker.id)

    # --- what others ask

    def members(self, worker_id: int) -> tuple[Served, ...]:
        """The versions of a worker's group."""
        worker = self._workers.get(worker_id)
        return tuple(self._groups[worker.group].models) if worker is not None else ()

    def is_alone(self, worker_id: int, served: Served) -> bool:
        """Whether a worker serves no other version and loads nothing: it does nothing but run this one's batches, the
        last ones where it was given up."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.loading:
            return False
        return all(each is served for each in self._groups[worker.group].models)

    def did_only(self, worker_id: int, model: int) -> bool:
        """See Worker; false of a process that is not known."""
        worker = self._workers.get(worker_id)
        return worker is not None and worker.did_only(model)

    def loading_aside(self) -> set[int]:
        """The ids of versions that load in the background, whether or not they are still wanted."""
        loads = (load for worker in self._workers.values() for load in worker.loading.items())
        return {model for model, wish in loads if wish.background}

    def loads_quickly(self, worker_id: int, model: int) -> bool:
        """Whether that process loads that model now with a session that is there at once."""
        worker = self._workers.get(worker_id)
        wish = worker.loading.get(model) if worker is not None else None
        return wish is not None and wish.quick

    def room_bytes(self, worker_id: int, model: int) -> int:
        """What a load that is under way there was told that it may take of its device; 0: nothing bounds it."""
        worker = self._workers.get(worker_id)
        wish = worker.loading.get(model) if worker is not None else None
        return wish.room_bytes if wish is not None else 0

    def form_room_bytes(self, served: Served) -> int | None:
        """See MemoryPort."""
        return self._memory.form_room_bytes(served) if self._memory is not None else None

    def complete(self, served: Served) -> bool:
        """Whether all the processes that should hold ``served`` do."""
        group = self._groups.get(served.placed.group)
        if group is None or group.due_ns or group.closing:
            return False
        return all(worker.open and served.id in worker.loaded for worker in group.workers.values())

    def ending(self, group_id: int) -> tuple[int, ...]:
        """Workers of a group that were told to end."""
        group = self._groups.get(group_id)
        return tuple(worker.id for worker in group.workers.values() if worker.stopping) if group else ()

    def holders(self, served: Served) -> tuple[int, ...]:
        """Worker ids that hold ``served``."""
        workers = (
            self._groups[served.placed.group].workers.values() if served.placed.group in self._groups else ()
        )
        return tuple(worker.id for worker in workers if served.id in worker.loaded)

    def workers(self) -> Iterator[tuple[Worker, InstanceGroup]]:
        """All processes, each with its group; to be looked at only."""
        for worker in self._workers.values():
            yield worker, self._groups[worker.group]


def load_wish(served: Served, attempt: Attempt | None) -> LoadWish:
    """How a version is to be loaded: at once where it serves, else as its attempt says."""
    if attempt is None or attempt.live or served.opened or served.memory.returning:
        return LoadWish(quick=served.memory.quick)
    return attempt.load_wish
