"""What is said where ONNX Runtime does not load a model: what to do, in the place of words that do not say it."""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime
import pytest

from appliance.domain.errors import LoadFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.onnx_reasons import load_reason
from appliance.runtimes.runtime import RuntimeSettings
from models.generators.graph import IR_VERSION, OPSET, model_bytes, node, tensor_port
from tests.workers.bench import spec, version_of

RELEASE = re.escape(onnxruntime.__version__)
FUTURE = 99
"""No release of ONNX Runtime knows it yet, neither as a format nor as a set of operators."""
PORTS = [spec("x", Datatype.FP32, 4)], [spec("y", Datatype.FP32, 4)]
FORMAT_KEY = 8
"""What stands in front of ``ir_version``, which comes first in a file."""
NUMBER_TOLD = re.compile(r"(?:reads|knows) up to (\d+)")


def written(folder: Path, ir_version: int = IR_VERSION, opset: int = OPSET) -> ModelVersion:
    """A model with one node, which says that it is of that format and of that set of operators."""
    raw = model_bytes(
        "relu",
        [node("Relu", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", [4])],
        outputs=[tensor_port("y", "FP32", [4])],
        opset=opset,
        check=False,
    )
    assert raw[0] == FORMAT_KEY
    path = folder / "model.onnx"
    path.write_bytes(bytes([FORMAT_KEY, ir_version]) + raw[2:])
    return version_of(path, *PORTS)


def reason_for(version: ModelVersion) -> str:
    with pytest.raises(LoadFailed) as refusal:
        OnnxRuntime().load(version, RuntimeSettings())
    return str(refusal.value)


def test_a_format_of_a_later_release_says_which_to_save_it_in(tmp_path: Path) -> None:
    reason = reason_for(written(tmp_path, ir_version=FUTURE))
    assert re.search(rf"ir_version is {FUTURE}, and onnxruntime {RELEASE} reads up to (\d+);", reason)
    assert re.search(r"save the model with ir_version = \d+, or install", reason)
    assert "ONNXRuntimeError" not in reason


def test_operators_of_a_later_release_say_which_set_to_export_for(tmp_path: Path) -> None:
    reason = reason_for(written(tmp_path, opset=FUTURE))
    assert re.search(rf"domain 'ai.onnx' is {FUTURE}, and onnxruntime {RELEASE} knows up to (\d+);", reason)
    assert re.search(r"export or convert the model to \d+, or install", reason)
    assert "guarantee" not in reason


def test_what_is_said_to_do_makes_it_load(tmp_path: Path) -> None:
    late_format = reason_for(written(tmp_path, ir_version=FUTURE))
    late_operators = reason_for(written(tmp_path, opset=FUTURE))
    ir_version, opset = (int(NUMBER_TOLD.findall(each)[0]) for each in (late_format, late_operators))
    OnnxRuntime().load(written(tmp_path, ir_version, opset), RuntimeSettings())
    reason_for(written(tmp_path, ir_version + 1, opset))
    reason_for(written(tmp_path, ir_version, opset + 1))


def test_an_operator_that_is_not_known_is_named() -> None:
    problem = Exception("Fatal error: my.ops:Fancy(-1) is not a registered function/op")
    assert load_reason("/m/1/model.onnx", problem, "1.2.3").startswith(
        "operator 'Fancy' of the domain 'my.ops' is not known to onnxruntime 1.2.3; export"
    )


def test_other_words_are_kept_but_for_the_place() -> None:
    assert load_reason("/m/1/model.onnx", Exception("/m/1/model.onnx is odd"), "1.2.3") == "model.onnx is odd"
