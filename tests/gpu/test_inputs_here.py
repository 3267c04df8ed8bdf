"""Inputs that ONNX Runtime reads on the processor although the model runs on a real GPU, as bounds of a Slice: each run
reads its own. Skipped where there is no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.errors import LoadFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings
from appliance.tools.conformance.memory import Memory
from models.generators.graph import model_bytes, node, tensor_port
from tests.devices.absent import absent
from tests.workers.bench import spec, version_of


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
    try:
        session = OnnxRuntime().load(replace(version, device=ON_CUDA, cuda_graphs=graphs), RuntimeSettings())
    except LoadFailed as problem:
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            absent("the installed onnxruntime has no CUDA")
        absent(f"no GPU: {problem}")
    x = np.arange(6, dtype=np.float32)
    for start in (0, 1, 3, 0, 4, 2, 1, 1, 0):
        memory = Memory(x, np.array([start], np.int64), np.array([start + 2], np.int64))
        assert memory.outputs(memory.run(session, (0,))) == [(-x[start : start + 2]).tobytes()], start
    session.close()
