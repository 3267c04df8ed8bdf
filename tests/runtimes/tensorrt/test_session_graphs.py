"""Sessions of engines whose runs are captured as CUDA graphs, and whose batches are filled up, on a simulated TensorRT
and a simulated device."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from appliance.devices.cuda import CudaFailed
from appliance.domain.errors import DeviceHasNoRoom, RunFailed
from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype
from appliance.runtimes import device_graphs
from appliance.runtimes.device_graphs import CAPTURE_AFTER, whole_device
from appliance.runtimes.runtime import OverlappedRun, batch_sizes, region_maker
from appliance.runtimes.tensorrt import contexts, graphs
from appliance.runtimes.tensorrt.session import EngineSession
from appliance.tools.conformance.memory import Array, Memory, any_floats
from models.generators.graph import model_bytes, node, tensor_port
from tests.runtimes.tensorrt.simulated import HostDevice, SimulatedContext, SimulatedEngine
from tests.runtimes.tensorrt.test_session import BOTH, PAIRS, echo, pairs_bytes, session_of
from tests.workers.bench import spec, version_of

X = [spec("x", Datatype.FP32, 4)]


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


@pytest.fixture
def session(device: HostDevice) -> EngineSession:
    return session_of(PAIRS, pairs_bytes(), device)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What contexts were told to run."""
    told: list[object] = []
    real = SimulatedContext.run

    def run(context: SimulatedContext, stream: int) -> None:
        told.append(context)
        real(context, stream)

    monkeypatch.setattr(SimulatedContext, "run", run)
    return told


def test_shapes_that_come_again_are_captured_once_and_launched_from_then_on(
    session: EngineSession, device: HostDevice, ran: list[object]
) -> None:
    for _ in range(CAPTURE_AFTER):
        echo(session, 2)
    assert len(device.graphs) == 1
    assert len(ran) == CAPTURE_AFTER + 2, "once more to warm up, once to be captured"
    assert ran[-1] is ran[-2], "by a context of its own"
    assert ran[-1] is not ran[0]
    launches = device.launches
    for _ in range(5):
        echo(session, 2)
    assert device.launches == launches + 5
    assert len(ran) == CAPTURE_AFTER + 2


def test_shapes_in_turn_leave_each_other_s_graphs_as_they_are(
    session: EngineSession, device: HostDevice
) -> None:
    """The simulated contexts see when one is changed from which a graph was captured."""
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 4, 1) * 4:
        echo(session, rows)
    assert len(device.graphs) == len(batch_sizes(session)) == len((1, 2, 3, 4, 6, 8))


def test_a_graph_is_prepared_as_a_run_is(session: EngineSession) -> None:
    a, b = any_floats(5, 3, 1), any_floats(5, 2, 2)
    memory = Memory(a, b)
    for _ in range(4):
        memory.run(session, BOTH)
    run = memory.prepared(session, BOTH)
    assert run is not None
    a, b = any_floats(5, 3, 3), any_floats(5, 2, 4)
    memory.put(a, b)
    memory.mark()
    run()
    assert memory.in_place((60, 40)) == [a.tobytes(), b.tobytes()]
    assert memory.spoilt() is None


def test_a_model_may_have_none(device: HostDevice) -> None:
    session = session_of(replace(PAIRS, cuda_graphs=False), pairs_bytes(), device)
    for _ in range(5):
        echo(session, 3)
    assert not device.graphs


def test_no_more_than_so_many_are_captured(
    session: EngineSession, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "GRAPHS_MAX", 2)
    monkeypatch.setattr(contexts, "SETTINGS_MAX", 3)
    for rows in (1, 2, 3, 4, 6, 8) * 4:
        echo(session, rows)
    for rows in (8, 8, 6, 6, 1):
        echo(session, rows)
    assert len(device.graphs) == 2


def test_a_capture_that_failed_once_is_tried_again_and_others_stay(
    session: EngineSession,
    device: HostDevice,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It may have been spoilt by a run of another version that failed in another thread."""
    for _ in range(3):
        echo(session, 8)
    real = SimulatedContext.run

    def run(context: SimulatedContext, stream: int) -> None:
        if stream in device.capturing:
            raise RunFailed("operation failed due to a previous error during capture")
        real(context, stream)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedContext, "run", run)
        for _ in range(CAPTURE_AFTER):
            echo(session, 2)
    assert len(device.graphs) == 1
    launches = device.launches
    echo(session, 8)
    assert device.launches == launches + 1
    echo(session, 2)
    assert len(device.graphs) == 2
    assert len(device.streams) == 1
    assert "without CUDA graphs" not in capfd.readouterr().err


def test_captures_that_find_no_memory_are_not_all_tried_in_the_moment_that_lacks_it(
    session: EngineSession, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = [device_graphs.QUIET_NS]
    monkeypatch.setattr(device_graphs, "monotonic_ns", lambda: now_ns[0])

    def full(*arguments: object) -> None:
        raise DeviceHasNoRoom("its GPU has no memory left: TensorRT makes no execution context")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedEngine, "context", full)
        for _ in range(CAPTURE_AFTER + 5):
            echo(session, 2)
    echo(session, 2)
    assert not device.graphs
    now_ns[0] += device_graphs.QUIET_NS
    echo(session, 2)
    assert len(device.graphs) == 1


def test_a_request_is_answered_although_there_is_no_other_stream_after_a_capture_that_failed(
    session: EngineSession, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SimulatedContext.run

    def run(context: SimulatedContext, stream: int) -> None:
        if stream in device.capturing:
            raise RunFailed("operation failed due to a previous error during capture")
        real(context, stream)

    def none() -> int:
        raise CudaFailed("out of memory (CUDA error 2 in cudaStreamCreateWithFlags)")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedContext, "run", run)
        patch.setattr(device, "stream", none)
        for _ in range(CAPTURE_AFTER):
            echo(session, 2)
    assert not device.graphs
    echo(session, 2)
    assert len(device.graphs) == 1
    assert len(device.streams) == 1


def test_a_capture_that_fails_is_told_of_once_and_the_session_goes_on_without(
    session: EngineSession,
    device: HostDevice,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for _ in range(3):
        echo(session, 8)
    assert device.graphs
    real, tried = SimulatedContext.run, list[int]()

    def run(context: SimulatedContext, stream: int) -> None:
        if stream in device.capturing:
            tried.append(stream)
            raise RunFailed("TensorRT cannot run this: operation not permitted when stream is capturing")
        real(context, stream)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedContext, "run", run)
        for rows in (2, 2, 2, 8, 3, 3, 3):
            echo(session, rows)
    assert not device.graphs
    assert len(device.streams) == 1
    for rows in (2, 8, 1, 1, 1):
        echo(session, rows)
    assert not device.graphs
    assert len(tried) == 1, "it would fail again"
    said = capfd.readouterr().err
    assert said.count("model/1 runs without CUDA graphs: TensorRT cannot run this: operation not perm") == 1


def test_a_graph_that_gives_something_else_is_not_used_and_its_request_is_answered_rightly(
    device: HostDevice,
    session: EngineSession,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    real = SimulatedContext.run
    monkeypatch.setattr(
        SimulatedContext, "run", lambda self, stream: stream in device.capturing or real(self, stream)
    )
    a, b = any_floats(8, 3, 1), any_floats(8, 2, 2)
    for _ in range(4):
        memory = Memory(a, b, capacity=64)
        assert memory.outputs(memory.run(session, BOTH)) == [a.tobytes(), b.tobytes()]
    assert device.launches == 1
    assert not device.graphs
    assert "a graph gave another answer than the run before it" in capfd.readouterr().err


def test_a_context_that_cannot_be_had_for_a_graph_leaves_the_session_without(
    device: HostDevice,
    session: EngineSession,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def none(*arguments: object) -> None:
        raise OSError("out of memory")

    monkeypatch.setattr(session._contexts, "another", none)
    for _ in range(4):
        echo(session, 1)
    assert "runs without CUDA graphs: out of memory" in capfd.readouterr().err


def test_a_device_that_is_lost_ends_the_process(
    session: EngineSession,
    device: HostDevice,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append(pid))
    device.broken = True
    with pytest.raises(RunFailed, match="illegal memory access"):
        echo(session, 1)
    assert ended == [os.getpid()]
    assert "model/1: CUDA is lost to this process: " in capfd.readouterr().err


def test_what_lies_in_pinned_memory_is_copied_from_and_to_it(
    session: EngineSession, device: HostDevice
) -> None:
    make = region_maker(session)
    assert make is not None
    memory = Memory(any_floats(4, 3, 1), any_floats(4, 2, 2))
    source, place = make(8192), make(8192)
    source.view[:] = memory.source.view[:8192]
    memory.source, memory.place = source, memory.place._replace(region=place)
    produced = memory.run(session, BOTH)
    assert produced.parts is None
    assert memory.outputs(produced) == [any_floats(4, 3, 1).tobytes(), any_floats(4, 2, 2).tobytes()]
    assert not len(session._copies._in.view), "nothing went through memory of the session's own"


def session_over(graph: bytes, outputs: list[object], device: HostDevice) -> EngineSession:
    version = version_of("x", X, outputs, max_batch_size=8, batching=Batching())  # type: ignore[arg-type]
    return session_of(version, graph, device)


def test_rows_that_fill_up_are_nothing_of_earlier_requests(device: HostDevice) -> None:
    """What a model finds over all rows of a batch is the same whatever was there before."""
    graph = model_bytes(
        "over_all",
        [node("ReduceMax", ["x"], ["m"], keepdims=1), node("Sub", ["x", "m"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n", 4])],
        outputs=[tensor_port("y", "FP32", ["n", 4])],
    )
    session = session_over(graph, [spec("y", Datatype.FP32, 4)], device)
    for rows, value in ((8, 900), (7, 2), (8, 800), (7, 3), (7, 1), (5, 9), (6, 700), (5, 4), (5, 3)) * 2:
        x = np.full((rows, 4), value, np.float32)
        x[0, 0] += 1
        memory = Memory(x)
        (found,) = memory.outputs(memory.run(session, (0,)))
        assert np.frombuffer(found, np.float32).tolist() == (x - x.max()).ravel().tolist()
    assert len(device.graphs) == 2


def test_outputs_without_a_row_for_each_row_are_not_of_a_batch_that_was_filled_up(device: HostDevice) -> None:
    graph = model_bytes(
        "both",
        [node("Add", ["x", "x"], ["y"]), node("ReduceSum", ["x"], ["z"])],
        inputs=[tensor_port("x", "FP32", ["n", 4])],
        outputs=[tensor_port("y", "FP32", ["n", 4]), tensor_port("z", "FP32", [1, 1])],
    )
    session = session_over(graph, [spec("y", Datatype.FP32, 4), spec("z", Datatype.FP32, 1)], device)
    for rows in (5, 7, 5) * 3:
        memory = Memory(np.ones((rows, 4), np.float32))
        assert memory.outputs(memory.run(session, (1,))) == [np.float32(rows * 4).tobytes()]
        assert memory.outputs(memory.run(session, (0,))) == [np.full((rows, 4), 2, np.float32).tobytes()]
    sizes = sorted(each.inputs["x"][0] for each in session._contexts._settings.values())
    assert sizes == [5, 6, 7, 8]


def test_a_model_without_batching_is_not_filled_up(device: HostDevice) -> None:
    session = session_of(replace(PAIRS, batching=None), pairs_bytes(), device)
    assert batch_sizes(session) == ()
    for rows in (5, 7):
        echo(session, rows)
    assert sorted(each.inputs["a"][0] for each in session._contexts._settings.values()) == [5, 7]


def pinned(session: EngineSession, *arrays: Array) -> Memory:
    """Memory that the device copies from and to by itself."""
    memory, make = Memory(*arrays), region_maker(session)
    assert make is not None
    source, place = make(len(memory.source.view)), make(len(memory.place.region.view))
    source.view[:] = memory.source.view
    memory.source, memory.place = source, memory.place._replace(region=place)
    return memory


def test_runs_are_begun_before_the_one_before_them_has_ended(
    session: EngineSession, device: HostDevice
) -> None:
    one, other = (pinned(session, any_floats(rows, 3), any_floats(rows, 2)) for rows in (8, 5))
    runs = []
    for memory in (one, other):
        memory.run(session, BOTH)
        assert memory.prepared(session, BOTH) is None, "its graph is still to be captured"
        for _ in range(CAPTURE_AFTER):
            memory.run(session, BOTH)
        run = memory.prepared(session, BOTH)
        assert isinstance(run, OverlappedRun)
        runs.append(run)
    for seed in (11, 12):
        given = [(any_floats(rows, 3, seed), any_floats(rows, 2, seed + 9)) for rows in (8, 5)]
        for memory, arrays, run in zip((one, other), given, runs, strict=True):
            memory.put(*arrays)
            run.begin()
        assert not runs[0].ended()
        for memory, (a, b), run in zip((one, other), given, runs, strict=True):
            run.finish()
            assert memory.in_place((a.nbytes, b.nbytes)) == [a.tobytes(), b.tobytes()]
    assert len(device.events) == 2
    del runs, run
    assert not device.events


def test_a_device_that_fails_a_run_that_was_begun_is_told_of_and_goes_on(
    session: EngineSession, device: HostDevice
) -> None:
    memory = pinned(session, any_floats(4, 3), any_floats(4, 2))
    for _ in range(CAPTURE_AFTER + 1):
        memory.run(session, BOTH)
    run = memory.prepared(session, BOTH)
    assert isinstance(run, OverlappedRun)
    device.fails = CudaFailed("misaligned address (CUDA error 716 in cudaMemcpyAsync)")
    with pytest.raises(CudaFailed, match="misaligned"):
        run.begin()
    device.fails = None
    run()
    echo(session, 4)


def test_nothing_is_captured_while_another_thread_waits_for_the_device_and_later_it_is(
    session: EngineSession, device: HostDevice, ran: list[object], capfd: pytest.CaptureFixture[str]
) -> None:
    """As a CUDA session does that is made in the same process."""
    with whole_device():
        for _ in range(CAPTURE_AFTER + 3):
            echo(session, 2)
        assert not device.graphs
        assert len(set(map(id, ran))) == 1, "no context is made in vain"
    echo(session, 2)
    assert len(device.graphs) == 1
    assert "without CUDA graphs" not in capfd.readouterr().err
