"""Sessions that lie about what they take of a GPU: NVIDIA's own Python module on a simulated driver, the real engine,
and simulated workers. No GPU is here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pynvml
import pytest

from appliance.core.memory.homes import CONTEXT_BYTES, GIB
from appliance.domain.device import cuda
from tests.devices.simulated_nvml import Board, SimulatedNvml
from tests.devices.test_device_care import Box
from tests.simulation.device_world import DeviceWorld
from tests.simulation.scripted_workers import MS

MEMORY = 40 * GIB
OWN_CONTEXT = 800 << 20
"""What a context really takes."""
SAYS = "a worker has more memory of a device than its models say"


class LyingWorld:
    """Four models on a GPU; ``really`` is what each has of it, whatever it says: a GiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, really: dict[str, int]) -> None:
        self.board = Board(uuid="GPU-0", processes=(), memory_bytes=MEMORY, used_bytes=0)
        monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(self.board))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        self.box = Box()
        self.world = DeviceWorld(seed, [(0,)] * len(really), (MEMORY - CONTEXT_BYTES,), file_bytes=GIB)
        self.world.workers.says = dict.fromkeys(really, GIB)
        self.really = really

    @property
    def held(self) -> Counter[int]:
        """What each process has, by its number."""
        held = Counter[int]()
        for worker, group in self.world.engine._rollouts.groups.workers():
            if worker.pid:
                names = [served.model.name for served in group.models if served.id in worker.loaded]
                held[worker.pid] += OWN_CONTEXT + sum(self.really[name] for name in names)
        return held

    def play(self, duration_ms: int) -> None:
        """Time passes, and the device is looked at each second."""
        for at_ms in range(0, duration_ms, 1_000):
            self.world.world.after(at_ms * MS, self._look)
        self.world.world.run(self.world.world.now + duration_ms * MS)

    def _look(self) -> None:
        assert sum(self.held.values()) <= MEMORY, "no driver gives more than there is"
        self.board.processes = tuple(self.held.items())
        self.board.used_bytes = sum(self.held.values())
        self.box.look(self.world)

    @property
    def told(self) -> list[int]:
        """What the log says that is not said."""
        return [fields["unsaid_bytes"] for what, fields in self.box.lines if what == SAYS]

    @property
    def budget_bytes(self) -> int:
        """For models."""
        return self.world.engine._cache._memory.devices[cuda(0)].books.budget.bytes


def test_what_a_liar_has_is_no_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lying = LyingWorld(monkeypatch, 1, {"m0": 20 * GIB, "m1": GIB, "m2": GIB, "m3": GIB})
    lying.world.start()
    assert lying.budget_bytes == 39 * GIB
    lying.play(6_000)
    unsaid = 23 * GIB + OWN_CONTEXT - 4 * GIB - CONTEXT_BYTES
    assert lying.told == [unsaid], "once"
    assert lying.budget_bytes == 39 * GIB - unsaid
    assert all(lying.world.reason_of(name) == ("READY", "") for name in lying.world.names)
    lying.world.settle()


def test_honest_models_cost_nothing_and_are_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    lying = LyingWorld(monkeypatch, 2, dict.fromkeys(("m0", "m1", "m2", "m3"), GIB))
    lying.world.start()
    lying.world.load_of(4_000, 100)
    lying.play(8_000)
    assert lying.told == []
    assert lying.budget_bytes == 39 * GIB
    lying.world.settle()


@pytest.mark.parametrize("seed", range(3, 9))
def test_what_comes_after_a_liar_was_found_has_another_one_leave_first(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    really = {"m0": 18 * GIB, "m1": 16 * GIB, "m2": 2 * GIB, "m3": GIB, "m4": 3 * GIB}
    lying = LyingWorld(monkeypatch, seed, really)
    world = lying.world
    world.workers.says["m4"] = 3 * GIB
    world.wanted["m4"] = late = replace(world.wanted["m4"], file_bytes=3 * GIB)
    world.names.remove("m4")
    del world.wanted["m4"]
    world.start()
    lying.play(6_000)
    assert all(world.reason_of(name) == ("READY", "") for name in world.names), "what is there has room"
    assert world.engine.status().residency.unloads == 0, "and stays"
    assert len(lying.told) == 1
    world.names.append("m4")
    world.wanted["m4"] = late
    world.apply()
    lying.play(20_000)
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    assert world.engine.status().residency.unloads > 0
    world.settle()
