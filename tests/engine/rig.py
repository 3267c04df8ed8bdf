"""A real engine with workers that answer when told, in one process and one thread."""

from __future__ import annotations

import time
from typing import Any

from appliance.config.engine import EngineConfig
from appliance.config.workers import ArenaConfig, PlacementConfig
from appliance.core.processes.restart import RestartPolicy
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.engine.control.recorder import SwapTerms, default_terms
from appliance.engine.engine import Engine, EngineTerms
from appliance.engine.environment import Shell
from appliance.workers import port
from appliance.workers.arena import Arena
from appliance.workers.settings import WorkerSettings
from tests.simulation.engine_world import SilentLog
from tests.workers.without_memory import WithoutMemory


class Rig(WithoutMemory):
    """``engine`` serves one version; ``work`` lets its worker answer everything that was dispatched.
    ``seeds``: what workers say that they measured when they loaded it. ``mixes``: that its rows change one another's
    answers, to those that are asked. ``load_calls``: what was to be loaded, and how."""

    seeds: tuple[tuple[int, int], ...] = ()
    mixes: bool | None = False

    def __init__(
        self,
        model: ModelVersion,
        scheduling: Planning | None = None,
        arena: ArenaConfig | None = None,
        swap: SwapTerms | None = None,
    ) -> None:
        self.arena = Arena(arena or ArenaConfig())
        self.runs: list[port.Run] = []
        self.load_calls: list[tuple[int, ModelVersion, LoadWish]] = []
        self._worker = 0
        self.engine = Engine(
            terms=EngineTerms(
                engine=EngineConfig(),
                placement=PlacementConfig(),
                restart=RestartPolicy(),
                swap=swap or default_terms(),
            ),
            scheduler=Scheduler(scheduling or Planning()),
            arena=self.arena,
            pool=self,
            shell=Shell(
                clock=self.clock, wall_ms=lambda: 0, pace=self, memory_of=lambda pid: 0, log=SilentLog()
            ),
        )
        self.engine.apply(Catalog(versions=(CatalogVersion(model=model, fingerprint=""),)))
        self.turns()

    def view(self, offset: int, nbytes: int) -> memoryview:
        """What its worker has there."""
        memory = self.arena.of_worker(self._worker)
        assert memory is not None
        return memory.view(offset, nbytes)

    def clock(self) -> int:
        """The engine's."""
        return time.monotonic_ns()

    def turns(self) -> None:
        """Let everything settle."""
        for _ in range(3):
            self.engine.turn()
            self.engine.hand_out()

    def work(self, shape: tuple[int, ...], size: int) -> None:
        """Answer every dispatched item with one output of that shape and size, left as it is in the slot."""
        runs, self.runs = self.runs, []
        for run in runs:
            results = tuple(
                port.RunResult(item.ticket, port.ItemStatus.OK, (shape,), (size,), 0, "")
                for item in run.items
            )
            self.engine.pool_event(port.RunFinished(self._worker, run.batch, results, 1, 1, 1))
        self.turns()

    # --- WorkerPort and Pace

    def start(self, worker: int, group: int, settings: WorkerSettings) -> None:
        self._worker = worker
        self.arena.attach(worker, group)
        self.engine.pool_event(port.WorkerStarted(worker, 1))

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        self.load_calls.append((model, version, wish))
        mixes = self.mixes if wish.probe else None
        self.engine.pool_event(port.ModelLoaded(worker, model, self.seeds, 1, 1, mixes=mixes))

    def evict_weights(self, worker: int, model: int) -> None:
        self.engine.pool_event(port.WeightsEvicted(worker, model, 1))

    def page_in(self, worker: int, model: int) -> None:
        self.engine.pool_event(port.WeightsPagedIn(worker, model, 1, 1, None))

    def build_form(self, worker: int, model: int, version: ModelVersion, room_bytes: int = 0) -> None:
        self.engine.pool_event(port.FormBuilt(worker, model, "form", 1, 1, None))

    def dispatch(self, worker: int, run: port.Run) -> None:
        self.runs.append(run)

    def unload(self, worker: int, model: int) -> None:
        """Nothing to do."""

    def fetch(self, worker: int, fetch: port.Fetch) -> None:
        """Nothing to do."""

    def stop(self, worker: int) -> None:
        """Nothing to do."""

    def kill(self, worker: int, cause: ExitCause) -> None:
        """Nothing to do."""

    def soon(self) -> None:
        """Turns are taken by hand."""

    arrived = news = soon

    def broken(self, error: BaseException) -> None:
        """It must not be."""
        raise AssertionError("the engine broke") from error

    def at(self, at_ns: int) -> None:
        """Turns are taken by hand."""


def outcomes_of(rig: Rig) -> tuple[list[Any], Any]:
    """A list and the callback that fills it."""
    outcomes: list[Any] = []
    return outcomes, outcomes.append
