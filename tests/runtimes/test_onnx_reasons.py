"""What is said where ONNX Runtime does not load a model: what to do, in the place of words that do not say it."""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime
import pytest

from appliance.domain.errors import LoadFailed, UnsupportedModel
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.onnx_reasons import load_reason, unsupported_reason
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


def refusal_of(version: ModelVersion) -> LoadFailed:
    with pytest.raises(LoadFailed) as refusal:
        OnnxRuntime().load(version, RuntimeSettings())
    return refusal.value


def reason_for(version: ModelVersion) -> str:
    return str(refusal_of(version))


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


@pytest.mark.parametrize("late", [{"ir_version": FUTURE}, {"opset": FUTURE}], ids=["format", "operators"])
def test_it_is_known_without_the_model_and_said_in_the_same_words(
    tmp_path: Path, late: dict[str, int]
) -> None:
    numbers = {"ir_version": IR_VERSION, "opset": OPSET, **late}
    (told,) = OnnxRuntime().too_new(numbers["ir_version"], {"": numbers["opset"]})
    assert reason_for(written(tmp_path, **late)) == f"model/1: {told}"


def test_all_that_is_too_new_is_said_at_once_and_nothing_of_what_is_not() -> None:
    runtime = OnnxRuntime()
    told = list(
        runtime.too_new(FUTURE, {"": FUTURE, "ai.onnx.ml": FUTURE, "com.microsoft": 1, "my.ops": FUTURE})
    )
    assert [NUMBER_TOLD.sub("", each).partition(" is ")[0] for each in told] == [
        "the model's ir_version",
        "the model's operator set of the domain 'ai.onnx'",
        "the model's operator set of the domain 'ai.onnx.ml'",
    ]
    limits = [int(NUMBER_TOLD.findall(each)[0]) for each in told]
    assert not list(runtime.too_new(limits[0], {"": limits[1], "ai.onnx.ml": limits[2], "my.ops": FUTURE}))
    for number in (-1, 1 << 70):  # what no file can say does no harm
        assert all(told for told in runtime.too_new(number, {"\ud800": number}))


def test_what_no_other_try_helps_is_told_from_what_may_pass(tmp_path: Path) -> None:
    for late in ({"ir_version": FUTURE}, {"opset": FUTURE}):
        assert isinstance(refusal_of(written(tmp_path, **late)), UnsupportedModel)
    fancy = model_bytes(
        "fancy",
        [node("Fancy", ["x"], ["y"], domain="com.microsoft")],
        inputs=[tensor_port("x", "FP32", [4])],
        outputs=[tensor_port("y", "FP32", [4])],
        domains={"com.microsoft": 1},
        check=False,
    )
    (tmp_path / "model.onnx").write_bytes(fancy)
    version = version_of(tmp_path / "model.onnx", *PORTS)
    assert isinstance(refusal_of(version), UnsupportedModel)
    for data in (fancy[:-10], b""):  # as where a disk was full while it was written
        (tmp_path / "model.onnx").write_bytes(data)
        assert not isinstance(refusal_of(version), UnsupportedModel)
    (tmp_path / "model.onnx").unlink()
    assert not isinstance(refusal_of(version), UnsupportedModel)


@pytest.mark.parametrize(
    "words",
    [
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: std::bad_alloc",
        "[ONNXRuntimeError] : 1 : FAIL : Load model failed: open file fail, errcode = 24 - Too many open files",
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Relu(14) node with name ''",
    ],
)
def test_what_may_pass_is_never_final(words: str) -> None:
    assert unsupported_reason(Exception(words), "1.2.3") == ""


def test_an_operator_that_is_not_known_is_named() -> None:
    problem = Exception("Fatal error: my.ops:Fancy(-1) is not a registered function/op")
    assert load_reason("/m/1/model.onnx", problem, "1.2.3").startswith(
        "operator 'Fancy' of the domain 'my.ops' is not known to onnxruntime 1.2.3; export"
    )


def test_a_locale_that_the_machine_lacks_is_named_with_what_brings_it(tmp_path: Path) -> None:
    """As text classifiers need one; what came later may pass with it."""
    model = model_bytes(
        "upper",
        [node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER", locale="xx_XX.UTF-8")],
        inputs=[tensor_port("x", "BYTES", ["n"])],
        outputs=[tensor_port("y", "BYTES", ["m"])],
    )
    (tmp_path / "model.onnx").write_bytes(model)
    ports = [spec("x", Datatype.BYTES, -1)], [spec("y", Datatype.BYTES, -1)]
    problem = refusal_of(version_of(tmp_path / "model.onnx", *ports))
    assert not isinstance(problem, UnsupportedModel)
    assert str(problem).endswith(
        "StringNormalizer asks for the locale 'xx_XX.UTF-8', which this machine does not have; bring it (on "
        "Debian with the package locales-all, or localedef), or export the model with the locale C.UTF-8"
    )


def test_other_words_are_kept_but_for_the_place() -> None:
    assert load_reason("/m/1/model.onnx", Exception("/m/1/model.onnx is odd"), "1.2.3") == "model.onnx is odd"
