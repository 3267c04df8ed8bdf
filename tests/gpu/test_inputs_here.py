"""Inputs that ONNX Runtime reads on the processor although the model runs on a real GPU, as bounds of a Slice, and
outputs that it leaves there, as a Shape: each run has its own. Skipped where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.errors import LoadFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.tools.conformance.memory import Memory
from models.generators.graph import model_bytes, node, tensor_port
from tests.devices.absent import absent
from tests.workers.bench import spec, version_of


def load(version: ModelVersion, *, graphs: bool = True) -> Session:
    """A session on the first GPU."""
    try:
        return OnnxRuntime().load(replace(version, device=ON_CUDA, cuda_graphs=graphs), RuntimeSettings())
    except LoadFailed as problem:
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            absent("the installed onnxruntime has no CUDA")
        absent(f"no GPU: {problem}")


@pytest.mark.parametrize("graphs", [True, False])
def test_each_run_reads_its_own_bounds(tmp_path: Path, graphs: bool) -> None:
    bounds = [spec(name, Datatype.INT64, 1) for name in ("from", "to")]
    graph = model_bytes(
        "slice",
        [node("Neg", ["x"], ["z"]), node("Slice", ["z", "from", "to"], ["y"])],
        inputs=[tensor_port("x", "FP32", [6]), *(tensor_port(each.name, "INT64", [1]) for each in bounds)],
        outputs=[tensor_port("y", "FP32", ["n"])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(graph)
    version = version_of(path, [spec("x", Datatype.FP32, 6), *bounds], [spec("y", Datatype.FP32, -1)])
    session = load(version, graphs=graphs)
    x = np.arange(6, dtype=np.float32)
    for start in (0, 1, 3, 0, 4, 2, 1, 1, 0):
        memory = Memory(x, np.array([start], np.int64), np.array([start + 2], np.int64))
        assert memory.outputs(memory.run(session, (0,))) == [(-x[start : start + 2]).tobytes()], start
    session.close()


def test_each_run_gives_its_own_shape(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = model_bytes(
        "shape",
        [node("Neg", ["x"], ["y"]), node("Shape", ["x"], ["s"])],
        inputs=[tensor_port("x", "FP32", ["n", 3])],
        outputs=[tensor_port("y", "FP32", ["n", 3]), tensor_port("s", "INT64", [2])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(graph)
    outputs = [spec("y", Datatype.FP32, -1, 3), spec("s", Datatype.INT64, 2)]
    session = load(version_of(path, [spec("x", Datatype.FP32, -1, 3)], outputs))
    for rows in (*[1] * 6, *[2] * 6, *[3] * 6, *range(1, 9), *range(8, 0, -1), 1, 2, 3):
        memory = Memory(np.ones((rows, 3), np.float32))
        y, s = memory.outputs(memory.run(session, (0, 1)))
        assert y == np.full((rows, 3), -1, np.float32).tobytes()
        assert np.frombuffer(s, np.int64).tolist() == [rows, 3]
    session.close()
    assert "not made on the device are its outputs s" in capfd.readouterr().err


def test_an_input_that_no_node_reads_costs_no_graphs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = model_bytes(
        "minus",
        [node("Neg", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n", 3]), tensor_port("unread", "FP32", ["n", 1])],
        outputs=[tensor_port("y", "FP32", ["n", 3])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(graph)
    inputs = [spec("x", Datatype.FP32, -1, 3), spec("unread", Datatype.FP32, -1, 1)]
    session = load(version_of(path, inputs, [spec("y", Datatype.FP32, -1, 3)]))
    for value in range(1, 13):
        memory = Memory(np.full((2, 3), value, np.float32), np.full((2, 1), value, np.float32))
        assert memory.outputs(memory.run(session, (0,))) == [np.full((2, 3), -value, np.float32).tobytes()]
    session.close()
    assert "without CUDA graphs" not in capfd.readouterr().err
