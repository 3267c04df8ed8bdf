"""Virtual time, and workers that follow a script: they answer late, refuse, crash, hang until they are killed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping

from appliance.domain.assessment import Assessment
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.side_by_side import SideBySide
from appliance.workers import port
from appliance.workers.arena import Arena, aligned
from appliance.workers.settings import WorkerSettings
from tests.workers.without_memory import WithoutMemory

MS = 1_000_000
EVICTABLE_BYTES = 1 << 20
GROWN_BYTES_MAX = 20 << 20


class World:
    """Time and what is going to happen in it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000 * MS
        self._order = itertools.count()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []

    def at(self, when: int, do: Callable[[], None]) -> None:
        """Do it then (or now, if that is past)."""
        heapq.heappush(self._agenda, (max(when, self.now), next(self._order), do))

    def after(self, delay: int, do: Callable[[], None]) -> None:
        """Do it later."""
        self.at(self.now + delay, do)

    def run(self, until: int) -> None:
        """Let time pass and things happen."""
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, do = heapq.heappop(self._agenda)
            do()
        self.now = until

    def run_while(self, holds: Callable[[], bool], until: int) -> None:
        """Do so only as long as ``holds``."""
        while holds() and self._agenda and self._agenda[0][0] <= until:
            self.now, _, do = heapq.heappop(self._agenda)
            do()
        if holds():
            self.now = until


class ScriptedWorkers(WithoutMemory):
    """Implements WorkerPort. ``trouble`` is the chance that a batch, a load or a start goes wrong.

    Every model has EVICTABLE_BYTES to give back; who runs one without weights, or asks for what makes no sense, is
    told.
    """

    growth = 0.0
    """The chance that a run makes its model take more memory."""

    def __init__(
        self, world: World, arena: Arena, emit: Callable[[port.PoolEvent], None], trouble: float
    ) -> None:
        self._world = world
        self._arena = arena
        self._emit = emit
        self.trouble = trouble
        self._queues: dict[int, list[port.Run]] = {}
        self._holds: dict[int, dict[int, ModelVersion]] = {}
        self._loading: dict[int, list[int]] = {}
        self._takes: dict[int, dict[int, int]] = {}
        self._aside: dict[int, list[tuple[int, Callable[[], None]]]] = {}
        self._evict: dict[int, set[int]] = {}
        self._kept: dict[int, dict[int, tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]] = {}
        self._pids = itertools.count(100)
        self.came_early = self.exchanged = 0
        self._stopping: set[int] = set()
        self._ended: set[int] = set()
        self.objects = [arena.own]
        """All that tensors have lain in."""

    # --- WorkerPort

    def start(self, worker: int, group: int, settings: WorkerSettings) -> None:
        assert worker not in self._queues
        self.objects.append(self._arena.attach(worker, group))
        self._queues[worker], self._holds[worker], self._loading[worker], self._kept[worker] = [], {}, [], {}
        self._aside[worker], self._evict[worker] = [], set()
        self._later(worker, 2 * MS, lambda: self._emit(port.WorkerStarted(worker, next(self._pids))))

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        if worker in self._ended:
            return  # WorkerExited is on its way
        assert worker in self._queues, "load for a worker that does not live"
        self._loading[worker].append(model)

        def loaded() -> None:
            self._loading[worker].remove(model)
            if self._world.random.random() < self.trouble / 2:
                self._emit(port.ModelRefused(worker, model, "scripted refusal"))
                return
            self.came_early += wish.early
            self.exchanged += model in self._holds[worker]
            self._holds[worker][model] = version
            seeds = () if wish.quick else ((1, MS), (8, 2 * MS))
            proof = Assessment(0, (), 1, 10, MS, 2 * MS, 0) if wish.assess else None
            self._emit(port.ModelLoaded(worker, model, seeds, 5 * MS, 1000, proof, EVICTABLE_BYTES))
            if wish.early:
                self._beside(worker, model, 3 * MS, lambda: self._page_in(worker, model))

        if wish.background:
            self._beside(worker, model, 40 * MS, loaded)
        elif self._world.random.random() < self.trouble / 2:
            self._later(worker, 3 * MS, lambda: self._exit(worker, ExitCause.DIED, model))
        else:
            self._later(worker, self._world.random.randrange(1, 20) * MS, loaded)

    def unload(self, worker: int, model: int) -> None:
        self._holds.get(worker, {}).pop(model, None)
        self._evict.get(worker, set()).discard(model)

    def evict_weights(self, worker: int, model: int) -> None:
        assert worker in self._queues, "eviction for a worker that does not live"
        assert model in self._holds[worker], "eviction for a model the worker does not hold"
        assert all(run.model != model for run in self._queues[worker]), "eviction for a model that runs"
        self._evict[worker].add(model)
        self._beside(worker, model, MS, lambda: self._emit(port.WeightsEvicted(worker, model, MS)))

    def page_in(self, worker: int, model: int) -> None:
        assert worker in self._queues, "page-in for a worker that does not live"
        assert model in self._holds[worker], "page-in for a model the worker does not hold"

        self._beside(worker, model, 3 * MS, lambda: self._page_in(worker, model))

    def _page_in(self, worker: int, model: int) -> None:
        failure = "scripted rot" if self._world.random.random() < self.trouble / 2 else None
        if failure is None:
            self._evict[worker].discard(model)
        self._emit(port.WeightsPagedIn(worker, model, EVICTABLE_BYTES, 3 * MS, failure))

    def grown(self, worker: int) -> Mapping[int, int]:
        """What runs made their models take."""
        takes, self._takes[worker] = self._takes.get(worker, {}), {}
        return takes

    def build_form(self, worker: int, model: int, version: ModelVersion, room_bytes: int = 0) -> None:
        assert worker in self._queues, "a form for a worker that does not live"
        self._loading[worker].append(model)

        def built() -> None:
            self._loading[worker].remove(model)
            failure = "scripted failure" if self._world.random.random() < self.trouble / 2 else None
            name, compared = ("", ()) if failure else ("form", self.compared(version))
            self._emit(
                port.FormBuilt(worker, model, name, EVICTABLE_BYTES, 50 * MS, failure, compared=compared)
            )

        self._beside(worker, model, 50 * MS, built)

    def dispatch(self, worker: int, run: port.Run) -> None:
        assert worker in self._queues, "dispatch to a worker that does not live"
        assert run.model not in self._evict[worker], "dispatch for a model without weights"
        assert worker not in self._stopping, "dispatch to a worker that was told to stop"
        assert run.model in self._holds[worker], "dispatch for a model the worker does not hold"
        memory = self._arena.of_worker(worker)
        assert memory is not None
        for item in run.items:
            given = memory.view(item.offset, item.sizes[0])
            assert all(given), "dispatch of tensors that the worker does not have"
        self._queues[worker].append(run)
        if len(self._queues[worker]) == 1:
            self._begin(worker)

    def fetch(self, worker: int, fetch: port.Fetch) -> None:
        kept = self._kept.get(worker, {}).pop(fetch.ticket, None)
        if kept is None or fetch.out_capacity == 0:
            return
        sizes, shapes = kept
        assert sum(map(aligned, sizes)) <= fetch.out_capacity
        result = port.RunResult(fetch.ticket, port.ItemStatus.OK, shapes, sizes, 0, "")
        self._later(worker, MS // 10, lambda: self._emit(port.Fetched(worker, result)))

    def stop(self, worker: int) -> None:
        self._stopping.add(worker)
        if not self._queues.get(worker) and not self._aside.get(worker):
            self._later(worker, MS, lambda: self._exit(worker, ExitCause.STOPPED, -1))

    def kill(self, worker: int, cause: ExitCause) -> None:
        self._later(worker, MS // 10, lambda: self._exit(worker, cause, -1))

    # --- the script

    def compared(self, version: ModelVersion) -> tuple[SideBySide, ...]:
        """What an engine of the version shows beside its session; nothing where it has none."""
        return ()

    def running(self) -> list[port.RunItem]:
        """Everything that some live worker may touch."""
        return [item for runs in self._queues.values() for run in runs for item in run.items]

    def _later(self, worker: int, delay: int, do: Callable[[], None]) -> None:
        self._world.after(delay, lambda: do() if worker in self._queues else None)

    def _beside(self, worker: int, model: int, took: int, do: Callable[[], None]) -> None:
        """Have something happen beside the line, after what was asked for before; or the worker dies of it."""
        fatal = self._world.random.random() < self.trouble / 4

        def end() -> None:
            if fatal:
                self._exit(worker, ExitCause.DIED, model)
                return
            do()
            self._aside[worker].pop(0)
            if self._aside[worker]:
                self._later(worker, *self._aside[worker][0])
            elif worker in self._stopping and not self._queues[worker]:
                self._later(worker, MS, lambda: self._exit(worker, ExitCause.STOPPED, -1))

        self._aside[worker].append((took, end))
        if len(self._aside[worker]) == 1:
            self._later(worker, took, end)

    def _begin(self, worker: int) -> None:
        run = self._queues[worker][0]
        fate = self._world.random.random()
        took = MS + len(run.items) * MS // 8
        if fate < self.trouble:
            self._later(worker, took // 2, lambda: self._exit(worker, ExitCause.DIED, -1))
        elif fate < self.trouble * 1.2:
            self._later(worker, 50 * MS, lambda: self._exit(worker, ExitCause.HUNG, -1))
        else:
            self._later(worker, took, lambda: self._end(worker, run))

    def _end(self, worker: int, run: port.Run) -> None:
        if not self._queues[worker] or self._queues[worker][0] is not run:
            return
        self._queues[worker].pop(0)
        if self.growth and self._world.random.random() < self.growth:
            self._takes.setdefault(worker, {})[run.model] = self._world.random.randrange(GROWN_BYTES_MAX)
        results = tuple(self._result(worker, run.model, item) for item in run.items)
        self._emit(port.RunFinished(worker, run.batch, results, 1000, MS, 1000))
        if self._queues[worker]:
            self._begin(worker)
        elif worker in self._stopping and not self._aside[worker]:
            self._later(worker, MS, lambda: self._exit(worker, ExitCause.STOPPED, -1))

    def _result(self, worker: int, model: int, item: port.RunItem) -> port.RunResult:
        chance = self._world.random.random()
        if chance < self.trouble:
            return port.RunResult(item.ticket, port.ItemStatus.FAILED, (), (), 0, "scripted failure")
        width = self._world.random.choice((1, 2, 600)) if chance > 0.9 else 2
        shapes = tuple((item.rows, width) for _ in item.outputs)
        sizes = tuple(item.rows * width * 4 for _ in item.outputs)
        needed = sum(map(aligned, sizes))
        if needed > item.out_capacity:
            self._kept[worker][item.ticket] = (sizes, shapes)
            return port.RunResult(item.ticket, port.ItemStatus.TOO_LARGE, (), (), needed, "")
        return port.RunResult(item.ticket, port.ItemStatus.OK, shapes, sizes, 0, "")

    def _exit(self, worker: int, cause: ExitCause, loading: int) -> None:
        runs = self._queues.pop(worker)
        self._ended.add(worker)
        self._arena.detach(worker)
        for table in (self._holds, self._loading, self._kept, self._aside, self._evict):
            table.pop(worker)
        self._stopping.discard(worker)
        self._emit(port.WorkerExited(worker, cause, tuple(run.batch for run in runs), loading, "scripted"))
