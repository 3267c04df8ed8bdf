"""Inputs that a session on a device reads on the processor: ONNX Runtime copies them when they are bound, and never
again. The device is simulated, and so is that copy; where real sessions read their inputs is their own word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as native

from appliance.domain.model import Batching, ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes import onnx_cuda
from appliance.runtimes.onnx_placement import read_here
from appliance.runtimes.runtime import OverlappedRun, RuntimeSettings, Session, region_maker
from appliance.tools.conformance.memory import Memory
from models.generators.graph import model_bytes, node, tensor_port
from tests.runtimes.cuda_bench import Bench, CopyingBinding
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


def test_real_sessions_tell_where_they_read(version: ModelVersion) -> None:
    session = onnxruntime.InferenceSession(version.path, providers=["CPUExecutionProvider"])._sess
    assert read_here(session, ["x", "by", "optional"]) == ("x", "by", "optional")
    assert read_here(SimpleNamespace(), ["x"]) == ()
