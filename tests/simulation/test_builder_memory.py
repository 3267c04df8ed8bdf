"""What the builder of an engine takes of its GPU puts out none of those that serve there: the real engine and NVIDIA's
own Python module on a simulated driver, with simulated workers. No GPU is here."""

from __future__ import annotations

from dataclasses import replace

import pynvml
import pytest

from appliance.core.memory.homes import CONTEXT_BYTES, GIB
from appliance.domain.device import cuda
from appliance.domain.model import ModelVersion
from appliance.engine.versions.wording import no_room_for_builder_text
from appliance.workers import port
from appliance.workers.jail.support import Support
from tests.devices.simulated_nvml import Board, SimulatedNvml
from tests.devices.test_device_care import Box
from tests.simulation.device_world import DeviceWorld, GpuWorkers
from tests.simulation.scripted_workers import MS

MEMORY = 80 * GIB
BUILDS_MS = 20_000
TAKES = 60 * GIB
OTHERS = "others hold memory of a device"


class BuildingWorkers(GpuWorkers):
    """Workers whose builds take long and come to nothing; ``builders`` are those that are there, ``rooms`` what each
    was told."""

    builders: set[int]
    rooms: list[int]
    pids: dict[int, int]

    def _said(self, event: port.PoolEvent) -> port.PoolEvent:
        if isinstance(event, port.WorkerStarted):
            self.pids[event.worker] = event.pid
        if isinstance(event, port.WorkerExited):
            self.builders.discard(event.worker)
            self.pids.pop(event.worker, None)
        return super()._said(event)

    def build_form(self, worker: int, model: int, version: ModelVersion, room_bytes: int = 0) -> None:
        self.builders.add(worker)
        self.rooms.append(room_bytes)
        built = port.FormBuilt(worker, model, "", 0, BUILDS_MS * MS, "an operator that it does not take")
        self._beside(worker, model, BUILDS_MS * MS, lambda: self._emit(built))


class BuildingWorld(DeviceWorld):
    """Three models on one GPU, of which the first has an engine to be built; a stranger, too, may be there."""

    workers_type = BuildingWorkers
    workers: BuildingWorkers

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, file_bytes: int) -> None:
        BuildingWorkers.builders, BuildingWorkers.rooms, BuildingWorkers.pids = set(), [], {}
        self.board = Board(uuid="GPU-0", processes=(), memory_bytes=MEMORY, used_bytes=0)
        monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(self.board))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        self.looks_at = Box()
        self.budgets: list[int] = []
        super().__init__(seed, [(0,)] * 3, (MEMORY - CONTEXT_BYTES,), file_bytes=file_bytes)
        own = self.wanted["m0"]
        self.wanted["m0"] = replace(own, runtime="tensorrt", forms="/nowhere", digest=f"{1:064x}")

    def pass_by(self, duration_ms: int) -> None:
        """Time passes; the driver is asked each second, and tells how it was a second before."""
        for at_ms in range(0, duration_ms, 1_000):
            self.world.after(at_ms * MS, self._look)
        self.world.run(self.world.now + duration_ms * MS)

    def _look(self) -> None:
        self.looks_at.look(self)
        taken = {
            pid: TAKES if worker in self.workers.builders else 3 * GIB
            for worker, pid in self.workers.pids.items()
        }
        self.board.processes, self.board.used_bytes = tuple(taken.items()), sum(taken.values())
        self.budgets.append(self.engine._cache._memory.devices[cuda(0)].books.budget.bytes)


@pytest.fixture(autouse=True)
def landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps workers from the key that seals engines."""
    monkeypatch.setattr("appliance.workers.seal.kernel_support", lambda: Support(landlock=4, filter=True))


def test_a_builder_is_none_of_the_others_while_it_builds_and_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = BuildingWorld(1, monkeypatch, GIB)
    world.start()
    world.load_of(30_000, 300)
    world.pass_by(10_000)
    assert len(world.workers.builders) == 1
    assert world.workers.rooms == [(79 * GIB - 3 * GIB - CONTEXT_BYTES) // 2], "half of what no version has"
    assert not world.engine.worker_pids().keys() - {cuda(0)}
    world.pass_by(25_000)
    assert not world.workers.builders, "it has ended"
    assert set(world.budgets) == {MEMORY - CONTEXT_BYTES}
    assert not [what for what, _ in world.looks_at.lines if what == OTHERS]
    assert world.engine.status().residency.misses == 0
    assert sum(world.answers.values()) == 300
    world.settle()


def test_what_is_loaded_while_an_engine_is_built_leaves_the_builder_what_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = BuildingWorld(2, monkeypatch, GIB)
    world.start()
    (building,) = world.workers.rooms
    served = {each.model.name: each for each in world.engine._rollouts.on_devices()}
    assert world.engine._cache.room_bytes(served["m1"]) == 79 * GIB - 2 * GIB - building


def test_no_engine_is_built_where_versions_leave_no_room_and_its_notes_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = BuildingWorld(3, monkeypatch, 18 * GIB)
    world.start()
    world.pass_by(3_000)
    assert world.workers.rooms == []
    served = {each.model.name: each for each in world.engine._rollouts.on_devices()}
    assert no_room_for_builder_text() in served["m0"].unbuilt
    del world.wanted["m2"]
    world.names.remove("m2")
    world.apply()
    world.load_of(80_000, 100)
    world.pass_by(90_000)
    assert world.workers.rooms == [(79 * GIB - 36 * GIB - CONTEXT_BYTES) // 2]
