"""Sessions of engines, on a simulated TensorRT and a simulated device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from appliance.devices.cuda import CudaFailed
from appliance.domain.errors import DeviceFull, DeviceHasNoRoom, InvalidRequest, LoadFailed, RunFailed
from appliance.domain.model import Batching, ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.device_graphs import CAPTURE_AFTER
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.runtimes.tensorrt.profiles import profiles_of
from appliance.runtimes.tensorrt.session import EngineSession
from appliance.tools.conformance.cases import CASES, Case, Rig, empty
from appliance.tools.conformance.identity import INPUTS, OUTPUTS, onnx_bytes
from appliance.tools.conformance.memory import Memory, any_floats
from models.generators.graph import model_bytes, node, tensor_port
from tests.runtimes.tensorrt.simulated import HostDevice, SimulatedContext, SimulatedEngine, SimulatedLibrary
from tests.workers.bench import spec, version_of

IDENTITY = version_of("identity", INPUTS, OUTPUTS, parameters={"tensorrt_free_max": "400"})
PAIRS = version_of(
    "pairs",
    [spec("a", Datatype.FP32, 3), spec("b", Datatype.FP32, 2)],
    [spec("p", Datatype.FP32, 3), spec("q", Datatype.FP32, 2)],
    max_batch_size=8,
    batching=Batching(preferred_batch_size=(4,)),
)
BOTH = (0, 1)
FULL = "its GPU has no memory left"


def pairs_bytes() -> bytes:
    return model_bytes(
        "pairs",
        [node("Identity", ["a"], ["p"]), node("Identity", ["b"], ["q"])],
        inputs=[tensor_port("a", "FP32", ["n", 3]), tensor_port("b", "FP32", ["n", 2])],
        outputs=[tensor_port("p", "FP32", ["n", 3]), tensor_port("q", "FP32", ["n", 2])],
    )


def open_engine(version: ModelVersion, graph: bytes, device: HostDevice) -> SimulatedEngine:
    library = SimulatedLibrary(device)
    built = library.build(
        graph,
        "",
        profiles_of(version),
        workspace_bytes=1,
        cache=b"",
        streams=False,
        refits=False,
        progress=lambda done, total: None,
    )
    return library.open(built.engine)


def session_of(version: ModelVersion, graph: bytes, device: HostDevice) -> EngineSession:
    return EngineSession(
        open_engine(version, graph, device), 100, version, device.as_cuda, graphs=version.cuda_graphs
    )


@dataclass
class EnginesAlone:
    """A runtime for the conformance suite that runs engines and nothing else."""

    name: str = "tensorrt"

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        if version.path != "identity":
            raise LoadFailed("there is no such engine")
        return session_of(version, onnx_bytes(), HostDevice())


def test_an_engine_for_larger_shapes_than_there_is_room_for_does_not_take_what_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, took = HostDevice(), [0]
    real = device.allocate

    def allocate(nbytes: int) -> int:
        took[0] += nbytes
        return real(nbytes)

    monkeypatch.setattr(device, "allocate", allocate)
    engine = open_engine(IDENTITY, onnx_bytes(), device)
    with pytest.raises(LoadFailed, match=r"takes at least .* bytes of its GPU .* more than the 100000 that"):
        EngineSession(engine, 100, IDENTITY, device.as_cuda, room_bytes=100_000)
    assert not device.held
    assert 0 < took[0] < 100_000, "nor for a moment"


class TestConformance:
    """What is not so: tensors without elements are outside of every profile."""

    @pytest.mark.parametrize(
        "case", [each for each in CASES if each.run is not empty], ids=lambda case: case.name
    )
    def test_case(self, case: Case) -> None:
        rig = Rig(EnginesAlone(), IDENTITY, replace(IDENTITY, path="nowhere"))
        assert bool(case.run(rig)) == (case.name == "weights")

    def test_tensors_without_elements_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match=r"'a' \[1, 1\] to \[400, 400\]"):
            empty(Rig(EnginesAlone(), IDENTITY, IDENTITY))


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


@pytest.fixture
def session(device: HostDevice) -> EngineSession:
    return session_of(PAIRS, pairs_bytes(), device)


def echo(session: EngineSession, rows: int) -> None:
    """A request is answered, and rightly."""
    a, b = any_floats(rows, 3, rows), any_floats(rows, 2, rows + 1)
    memory = Memory(a, b)
    produced = memory.run(session, BOTH)
    assert produced.shapes == ((rows, 3), (rows, 2))
    assert produced.parts is None
    assert memory.outputs(produced) == [a.tobytes(), b.tobytes()]


def test_requests_of_both_profiles_are_answered_in_turn(session: EngineSession) -> None:
    for rows in (4, 1, 4, 8, 3, 4):
        echo(session, rows)


def test_a_request_outside_of_all_profiles_is_refused_with_the_limits(session: EngineSession) -> None:
    with pytest.raises(InvalidRequest, match=r"takes 'a' \[1, 3\] to \[8, 3\].*, not 'a' \[9, 3\]"):
        Memory(any_floats(9, 3), any_floats(9, 2)).run(session, BOTH)
    echo(session, 8)


def test_a_request_takes_no_memory_of_the_device(session: EngineSession, device: HostDevice) -> None:
    taken = set(device.held)
    for rows in range(1, 9):
        echo(session, rows)
    assert set(device.held) == taken
    assert session.memory() == 100 + 1024 + 2 * (256 + 256), "contexts compute in the same memory"


def test_closing_gives_everything_back_after_what_still_runs(
    session: EngineSession, device: HostDevice
) -> None:
    echo(session, 1)
    waits = device.waits
    session.close()
    assert not device.held
    assert not device.streams
    assert not device.graphs
    assert device.waits == waits + 1


def test_it_is_closed_on_its_device_in_whatever_thread(session: EngineSession, device: HostDevice) -> None:
    closing = threading.Thread(target=session.close)
    closing.start()
    closing.join()
    assert closing.ident in device.entered


def test_a_device_without_room_refuses_the_load_and_keeps_nothing() -> None:
    device = HostDevice(free=100)
    with pytest.raises(DeviceHasNoRoom, match=r"model/1: its GPU has no memory left; .*: out of memory"):
        session_of(PAIRS, pairs_bytes(), device)
    assert not device.held


def test_a_device_without_room_for_a_context_refuses_the_load_and_keeps_nothing(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise DeviceHasNoRoom(f"{FULL}: TensorRT makes no execution context")

    monkeypatch.setattr(SimulatedEngine, "context", full)
    with pytest.raises(DeviceHasNoRoom) as told:
        session_of(PAIRS, pairs_bytes(), device)
    assert str(told.value).count(FULL) == 1, "and says it once"
    assert not device.held


@pytest.mark.parametrize("by_tensorrt", [True, False])
def test_a_device_that_is_full_in_a_run_is_told_as_that_and_left_alone_by_captures(
    session: EngineSession, device: HostDevice, monkeypatch: pytest.MonkeyPatch, by_tensorrt: bool
) -> None:
    def full(*arguments: object) -> None:
        if by_tensorrt:
            raise DeviceFull(f"{FULL}: TensorRT cannot run this")
        raise CudaFailed("out of memory (CUDA error 2 in cudaGraphLaunch)")

    memory = Memory(any_floats(2, 3, 1), any_floats(2, 2, 2))
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedContext, "run", full)
        with pytest.raises(DeviceFull) as told:
            memory.run(session, BOTH)
    assert str(told.value).count(FULL) == 1
    for _ in range(CAPTURE_AFTER + 1):
        echo(session, 2)
    assert not device.graphs, "where one has no memory the next has none either"


def test_a_device_that_fails_fails_the_request_and_the_next_one_is_right(
    session: EngineSession, device: HostDevice
) -> None:
    memory = Memory(any_floats(2, 3, 1), any_floats(2, 2, 2))
    device.fails = OSError("the bus fell off")
    with pytest.raises(RunFailed, match="the bus fell off"):
        memory.run(session, BOTH)
    device.fails = None
    echo(session, 2)


@pytest.mark.parametrize("call", ["set_input_shape", "run"])
def test_what_tensorrt_refuses_fails_the_request_and_the_next_one_is_right(
    session: EngineSession, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*arguments: object) -> None:
        raise RunFailed("TensorRT says no")

    memory = Memory(any_floats(2, 3, 1), any_floats(2, 2, 2))
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedContext, call, refuse)
        with pytest.raises(RunFailed, match="TensorRT says no"):
            memory.run(session, BOTH)
    echo(session, 2)


def test_outputs_whose_shapes_depend_on_values_are_refused_when_it_is_loaded(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape: Callable[[object, str], tuple[int, ...]] = lambda self, name: (-1, 3)  # noqa: E731
    monkeypatch.setattr(SimulatedContext, "output_shape", shape)
    with pytest.raises(LoadFailed, match="depends on values"):
        session_of(PAIRS, pairs_bytes(), device)
    assert not device.held


def test_answers_that_do_not_fit_are_parts_until_the_next_run(session: EngineSession) -> None:
    a, b = any_floats(8, 3, 1), any_floats(8, 2, 2)
    produced = Memory(a, b, capacity=64).run(session, BOTH)
    assert produced.parts is not None
    assert [bytes(part) for part in produced.parts] == [a.tobytes(), b.tobytes()]
    assert np.frombuffer(produced.parts[0], "<f4").size == 24


def test_an_output_that_is_larger_for_smaller_inputs_is_not_run(
    session: EngineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory was taken for the largest inputs."""
    real = SimulatedContext.output_shape

    def grown(context: SimulatedContext, name: str) -> tuple[int, ...]:
        rows, columns = real(context, name)
        return (rows * 1_000, columns)

    monkeypatch.setattr(SimulatedContext, "output_shape", grown)
    with pytest.raises(RunFailed, match="for the largest ones"):
        Memory(any_floats(1, 3), any_floats(1, 2), capacity=64 << 10).run(session, BOTH)
    monkeypatch.undo()
    echo(session, 1)
