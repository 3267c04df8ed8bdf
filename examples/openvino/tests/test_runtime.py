"""The conformance suite, on both formats, and what only this runtime does."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino
import pytest
from appliance_openvino.runtime import OpenVinoRuntime
from openvino import opset13 as op

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.errors import InvalidRequest, LoadFailed
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.runtimes.runtime import RuntimeSettings
from appliance.tools.conformance.cases import CASES, Case, Rig
from appliance.tools.conformance.identity import identity_version, write_onnx
from appliance.tools.conformance.memory import Memory

SETTINGS = RuntimeSettings()


def write_ir(home: Path, datatype: openvino.Type = openvino.Type.f32) -> Path:
    """The identity model in OpenVINO's own format; gives the version directory."""
    folder = home / "ir" / "1"
    folder.mkdir(parents=True)
    parameters = [op.parameter(openvino.PartialShape([-1, -1]), datatype, name=name) for name in "ab"]
    results = []
    for parameter, source, target in zip(parameters, "ab", "pq", strict=True):
        parameter.output(0).set_names({source})
        copy = op.reshape(parameter, op.shape_of(parameter), special_zero=False)
        copy.output(0).set_names({target})
        results.append(op.result(copy))
    openvino.save_model(openvino.Model(results, parameters), folder / "model.xml", compress_to_fp16=False)
    return folder


@pytest.fixture(params=[write_onnx, write_ir], ids=["onnx", "ir"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    version = identity_version("openvino", str(request.param(tmp_path)))
    (tmp_path / "nothing").mkdir()
    return Rig(OpenVinoRuntime(), version, replace(version, path=str(tmp_path / "nothing")))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conforms(rig: Rig, case: Case) -> None:
    assert bool(case.run(rig)) == (case.name == "weights")


def test_a_shape_that_the_model_does_not_take_is_the_requests_fault(rig: Rig) -> None:
    session = rig.runtime.load(rig.version, SETTINGS)
    memory = Memory(np.zeros(3, np.float32), np.zeros((1, 1), np.float32))
    with pytest.raises(InvalidRequest, match="takes no input of this shape"):
        memory.run(session, (0, 1))


def test_no_precision_is_lost_on_processors_that_have_less(tmp_path: Path) -> None:
    """Where the CPU has BF16, OpenVINO would compute with it."""
    folder = tmp_path / "1"
    folder.mkdir()
    x = op.parameter(openvino.PartialShape([-1, 64]), openvino.Type.f32, name="x")
    x.output(0).set_names({"x"})
    factors = np.random.default_rng(1).random((64, 8), np.float32)
    y = op.matmul(x, op.constant(factors), False, False)
    y.output(0).set_names({"y"})
    openvino.save_model(openvino.Model([op.result(y)], [x]), folder / "model.xml", compress_to_fp16=False)
    version = replace(
        identity_version("openvino", str(folder)),
        inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(-1, 64)),),
        outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(-1, 8)),),
    )
    session = OpenVinoRuntime().load(version, SETTINGS)
    values = np.random.default_rng(2).random((4, 64), np.float32)
    memory = Memory(values)
    (found,) = memory.outputs(memory.run(session, (0,)))
    right = values.astype(np.float64) @ factors.astype(np.float64)
    np.testing.assert_allclose(np.frombuffer(found, np.float32).reshape(4, 8), right, rtol=1e-5)


def test_what_it_does_not_carry_is_refused_with_the_reason(tmp_path: Path) -> None:
    version = identity_version("openvino", str(write_ir(tmp_path, openvino.Type.bf16)))
    with pytest.raises(LoadFailed, match="input 'a' is of type bf16, which this runtime does not carry"):
        OpenVinoRuntime().load(version, SETTINGS)
    with pytest.raises(LoadFailed, match="device 'cuda' is not offered"):
        OpenVinoRuntime().load(replace(version, device=ON_CUDA), SETTINGS)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(LoadFailed, match=r"OpenVINO cannot load .*model\.onnx: "):
        OpenVinoRuntime().load(identity_version("openvino", str(tmp_path)), SETTINGS)


def test_making_it_reports_to_nobody_and_leaves_no_thread() -> None:
    code = (
        "import os, sys; from appliance_openvino.runtime import OpenVinoRuntime; OpenVinoRuntime(); "
        "print(sys.modules['openvino_telemetry'], len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as where workers are forked
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["None", "1"]
