"""Faults of GPUs from the driver to requests: NVIDIA's own Python module on a simulated driver, the real engine, and
scripted workers. No GPU is here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from appliance.core.memory.homes import CONTEXT_BYTES, GIB, STEP_BYTES
from appliance.daemon.device_care import DeviceCare
from appliance.devices.nvml import Nvml
from appliance.devices.throttling import SLOWED_S, WELL_S
from appliance.devices.watch import DeviceWatch
from appliance.domain.device import DeviceName, cuda
from appliance.domain.device_reading import DeviceState
from tests.devices.simulated_nvml import ANY, Board, SimulatedNvml
from tests.simulation.device_world import DeviceWorld
from tests.simulation.scripted_workers import MS

ROOM = 79 * GIB - CONTEXT_BYTES


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> tuple[Board, Board]:
    """Of a simulated driver."""
    boards = Board(uuid="GPU-0", processes=()), Board(uuid="GPU-1", processes=())
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(*boards))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return boards


class Slowly:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Box:
    """What looks at the devices of a box, and the lines that it logs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.watch = DeviceWatch(Nvml(), clock=clock)
        self.watch.look()
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.changed: list[bool] = []
        event = lambda what, **fields: self.lines.append((what, fields))  # noqa: E731
        self.care = DeviceCare(self.watch, event, lambda: self.changed.append(True))

    def look(self, engine: Any) -> None:
        """Look at everything, and tell the engine."""
        self.watch.look()
        self.care.look(engine)

    def _look_again(self, world: DeviceWorld) -> None:
        if isinstance(self.clock, Slowly):
            self.clock.now_s += 1.0
        self.look(world)

    def play(self, world: DeviceWorld, duration_ms: int) -> None:
        """Time passes, and devices are looked at each second."""
        for at_ms in range(0, duration_ms, 1_000):
            world.world.after(at_ms * MS, lambda: self._look_again(world))
        world.world.run(world.world.now + duration_ms * MS)


class Engine:
    """Takes what it is told; ``pids`` are its workers'."""

    def __init__(self, pids: dict[DeviceName, dict[int, int | None]] | None = None) -> None:
        self.pids = pids or {}
        self.told: dict[DeviceName, DeviceState] = {}

    def devices_told(self, states: tuple[DeviceState, ...]) -> None:
        self.told |= {state.device.called: state for state in states}

    def worker_pids(self) -> dict[DeviceName, dict[int, int | None]]:
        return self.pids


def test_a_gpu_that_is_lost_is_left_and_no_request_fails(boards: tuple[Board, Board]) -> None:
    box = Box()
    assert [state.budget_bytes for state in box.care.states] == [ROOM, ROOM]
    world = DeviceWorld(1, [(0, 1), (0,)], (ROOM, ROOM))
    world.start()
    assert world.device_of("m1") == "cuda:0"
    before = world.device_of("m0")
    world.load_of(4_000, 300)
    world.world.after(500 * MS, lambda: boards[0].errors.update({ANY: pynvml.NVML_ERROR_GPU_IS_LOST}))
    box.play(world, 6_000)
    assert (before, world.device_of("m0")) == ("cuda:0", "cuda:1")
    assert world.reason_of("m0") == ("READY", "")
    state, reason = world.reason_of("m1")
    assert state == "UNAVAILABLE"
    assert reason.startswith("cuda:0 is drained, as it is lost: the driver cannot reach it any more")
    assert sum(world.answers.values()) + len(world.refused) == 300
    assert ("a device has a fault and takes no models", "cuda:0") in [
        (what, fields["device"]) for what, fields in box.lines
    ]
    boards[0].errors.clear()
    box.play(world, 2_000)
    assert world.reason_of("m1") == ("READY", "")
    assert box.lines[-1][0] == "a device has no fault any more"
    world.settle()


@pytest.mark.parametrize("fault", ["uncorrected", "remap", "xid"])
def test_a_gpu_that_is_not_to_be_trusted_is_left_before_anything_is_lost(
    boards: tuple[Board, Board], fault: str
) -> None:
    box, world = Box(), DeviceWorld(2, [(0, 1)], (ROOM, ROOM))
    world.start()
    assert world.device_of("m0") == "cuda:0"
    world.load_of(4_000, 200)

    def break_down() -> None:
        if fault == "uncorrected":
            boards[0].ecc = 2
        elif fault == "remap":
            boards[0].rows = (1, 1, 0, 1)
        else:
            boards[0].xids.append(79)

    world.world.after(500 * MS, break_down)
    box.play(world, 6_000)
    assert world.device_of("m0") == "cuda:1"
    assert sum(world.answers.values()) == 200
    assert world.engine.status().residency.misses == 0
    assert box.care.states[0].fault, "and it stays so"
    boards[0].ecc, boards[0].rows = 0, (1, 0, 0, 0)
    box.look(world)
    assert bool(box.care.states[0].fault) is (fault == "xid"), (
        "an error of the driver is told once, and stays"
    )
    boards[0].energy_mj = 1
    box.look(world)
    assert not box.care.states[0].fault, "the driver began anew"
    world.settle()


def test_a_gpu_that_its_hardware_slows_is_left_after_half_a_minute_and_no_request_waits(
    boards: tuple[Board, Board],
) -> None:
    clock = Slowly()
    box, world = Box(clock), DeviceWorld(4, [(0, 1), (0,)], (ROOM, ROOM))
    world.start()
    assert world.device_of("m0") == "cuda:0"
    boards[0].reasons = 0x40
    world.load_of(60_000, 600)
    box.play(world, int(SLOWED_S * 1_000))
    assert world.device_of("m0") == "cuda:0", "a peak is over by then"
    box.play(world, 5_000)
    assert world.device_of("m0") == "cuda:1"
    assert world.device_of("m1") == "cuda:0", "it may run nowhere else, and slow is better than gone"
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    box.play(world, 30_000)
    assert (sum(world.answers.values()), world.refused) == (600, [])
    assert world.engine.status().residency.misses == 0, "nobody had to wait for it"
    (line,) = [fields for what, fields in box.lines if what.startswith("a device is slowed")]
    assert line["reason"].startswith("has been slowed by its hardware for 30 s (hardware thermal slowdown)")
    (figures, other) = box.care.figures(world.engine.status())
    assert (figures.slow, other.slow) == (line["reason"], "")
    boards[0].reasons = 0
    box.play(world, int(WELL_S * 1_000) - 2_000)
    assert box.lines[-1][0] != "a device is not slowed any more"
    box.play(world, 5_000)
    assert box.lines[-1][0] == "a device is not slowed any more"
    assert world.device_of("m0") == "cuda:1", "what moved stays"
    world.settle()


def test_a_gpu_that_is_slowed_for_everyday_reasons_is_not_left(boards: tuple[Board, Board]) -> None:
    boards[0].reasons = 0x4 | 0x20
    clock, engine = Slowly(), Engine()
    box = Box(clock)
    for _ in range(100):
        clock.now_s += 1.0
        box.look(engine)
    assert not engine.told
    assert [(state.fault, state.slow) for state in box.care.states] == [("", "")] * 2


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_UNINITIALIZED,
    ],
)
def test_a_driver_that_changes_under_the_daemon_is_told_of_and_nothing_crashes(
    boards: tuple[Board, Board], error: int
) -> None:
    box, engine = Box(), Engine()
    box.look(engine)
    assert not box.changed
    for board in boards:
        board.errors[ANY] = error
    box.look(engine)
    assert box.changed, "no engine is opened any more"
    assert not engine.told, "nothing is known against the devices, nor of their memory"
    assert all(look.reading.driver_changed for _, look in box.watch.looks())
    assert [state.budget_bytes for state in box.care.states] == [ROOM, ROOM]


def test_a_driver_that_does_not_fit_its_library_at_the_start_is_no_crash(boards: tuple[Board, Board]) -> None:
    boards[0].errors["nvmlInitWithFlags"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with pytest.raises(OSError, match="RM has detected an NVML/RM version mismatch"):
        Nvml()


def test_memory_that_a_stranger_takes_is_no_models_and_that_is_said(boards: tuple[Board, Board]) -> None:
    box, engine = Box(), Engine({cuda(0): {4711: None}})
    boards[0].processes = ((4711, 20 * GIB), (9, 30 * GIB))
    boards[0].used_bytes = 51 * GIB
    box.look(engine)
    assert engine.told[cuda(0)].budget_bytes == ROOM - 30 * GIB
    assert engine.told[cuda(1)].budget_bytes == ROOM
    ((what, fields),) = box.lines
    assert what == "others hold memory of a device"
    assert (fields["device"], fields["others_bytes"], fields["before_bytes"]) == ("cuda:0", 31 * GIB, GIB)
    boards[0].used_bytes += STEP_BYTES - 1
    box.look(engine)
    assert len(box.lines) == 1, "allocators move by so much"
    boards[0].processes, boards[0].used_bytes = ((4711, 20 * GIB),), 21 * GIB
    box.look(engine)
    assert engine.told[cuda(0)].budget_bytes == ROOM


def test_what_cannot_be_told_apart_leaves_the_budget_as_it_was(boards: tuple[Board, Board]) -> None:
    box, engine = Box(), Engine({cuda(0): {4711: None}})
    boards[0].processes, boards[0].used_bytes = ((1, 40 * GIB),), 41 * GIB
    box.look(engine)
    assert not engine.told
    assert not box.lines


def test_two_daemons_on_one_gpu_leave_each_other_what_they_have(boards: tuple[Board, Board]) -> None:
    first, second = Box(), Box()
    one, other = Engine({cuda(0): {1: None}}), Engine({cuda(0): {2: None}})
    boards[0].processes = ((1, 30 * GIB), (2, 10 * GIB))
    boards[0].used_bytes = 41 * GIB
    first.look(one)
    second.look(other)
    assert one.told[cuda(0)].budget_bytes == ROOM - 10 * GIB
    assert other.told[cuda(0)].budget_bytes == ROOM - 30 * GIB


def test_models_leave_memory_that_a_stranger_took(boards: tuple[Board, Board]) -> None:
    """Scripted workers have no processes that the driver tells of: the first look is before they are there."""
    boards[1].used_bytes = 80 * GIB
    box = Box()
    world = DeviceWorld(3, [(0,), (0,)], (ROOM, 0), file_bytes=30 * GIB)
    world.start()
    memory = world.engine._cache._memory
    assert memory.statistics(cuda(0)).used_bytes == 60 * GIB
    (pid,) = world.engine.worker_pids()[cuda(0)]
    boards[0].processes, boards[0].used_bytes = ((pid, 60 * GIB), (9, 19 * GIB)), 80 * GIB
    box.play(world, 3_000)
    assert memory.devices[cuda(0)].books.budget.bytes == 80 * GIB - 20 * GIB - CONTEXT_BYTES
    assert memory.statistics(cuda(0)).used_bytes == 30 * GIB
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    world.settle()
