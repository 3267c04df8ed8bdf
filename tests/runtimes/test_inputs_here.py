"""Inputs that a session on a device reads on the processor: ONNX Runtime copies them when they are bound, and never
again. The device is simulated, and so is that copy; where real sessions read their inputs is their own word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as native

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.digest import digest_of
from appliance.domain.errors import LoadFailed
from appliance.domain.model import Batching, ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes import onnx, onnx_cuda
from appliance.runtimes.device_graphs import capturing
from appliance.runtimes.onnx_placement import read_here, written_here
from appliance.runtimes.runtime import OverlappedRun, RuntimeSettings, Session, region_maker
from appliance.runtimes.unread import FIELDS_MAX, unread
from appliance.tools.conformance.memory import Memory
from models.generators.graph import model_bytes, node, tensor_port
from tests.runtimes.cuda_bench import ANY_DEVICE, BY_OTHERS, Bench, CopyingBinding, Graphs
from tests.workers.bench import spec, version_of


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    copying = SimpleNamespace(SessionIOBinding=CopyingBinding, OrtDevice=native.OrtDevice)
    monkeypatch.setattr(onnx_cuda, "native", copying)
    return Bench(here=frozenset({"by"}))


@pytest.fixture
def version(tmp_path: Path) -> ModelVersion:
    """y is x times by, row by row."""
    model = model_bytes(
        "times",
        [node("Mul", ["x", "by"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n", 3]), tensor_port("by", "FP32", ["n", 1])],
        outputs=[tensor_port("y", "FP32", ["n", 3])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    inputs = [spec("x", Datatype.FP32, 3), spec("by", Datatype.FP32, 1)]
    return version_of(path, inputs, [spec("y", Datatype.FP32, 3)], max_batch_size=8, batching=Batching())


@pytest.fixture
def session(bench: Bench, version: ModelVersion) -> Iterator[Session]:
    session = bench.load(version, RuntimeSettings())
    yield session
    session.close()
    assert not bench.cuda.held


def asked(rows: int, by: float) -> Memory:
    return Memory(np.ones((rows, 3), np.float32), np.full((rows, 1), by, np.float32))


def answers(session: Session, rows: int, by: float) -> set[float]:
    memory = asked(rows, by)
    (raw,) = memory.outputs(memory.run(session, (0,)))
    return set(np.frombuffer(raw, np.float32).tolist())


def test_each_run_reads_what_is_asked_of_it(session: Session) -> None:
    for rows in (1, 2, 5, 1, 5, 2) * 2:
        for by in (2.0, 3.0, 4.0, 2.0):
            assert answers(session, rows, by) == {by}, rows


def test_a_prepared_run_reads_what_is_there_when_it_runs(session: Session) -> None:
    for _ in range(4):
        answers(session, 1, 2.0)
    memory = asked(1, 2.0)
    run = memory.prepared(session, (0,))
    assert run is not None
    for by in (5.0, 6.0):
        memory.put(np.ones((1, 3), np.float32), np.full((1, 1), by, np.float32))
        run()
        assert memory.in_place([12])[0] == np.full(3, by, np.float32).tobytes()


def test_such_runs_are_neither_captured_nor_begun_before_others_have_ended(
    bench: Bench, session: Session
) -> None:
    for _ in range(6):
        assert answers(session, 2, 2.0) == {2.0}
    assert bench.made[0].captured == []
    assert region_maker(session) is not None
    assert not isinstance(asked(2, 2.0).prepared(session, (0,)), OverlappedRun)


def test_the_log_says_which_they_are(
    bench: Bench, version: ModelVersion, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.load(version, RuntimeSettings()).close()
    assert (
        "model/1 runs without CUDA graphs: not read on the device are its inputs by\n"
        in capfd.readouterr().err
    )


def test_an_input_that_no_node_reads_keeps_nobody_from_graphs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime says of it what it says of those that it reads on the processor."""
    copying = SimpleNamespace(SessionIOBinding=CopyingBinding, OrtDevice=native.OrtDevice)
    monkeypatch.setattr(onnx_cuda, "native", copying)
    path = tmp_path / "model.onnx"
    path.write_bytes(with_an_unread_input())
    inputs = [spec("x", Datatype.FP32, 3), spec("by", Datatype.FP32, 1)]
    version = version_of(path, inputs, [spec("y", Datatype.FP32, 3)], max_batch_size=8, batching=Batching())
    bench = Bench(here=frozenset({"by"}), unread=("by",))
    session = bench.load(version, RuntimeSettings())
    for by in (1.0, 2.0, 3.0) * 4:
        assert answers(session, 2, by) == {-1.0}
    assert set(bench.made[0].captured) == {"1"}
    assert bench.made[0].replays > 2
    session.close()
    assert "without CUDA graphs" not in capfd.readouterr().err


def with_an_unread_input() -> bytes:
    """y is minus x, whatever ``by`` is."""
    return model_bytes(
        "minus",
        [node("Neg", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n", 3]), tensor_port("by", "FP32", ["n", 1])],
        outputs=[tensor_port("y", "FP32", ["n", 3])],
    )


@pytest.mark.parametrize("known", ["the file", "its digest", "another digest", "no file"])
def test_the_version_s_own_file_tells_which_inputs_no_node_reads(tmp_path: Path, known: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(with_an_unread_input())
    digest = digest_of(path.read_bytes() if known == "its digest" else b"of another one")
    digests = {str(path): digest} if "digest" in known else {}
    inputs = [spec("x", Datatype.FP32, -1, 3), spec("by", Datatype.FP32, -1, 1)]
    version = version_of(path, inputs, [spec("y", Datatype.FP32, -1, 3)], digests=digests)
    if known == "no file":
        path.unlink()
    told = onnx._unread(version, ("x", "by"))
    assert told == (("by",) if known in ("the file", "its digest") else ())


def test_the_file_is_looked_into_once_and_while_others_may_capture(
    bench: Bench, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not again within a request for which the session is made anew, and not while all captures wait for a load."""
    looked = list[Sequence[str]]()

    def look(model: bytes, names: Sequence[str]) -> Sequence[str]:
        with capturing(ANY_DEVICE):
            looked.append(names)
        return unread(model, names)

    Path(version.path).write_bytes(with_an_unread_input())
    made, names = list[Graphs](), ["CUDAExecutionProvider", "CPUExecutionProvider"]
    real = onnxruntime.InferenceSession

    def make(path: str, *_: object, **__: object) -> object:
        whole = real(path, providers=["CPUExecutionProvider"])
        made.append(Graphs(whole._sess, True, bench.cuda, frozenset({"by"})))
        made[-1].fail = BY_OTHERS if len(made) == 1 else ""
        return SimpleNamespace(_sess=made[-1], get_providers=lambda: names)

    runtime = onnx.OnnxRuntime()
    monkeypatch.setattr(onnx, "_cuda", lambda index: bench.cuda)
    monkeypatch.setattr(onnx, "CudaSession", partial(onnx_cuda.CudaSession, kind=native.OrtDevice.cpu()))
    monkeypatch.setattr(onnx, "_note", lambda version, session: "")
    monkeypatch.setattr(onnx, "unread", look)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    session = runtime.load(replace(version, device=ON_CUDA), RuntimeSettings())
    for by in (2.0, 3.0) * 6:
        assert answers(session, 2, by) == {-1.0}
    session.close()
    assert len(made) == 2
    assert set(made[1].captured) == {"1"}
    assert looked == [["by"]]


def test_the_file_is_not_looked_into_for_inputs_that_are_mostly_left_out(tmp_path: Path) -> None:
    """ONNX Runtime tells of none that has a default where it reads it."""
    model = helper.make_model(
        helper.make_graph(
            [node("Add", ["x", "w"], ["y"])],
            "default",
            [tensor_port(name, "FP32", [3]) for name in ("x", "w")],
            [tensor_port("y", "FP32", [3])],
            [numpy_helper.from_array(np.ones(3, np.float32), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    inputs = [spec("x", Datatype.FP32, 3), replace(spec("w", Datatype.FP32, 3), optional=True)]
    version = version_of(path, inputs, [spec("y", Datatype.FP32, 3)])
    bench = Bench(unread=("w",))
    bench.load(version, RuntimeSettings()).close()
    assert bench.asked == []


def test_which_inputs_no_node_reads_is_found_in_the_file() -> None:
    assert unread(with_an_unread_input(), ["x", "by"]) == ("by",)
    passed_on = model_bytes(
        "passed_on",
        [node("Neg", ["x"], ["y"])],
        inputs=[tensor_port(name, "FP32", ["n"]) for name in ("x", "out", "none")],
        outputs=[tensor_port("y", "FP32", ["n"]), tensor_port("out", "FP32", ["n"])],
    )
    assert unread(passed_on, ["x", "out", "none"]) == ("none",)


def test_what_a_subgraph_reads_is_read() -> None:
    branch = helper.make_graph([node("Neg", ["inner"], ["z"])], "b", [], [tensor_port("z", "FP32", ["n"])])
    model = model_bytes(
        "branches",
        [node("If", ["which"], ["y"], then_branch=branch, else_branch=branch)],
        inputs=[
            tensor_port("which", "BOOL", []),
            *(tensor_port(each, "FP32", ["n"]) for each in ("x", "inner")),
        ],
        outputs=[tensor_port("y", "FP32", ["n"])],
    )
    assert unread(model, ["which", "x", "inner"]) == ("x",)


def test_what_is_no_model_is_not_looked_into_for_ever() -> None:
    with pytest.raises(LoadFailed):
        unread(b"\xff\xff\xff\xff", ["x"])
    graph = b"\x0a\x00"  # an empty node
    for _ in range(2_000):
        graph = _field(1, _field(5, _field(6, graph)))
    assert unread(_field(7, graph), ["x"]) == ("x",), "depth is nothing to it"


@pytest.mark.parametrize("where", ["numbers of an attribute", "nodes", "graphs in graphs"])
def test_a_graph_of_too_many_fields_is_left_alone(where: str) -> None:
    """Numbers of an attribute are a field each, which the firewall does not count."""
    many = FIELDS_MAX + 1
    if where == "numbers of an attribute":
        graph = _field(1, _field(5, _field(1, b"value_ints") + b"\x40\x01" * many))
    elif where == "nodes":
        graph = b"\x0a\x00" * many
    else:
        graph = _field(1, _field(5, b"\x32\x00" * many))
    assert unread(_field(7, graph), ["x"]) == ()
    assert unread(_field(7, graph[:2]), ["x"]) == ("x",) if where == "nodes" else True


def _field(number: int, message: bytes) -> bytes:
    """As protobuf writes it."""
    head, size = bytearray((number << 3 | 2,)), len(message)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*head, size)) + message


@pytest.fixture
def with_shape(tmp_path: Path) -> ModelVersion:
    """y is minus x, and s is the shape of x."""
    model = model_bytes(
        "shape",
        [node("Neg", ["x"], ["y"]), node("Shape", ["x"], ["s"])],
        inputs=[tensor_port("x", "FP32", ["n", 3])],
        outputs=[tensor_port("y", "FP32", ["n", 3]), tensor_port("s", "INT64", [2])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    outputs = [spec("y", Datatype.FP32, -1, 3), spec("s", Datatype.INT64, 2)]
    return version_of(path, [spec("x", Datatype.FP32, -1, 3)], outputs)


def test_an_output_that_is_left_on_the_processor_is_never_captured(
    with_shape: ModelVersion, capfd: pytest.CaptureFixture[str]
) -> None:
    """A graph would bring again what lies then where it lay when it was captured."""
    bench = Bench(here=frozenset({"s"}))
    session = bench.load(with_shape, RuntimeSettings())
    for rows in (1, 2, 3) * 5:
        memory = Memory(np.ones((rows, 3), np.float32))
        _, shape = memory.outputs(memory.run(session, (0, 1)))
        assert np.frombuffer(shape, np.int64).tolist() == [rows, 3]
    assert bench.made[0].captured == []
    memory = Memory(np.ones((2, 3), np.float32))
    for _ in range(5):
        memory.run(session, (0,))
    assert set(bench.made[0].captured) == {"1"}, "without it they are"
    session.close()
    told = capfd.readouterr().err
    assert told == "model/1 runs without CUDA graphs: not made on the device are its outputs s\n"


def test_of_a_session_whose_outputs_are_all_left_there_nothing_is_captured(
    with_shape: ModelVersion, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of one that gives nothing but shapes."""
    bench = Bench(here=frozenset({"y", "s"}))
    session = bench.load(with_shape, RuntimeSettings())
    memory = Memory(np.ones((2, 3), np.float32))
    for _ in range(6):
        memory.run(session, (0, 1))
    assert bench.made[0].captured == []
    session.close()
    assert "not made on the device are its outputs y, s\n" in capfd.readouterr().err


def test_real_sessions_tell_where_they_write(with_shape: ModelVersion) -> None:
    session = onnxruntime.InferenceSession(with_shape.path, providers=["CPUExecutionProvider"])._sess
    assert written_here(session) == ("y", "s")
    assert written_here(SimpleNamespace()) == ()


def test_real_sessions_tell_where_they_read(version: ModelVersion) -> None:
    session = onnxruntime.InferenceSession(version.path, providers=["CPUExecutionProvider"])._sess
    assert read_here(session, ["x", "by", "optional"]) == ("x", "by", "optional")
    assert read_here(SimpleNamespace(), ["x"]) == ()
