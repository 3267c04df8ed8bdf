"""Instances of GPUs (MIG) from the driver to requests: NVIDIA's own Python module on a simulated driver, the real
engine, and scripted workers. No GPU is here."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from appliance.core.memory.homes import CONTEXT_BYTES, GIB
from appliance.devices.nvml import Nvml
from appliance.domain.device import cuda, visible
from appliance.domain.device_reading import Reading, WholeBoard, faults, is_gone
from appliance.runtimes.tensorrt import tie
from tests.devices.simulated_nvml import ANY, Board, SimulatedNvml
from tests.devices.test_device_care import Box, Engine
from tests.simulation.device_world import DeviceWorld
from tests.simulation.scripted_workers import MS

SMALL, LARGE = "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
ROOMS = (9 * GIB - CONTEXT_BYTES, 39 * GIB - CONTEXT_BYTES, 79 * GIB - CONTEXT_BYTES)


def part(uuid: str, name: str, size_gib: int, **more: Any) -> Board:
    """An instance."""
    return Board(uuid=uuid, name=name, memory_bytes=size_gib * GIB, processes=(), **more)


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> tuple[Board, Board]:
    """Of a simulated driver: a GPU with two instances, and one that is whole."""
    parts = {0: part("MIG-a", SMALL, 10), 4: part("MIG-b", LARGE, 40)}
    boards = (
        Board(uuid="GPU-0", name="NVIDIA A100-SXM4-80GB", processes=(), mig=True, instances=parts),
        Board(uuid="GPU-1", name="NVIDIA A100-SXM4-80GB", processes=()),
    )
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(*boards))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return boards


@pytest.mark.usefixtures("boards")
def test_instances_are_counted_in_the_place_of_their_gpu() -> None:
    devices = Nvml().devices
    assert [(each.index, each.uuid, each.name, each.instance_of) for each in devices] == [
        (0, "MIG-a", SMALL, "GPU-0"),
        (1, "MIG-b", LARGE, "GPU-0"),
        (2, "GPU-1", "NVIDIA A100-SXM4-80GB", ""),
    ]
    assert [each.memory_bytes for each in devices] == [10 * GIB, 40 * GIB, 80 * GIB]
    assert [each.capability for each in devices] == [(9, 0)] * 3
    assert visible(devices) == {cuda(0): "MIG-a", cuda(1): "MIG-b", cuda(2): "GPU-1"}


def test_where_mig_is_off_workers_see_all_gpus(boards: tuple[Board, Board]) -> None:
    boards[0].mig = False
    devices = Nvml().devices
    assert [each.uuid for each in devices] == ["GPU-0", "GPU-1"]
    assert visible(devices) == {}


def test_an_instance_has_memory_of_its_own_and_all_else_of_its_gpu(boards: tuple[Board, Board]) -> None:
    gpu, _ = boards
    gpu.processes, gpu.used_bytes = ((1, 7 * GIB), (2, 3 * GIB)), 12 * GIB
    gpu.instances[4].processes, gpu.instances[4].used_bytes = ((2, 3 * GIB),), 4 * GIB
    gpu.xids.append(31)
    nvml = Nvml()
    reading = nvml.read(nvml.devices[1])
    assert (reading.memory_used_bytes, reading.memory_free_bytes) == (4 * GIB, 36 * GIB)
    assert reading.processes == {2: 3 * GIB}
    assert (reading.temperature_c, reading.ecc_uncorrected, reading.xids) == (38, 0, (31,))
    assert (reading.power_w, reading.power_limit_w, reading.energy_j, reading.utilization) == (None,) * 4
    assert reading.board == WholeBoard(uuid="GPU-0", power_w=80.628, power_limit_w=700.0, energy_j=2524.93)
    assert nvml.read(nvml.devices[2]).power_w == 80.628


def test_what_ails_a_gpu_ails_each_of_its_instances(boards: tuple[Board, Board]) -> None:
    box, engine = Box(), Engine()
    boards[0].ecc = 3
    box.look(engine)
    first, second, whole = (engine.told[cuda(index)] for index in range(3))
    assert (
        first.fault == second.fault == "had 3 uncorrected memory errors since the driver was loaded; reset it"
    )
    assert (first.gone, second.gone, whole.fault) == (False, False, "")
    boards[0].ecc = 0
    boards[0].errors[ANY] = pynvml.NVML_ERROR_GPU_IS_LOST
    box.look(engine)
    assert [engine.told[cuda(index)].gone for index in range(3)] == [True, True, False]


def test_an_error_of_the_driver_counts_for_all_instances_until_it_begins_anew(
    boards: tuple[Board, Board],
) -> None:
    box, engine = Box(), Engine()
    boards[0].xids.append(79)
    box.look(engine)
    assert ["Xid 79" in engine.told[cuda(index)].fault for index in range(3)] == [True, True, False]
    box.look(engine)
    assert "Xid 79" in engine.told[cuda(1)].fault, "it was told once, and stays"
    boards[0].energy_mj = 1
    box.look(engine)
    assert not engine.told[cuda(0)].fault, "the driver began anew"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("off", "is not what it was, as MIG was switched on or off; start the appliance anew"),
        ("destroyed", "is gone, as its MIG instance was destroyed; start the appliance anew"),
    ],
)
def test_an_instance_that_goes_is_lost_and_no_other(
    boards: tuple[Board, Board], change: str, reason: str
) -> None:
    box, engine = Box(), Engine()
    if change == "off":
        boards[0].mig = False
    else:
        del boards[0].instances[0]
    box.look(engine)
    assert (engine.told[cuda(0)].fault, engine.told[cuda(0)].gone) == (reason, True)
    assert bool(engine.told[cuda(1)].fault) is (change == "off")
    assert ("a device has a fault and takes no models", "MIG-a") in [
        (what, fields["uuid"]) for what, fields in box.lines
    ]


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetUUID"]
)
def test_an_instance_of_which_the_driver_does_not_tell_for_once_is_not_taken_for_destroyed(
    boards: tuple[Board, Board], call: str
) -> None:
    """Its models would all have to be loaded anew, elsewhere or not at all."""
    box, engine = Box(), Engine()
    gpu = boards[0]
    box.look(engine)
    asked = gpu.instances[0] if call == "nvmlDeviceGetUUID" else gpu
    asked.errors[call] = pynvml.NVML_ERROR_UNKNOWN
    box.look(engine)
    states = {state.device.called: state for state in box.care.states}
    assert not any(state.fault or state.gone for state in states.values())
    assert [states[cuda(index)].budget_bytes for index in range(3)] == list(ROOMS)
    asked.errors.clear()
    del gpu.instances[0]
    box.look(engine)
    assert engine.told[cuda(0)].gone


def test_a_gpu_on_which_mig_is_switched_on_is_no_device_any_more(boards: tuple[Board, Board]) -> None:
    box, engine = Box(), Engine()
    boards[1].mig, boards[1].instances = True, {0: part("MIG-c", SMALL, 10)}
    box.look(engine)
    assert "MIG was switched on or off; start the appliance anew" in engine.told[cuda(2)].fault
    assert [device.uuid for device, _ in box.watch.looks()] == ["MIG-a", "MIG-b", "GPU-1"], "until then"


def test_a_gpu_without_instances_keeps_its_place_and_takes_no_models(boards: tuple[Board, Board]) -> None:
    boards[0].instances.clear()
    nvml = Nvml()
    empty, whole = nvml.devices
    assert (empty.uuid, whole.index) == ("GPU-0", 1)
    reading = nvml.read(empty)
    (fault,) = faults(reading)
    assert fault == (
        "has MIG on and no instance for models; make one (nvidia-smi mig -cgi PROFILE -C); start the appliance anew"
    )
    assert is_gone(reading)
    assert reading.power_w == 80.628, "what it draws is still told"


def test_a_driver_that_changes_is_told_of_and_no_fault_of_instances(boards: tuple[Board, Board]) -> None:
    nvml = Nvml()
    boards[0].errors[ANY] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert nvml.read(nvml.devices[0]) == Reading(driver_changed=True)


@pytest.mark.usefixtures("boards")
def test_engines_are_tied_to_instances_by_name_and_uuid(capsys: pytest.CaptureFixture[str]) -> None:
    tie.main()
    driver = tie.read_driver(capsys.readouterr().out, 0)
    assert f", {SMALL} MIG-a, {LARGE} MIG-b, " in tie.tie_of("TensorRT 11", driver)


def test_models_run_on_instances_and_their_workers_are_told_which(boards: tuple[Board, Board]) -> None:
    box = Box()
    assert [state.budget_bytes for state in box.care.states] == list(ROOMS)
    world = DeviceWorld(1, [(0,), (1,), (2,), ()], ROOMS, visible=box.care.visible)
    world.start()
    assert [world.device_of(name) for name in world.names[:3]] == ["cuda:0", "cuda:1", "cuda:2"]
    assert world.workers.visible == {cuda(0): "MIG-a", cuda(1): "MIG-b", cuda(2): "GPU-1"}
    assert len(world.workers.devices) == 3, "a worker for each"
    world.load_of(4_000, 200)
    box.play(world, 5_000)
    assert sum(world.answers.values()) == 200
    world.settle()


def test_an_instance_that_is_destroyed_is_left_and_no_request_fails(boards: tuple[Board, Board]) -> None:
    box = Box()
    world = DeviceWorld(2, [(0, 1), (0,)], ROOMS, visible=box.care.visible)
    world.start()
    before = world.device_of("m0")
    assert before == "cuda:1", "the one with most room"
    world.load_of(4_000, 300)
    world.world.after(500 * MS, boards[0].instances.clear)
    world.world.after(1_500 * MS, lambda: boards[0].instances.update({0: part("MIG-a", SMALL, 10)}))
    box.play(world, 8_000)
    assert world.device_of("m0") == "cuda:0", "an instance that is made anew with its UUID serves again"
    assert world.reason_of("m0") == world.reason_of("m1") == ("READY", "")
    world.settle()
