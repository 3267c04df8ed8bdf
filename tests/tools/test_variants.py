"""Variants of less precision: what is in their files, and that they compute what their numbers say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ArtefactError
from appliance.tools.subject import find_subject
from appliance.tools.variants.conversion import make_variant
from appliance.tools.variants.four_bits import BLOCK_ROWS, HIGHEST, LOWEST, STANDARD_BLOCK_ROWS
from appliance.tools.variants.suitability import unsuitable_reason
from tests.package.onnx_models import save_outside
from tests.tools.models import noisy_model, old_model, picture_model, write

SEED = 11
FLOAT8 = TensorProto.FLOAT8E4M3FN


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolution, Gemm and MatMul: x FP32 [batch, 2, 6, 6] to y [batch, 5]."""
    return write(tmp_path_factory.mktemp("source") / "net.onnx", picture_model())


def pictures(count: int) -> list[dict[str, NDArray[np.float32]]]:
    generator = np.random.default_rng(SEED)
    return [{"x": generator.standard_normal((2, 2, 6, 6)).astype(np.float32)} for _ in range(count)]


def answer(
    path: Path | bytes, feeds: dict[str, NDArray[np.float32]], *, as_written: bool = False
) -> NDArray[np.float32]:
    """What the runtime computes; ``as_written``: of no other graph than the file's."""
    options = onnxruntime.SessionOptions()
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found: NDArray[np.float32] = session.run(None, feeds)[0]
    return found


def made(source: Path, method: str, folder: Path, *, for_tensorrt: bool = False) -> Path:
    target = folder / f"{method}-{for_tensorrt}.onnx"
    make_variant(str(source), method, str(target), pictures(4), for_tensorrt=for_tensorrt)
    return target


@pytest.mark.parametrize("for_tensorrt", [False, True])
@pytest.mark.parametrize("method", ["fp16", "int8-static", "fp8", "int4"])
def test_clients_see_no_difference_and_the_firewall_lets_it_pass(
    method: str, source: Path, tmp_path: Path, for_tensorrt: bool
) -> None:
    path = made(source, method, tmp_path, for_tensorrt=for_tensorrt)
    before, after = (find_subject(each).version for each in (source, path))
    assert (before.inputs, before.outputs) == (after.inputs, after.outputs)
    assert path.stat().st_size < source.stat().st_size


@pytest.mark.parametrize("for_tensorrt", [False, True])
@pytest.mark.parametrize(("method", "far"), [("fp16", 0.01), ("int8-static", 0.15), ("int4", 0.5)])
def test_answers_are_near_the_original_and_not_the_same(
    method: str, far: float, source: Path, tmp_path: Path, for_tensorrt: bool
) -> None:
    (feeds,) = pictures(1)
    path = made(source, method, tmp_path, for_tensorrt=for_tensorrt)
    distance = np.abs(answer(path, feeds) - answer(source, feeds)).max()
    assert 0 < distance < far


def test_integers_for_tensorrt_are_symmetric_and_leave_biases_as_they_are(
    source: Path, tmp_path: Path
) -> None:
    for for_tensorrt in (False, True):
        model = onnx.load(made(source, "int8-static", tmp_path, for_tensorrt=for_tensorrt))
        tensors = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        read = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
        centred = all(not tensors[node.input[2]].any() for node in read)
        unpacked = {tensors[node.input[0]].dtype for node in read if node.input[0] in tensors}
        assert centred == for_tensorrt
        assert (np.dtype(np.int32) in unpacked) != for_tensorrt
        kinds = {tensors[node.input[2]].dtype for node in read if node.op_type == "QuantizeLinear"}
        assert kinds == {np.dtype(np.int8 if for_tensorrt else np.uint8)}


def test_four_bits_for_tensorrt_are_of_operators_that_onnx_has(tmp_path: Path) -> None:
    """And compute what they unpack to, as this test reads them by ONNX's own rules."""
    generator = np.random.default_rng(SEED)
    weights, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ((3, 128), (3,)))
    weights[1, :STANDARD_BLOCK_ROWS] = 0
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    source = write(tmp_path / "gemm.onnx", _graph([gemm], {"w": weights, "b": bias}, [2, 128], [2, 3]))
    path = tmp_path / "int4.onnx"
    make_variant(str(source), "int4", str(path), [], for_tensorrt=True)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["DequantizeLinear", "MatMul", "Add"]
    assert all(node.domain == "" for node in model.graph.node)
    values, scales = (
        next(numpy_helper.to_array(each) for each in model.graph.initializer if each.name.endswith(end))
        for end in ("_values", "_scales")
    )
    whole = values.astype(np.float32)
    assert (whole.shape, scales.shape) == ((128, 3), (2, 3))
    assert scales.min() > 0
    assert LOWEST <= whole.min() < 0 < whole.max() <= HIGHEST
    matrix = whole * np.repeat(scales, STANDARD_BLOCK_ROWS, axis=0)
    assert np.all(np.abs(matrix - weights.T) <= np.repeat(scales, STANDARD_BLOCK_ROWS, axis=0) * 0.501)
    x = generator.standard_normal((2, 128)).astype(np.float32)
    found = answer(path, {"x": x}, as_written=True)
    np.testing.assert_allclose(found, x @ matrix + bias, rtol=1e-4, atol=1e-4)
    joined = answer(path, {"x": x})
    assert np.abs(joined - found).max() < 0.1, (
        "where the runtime joins the nodes, activations have eight bits"
    )


def test_matrices_that_are_no_whole_blocks_stay_as_they_are_for_tensorrt(tmp_path: Path) -> None:
    weights = {name: np.ones(shape, np.float32) for name, shape in (("w", (70, 64)), ("v", (64, 3)))}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    source = write(tmp_path / "two.onnx", _graph(nodes, weights, [2, 70], [2, 3]))
    path = tmp_path / "int4.onnx"
    make_variant(str(source), "int4", str(path), [], for_tensorrt=True)
    assert [node.op_type for node in onnx.load(path).graph.node] == ["MatMul", "DequantizeLinear", "MatMul"]
    alone = write(
        tmp_path / "one.onnx", _graph(nodes[:1], {"w": weights["w"]}, [2, 70], [2, 64], gives_as="h")
    )
    with pytest.raises(
        ArtefactError, match="FP32 weights in whole blocks of 64 rows, as TensorRT wants them"
    ):
        make_variant(str(alone), "int4", str(path), [], for_tensorrt=True)


def test_eight_bit_floats_stand_where_products_are(source: Path, tmp_path: Path) -> None:
    model = onnx.load(made(source, "fp8", tmp_path))
    onnx.checker.check_model(model)
    eight = {each.name for each in model.graph.initializer if each.data_type == FLOAT8 and len(each.dims) > 1}
    read = {node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    assert len(eight) == 3
    assert eight <= read
    assert any(node.op_type == "QuantizeLinear" for node in model.graph.node)


def test_integers_have_a_scale_for_each_channel_of_the_weights(source: Path, tmp_path: Path) -> None:
    tensors = {each.name: each for each in onnx.load(made(source, "int8-static", tmp_path)).graph.initializer}
    weights = [
        name for name, each in tensors.items() if each.data_type == TensorProto.INT8 and len(each.dims) > 1
    ]
    assert len(weights) == 3
    for name in weights:
        (channels,) = tensors[name.replace("_quantized", "_scale")].dims
        assert channels in tensors[name].dims
        assert channels > 1


def test_four_bits_compute_what_they_unpack_to(tmp_path: Path) -> None:
    """The runtime's kernel and this test read the packed form alike: two values in a byte, low half first."""
    generator = np.random.default_rng(SEED)
    weights, bias = (
        generator.standard_normal(shape).astype(np.float32) for shape in ((3, 70), (3,))
    )  # 70: the last block is cut short
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    source = write(tmp_path / "gemm.onnx", _graph([gemm], {"w": weights, "b": bias}, [2, 70], [2, 3]))
    path = made_of(source, tmp_path)
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node] == ["MatMulNBits", "Add"]
    tensors = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    assert "w" not in tensors, "what nobody reads any more is gone"
    values, scales, zeros = (
        next(each for name, each in tensors.items() if name.endswith(end))
        for end in ("_values", "_scales", "_zeros")
    )
    unpacked = _halves(values.reshape(3, -1)).reshape(3, -1, BLOCK_ROWS).astype(np.float32)
    offsets = _halves(zeros)[:, : scales.shape[1]].astype(np.float32)
    matrix = ((unpacked - offsets[..., None]) * scales[..., None]).reshape(3, -1)[:, :70]
    np.testing.assert_allclose(matrix, weights, atol=float(weights.max() - weights.min()) / 15)
    x = generator.standard_normal((2, 70)).astype(np.float32)
    np.testing.assert_allclose(answer(path, {"x": x}), x @ matrix.T + bias, rtol=1e-4, atol=1e-4)


def test_weights_that_two_nodes_share_are_packed_once(tmp_path: Path) -> None:
    weights = np.random.default_rng(SEED).standard_normal((64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    source = write(tmp_path / "twice.onnx", _graph(nodes, {"w": weights}, [2, 64], [2, 64]))
    path = made_of(source, tmp_path)
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node] == ["MatMulNBits", "Relu", "MatMulNBits"]
    assert len(model.graph.initializer) == 3
    assert find_subject(path).version.outputs


def test_products_that_scale_or_have_no_weights_stay(tmp_path: Path) -> None:
    weights = np.eye(8, dtype=np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], alpha=0.5),
        helper.make_node("MatMul", ["h", "x"], ["y"]),
    ]
    source = write(tmp_path / "scaled.onnx", _graph(nodes, {"w": weights}, [8, 8], [8, 8]))
    with pytest.raises(ArtefactError, match="no MatMul or Gemm of the model has FP32 weights"):
        made_of(source, tmp_path)


def test_weights_in_a_second_file_are_taken_along(source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.onnx"
    save_outside(onnx.load(source), str(outside))
    (feeds,) = pictures(1)
    assert unsuitable_reason(str(outside), RepositoryConfig()) == ""
    for method in ("fp16", "int8-static", "int4"):
        inside, other = made(source, method, tmp_path), tmp_path / f"outside-{method}.onnx"
        make_variant(str(outside), method, str(other), pictures(4))
        np.testing.assert_array_equal(answer(other.read_bytes(), feeds), answer(inside, feeds))


@pytest.mark.parametrize("method", ["int8-static", "fp8", "int4"])
def test_a_model_without_products_has_no_such_variant(method: str, tmp_path: Path) -> None:
    source = write(tmp_path / "noise.onnx", noisy_model())
    with pytest.raises(ArtefactError, match="has nothing that can be quantised"):
        make_variant(str(source), method, str(tmp_path / "t.onnx"), [{"x": np.zeros((1, 4), np.float32)}])


@pytest.mark.parametrize("method", ["int8-static", "int8-dynamic", "int4"])
def test_a_model_of_an_operator_set_without_scales_for_channels_is_converted(
    method: str, tmp_path: Path
) -> None:
    """As many are that others exported, who are not asked again: in operator set 11 Squeeze has its axes elsewhere."""
    source = write(tmp_path / "old.onnx", old_model())
    path = made(source, method, tmp_path)
    (feeds,) = pictures(1)
    distance = np.abs(answer(path, feeds) - answer(source, feeds)).max()
    assert 0 < distance < 0.5
    assert find_subject(path).version.inputs == find_subject(source).version.inputs


def test_what_onnx_does_not_convert_says_so(tmp_path: Path) -> None:
    model = old_model()
    model.graph.node.insert(0, helper.make_node("NoSuchOperator", ["x"], ["unused"]))
    source = write(tmp_path / "odd.onnx", model)
    with pytest.raises(
        ArtefactError, match=r"^the model is of operator set 11, quantising needs 13, and .*NoSuch"
    ):
        made(source, "int8-static", tmp_path)


def test_a_bias_of_one_row_is_quantised(tmp_path: Path) -> None:
    """tf2onnx writes dense layers so, and the quantiser reads one number for each channel there."""
    generator = np.random.default_rng(SEED)
    shapes = {"w": (72, 16), "b": (1, 16), "v": (16, 5)}
    nodes = [
        helper.make_node("Flatten", ["x"], ["l"]),
        helper.make_node("MatMul", ["l", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["y"]),
    ]
    weights = {
        name: generator.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()
    }
    model = _graph(nodes, weights, ["batch", 2, 6, 6], ["batch", 5], TensorProto.FLOAT)
    source = write(tmp_path / "rows.onnx", model)
    (feeds,) = pictures(1)
    distance = np.abs(answer(made(source, "int8-static", tmp_path), feeds) - answer(source, feeds)).max()
    assert 0 < distance < 0.2


def test_what_a_branch_reads_is_no_other_value_than_before(tmp_path: Path) -> None:
    """The quantiser drops a Relu whose scale cuts off what is below zero, but a branch reads what comes before that."""
    generator = np.random.default_rng(SEED)
    weights: dict[str, NDArray[Any]] = {
        "w": generator.standard_normal((72, 32)).astype(np.float32) / 8,
        "v": generator.standard_normal((32, 5)).astype(np.float32) / 6,
        "low": np.array(-1e9, np.float32),
    }
    branches = [
        helper.make_graph(
            [
                helper.make_node("MatMul", ["r", "v"], [f"{name}_r"]),
                helper.make_node(kind, [f"{name}_r"], [name]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, kind in (("then", "Tanh"), ("else", "Neg"))
    ]
    nodes = [
        helper.make_node("Flatten", ["x"], ["l"]),
        helper.make_node("MatMul", ["l", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "low"], ["yes"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    model = _graph(nodes, weights, ["batch", 2, 6, 6], ["batch", 5])
    source = write(tmp_path / "branch.onnx", model)
    (feeds,) = pictures(1)
    for for_tensorrt in (False, True):
        path = made(source, "int8-static", tmp_path, for_tensorrt=for_tensorrt)
        distance = np.abs(answer(path, feeds) - answer(source, feeds)).max()
        assert 0 < distance < 0.1


@pytest.mark.parametrize("method", ["int8-dynamic", "int8-static", "int4"])
def test_a_set_of_operators_that_is_named_twice_is_one(source: Path, method: str, tmp_path: Path) -> None:
    """As the converter of scikit-learn's models names it."""
    model = onnx.load(source)
    model.opset_import.append(model.opset_import[0])
    assert made(write(tmp_path / "twice.onnx", model), method, tmp_path).exists()


@pytest.mark.parametrize("method", ["int8-dynamic", "int8-static"])
def test_products_behind_operators_whose_types_are_not_inferred_become_integers(
    method: str, tmp_path: Path
) -> None:
    """As the networks of scikit-learn, which scale their inputs by an operator that is not ONNX's own."""
    weights = np.random.default_rng(SEED).standard_normal((4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0]),
        helper.make_node("MatMul", ["s", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    path = write(tmp_path / "m.onnx", helper.make_model(graph, opset_imports=sets, ir_version=8))
    made = tmp_path / "made.onnx"
    feeds = {"x": np.ones((2, 4), np.float32)}
    make_variant(str(path), method, str(made), [feeds])
    np.testing.assert_allclose(answer(made, feeds), answer(path, feeds), atol=0.2)


def test_a_model_without_numbers_has_no_half_precision(tmp_path: Path) -> None:
    """Its variant would be the model itself, under another number."""
    kind = TensorProto.STRING
    source = write(
        tmp_path / "echo.onnx", _graph([helper.make_node("Identity", ["x"], ["y"])], {}, [1], [1], kind)
    )
    with pytest.raises(ArtefactError, match="has nothing that half precision changes"):
        make_variant(str(source), "fp16", str(tmp_path / "t.onnx"), [])
    assert not (tmp_path / "t.onnx").exists()


def test_half_precision_of_a_model_without_weights_is_another_model(tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "x"], ["y"])
    source = write(tmp_path / "twice.onnx", _graph([add], {}, [4], [4], TensorProto.FLOAT))
    made(source, "fp16", tmp_path)


def test_models_of_which_no_variant_can_be_made_are_told_apart(source: Path, tmp_path: Path) -> None:
    def reason(path: Path) -> str:
        return unsuitable_reason(str(path), RepositoryConfig())

    assert reason(source) == ""
    assert reason(write(tmp_path / "noise.onnx", noisy_model())).startswith("it has no weights: ")
    quantised = reason(made(source, "int8-static", tmp_path))
    assert quantised.startswith("it is quantised already (it has ")
    assert "MatMulNBits" in reason(made(source, "int4", tmp_path))
    assert "DequantizeLinear" in reason(made(source, "int4", tmp_path, for_tensorrt=True))
    integers = np.ones((4, 4), np.int32)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    whole = _graph([add], {"w": integers}, [4, 4], [4, 4], TensorProto.INT32)
    assert reason(write(tmp_path / "int.onnx", whole)).startswith("it has no FP32 weights, but such of INT32")


def made_of(source: Path, folder: Path) -> Path:
    """Its variant of four bits."""
    target = folder / f"{source.stem}-int4.onnx"
    make_variant(str(source), "int4", str(target), [])
    return target


def _halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The values of four bits along the last dimension."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)


def _graph(
    nodes: list[onnx.NodeProto],
    weights: dict[str, NDArray[Any]],
    given: Sequence[int | str],
    gives: Sequence[int | str],
    kind: int = TensorProto.FLOAT,
    gives_as: str = "y",
) -> ModelProto:
    ports = [
        helper.make_tensor_value_info(name, kind, list(shape))
        for name, shape in (("x", given), (gives_as, gives))
    ]
    held = [numpy_helper.from_array(each, name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, "test", ports[:1], ports[1:], held)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model
