"""Small models to try, in directories as a server has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from models.generate import write_model

OPSET = 17


def mlp_home(root: Path) -> Path:
    """The sample network: x FP32 [batch, n] to y, in ``root/mlp``."""
    return write_model("mlp", root)


def noisy_model() -> ModelProto:
    """y = x + noise: never the same twice."""
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"]),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    return _model(nodes, [])


def wide_model() -> ModelProto:
    """y = relu(x W) V with weights large enough that INT8 is faster: x FP32 [batch, 4]."""
    generator = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32) / 8, name)
        for name, shape in (("w", (4, 64)), ("v", (64, 4)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    return _model(nodes, weights)


def picture_model() -> ModelProto:
    """Convolution, Gemm and MatMul, so large that fewer bits are smaller: x FP32 [batch, 2, 6, 6] to y [batch, 5]."""
    generator = np.random.default_rng(3)
    shapes = {"f": (16, 2, 3, 3), "w": (576, 48), "b": (48,), "v": (48, 5)}
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32) / 12, name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["l"]),
        helper.make_node("Gemm", ["l", "w", "b"], ["g"]),
        helper.make_node("Tanh", ["g"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["y"]),
    ]
    return _model(nodes, weights, [["batch", 2, 6, 6], ["batch", 5]])


def old_model() -> ModelProto:
    """Convolution and MatMul in operator set 11, in which Squeeze has an attribute: x FP32 [batch, 2, 6, 6] to
    y [batch, 5]."""
    generator = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32) / 6, name)
        for name, shape in {"f": (16, 2, 6, 6), "v": (16, 5)}.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["c"]),
        helper.make_node("Squeeze", ["c"], ["s"], axes=[2, 3]),
        helper.make_node("Tanh", ["s"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["y"]),
    ]
    model = _model(nodes, weights, [["batch", 2, 6, 6], ["batch", 5]])
    model.opset_import[0].version = 11
    return model


def tiled_model() -> ModelProto:
    """y FP32 [m, 5] is x FP32 [n], which has to be whole tiles of five."""
    shape = numpy_helper.from_array(np.array([-1, 5], np.int64), "shape")
    return _model([helper.make_node("Reshape", ["x", "shape"], ["y"])], [shape], [["n"], ["m", 5]])


def photo_model() -> ModelProto:
    """Pictures of two pixels each way at least, mirrored at two edges: x FP32 [batch, 3, height, width] to y."""
    pads = numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64), "pads")
    pad = helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")
    return _model([pad], [pads], [["batch", 3, "height", "width"], ["batch", 3, "h", "w"]])


def endless_model() -> ModelProto:
    """y = x, after more turns of a loop than any machine makes."""
    turn, go_on = (
        helper.make_tensor_value_info(*each, [])
        for each in (("i", TensorProto.INT64), ("c", TensorProto.BOOL))
    )
    state = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("s", "t")]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["s"], ["t"])],
        "body",
        [turn, go_on, state[0]],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), state[1]],
    )
    constants = [
        numpy_helper.from_array(np.array(np.iinfo(np.int64).max), "turns"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    return _model([helper.make_node("Loop", ["turns", "yes", "x"], ["y"], body=body)], constants)


def write(path: Path, model: ModelProto) -> Path:
    """The model as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def _model(
    nodes: list[onnx.NodeProto],
    weights: list[TensorProto],
    shapes: Sequence[Sequence[int | str]] = (("batch", 4), ("batch", 4)),
) -> ModelProto:
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
        for name, shape in zip(("x", "y"), shapes, strict=True)
    ]
    graph = helper.make_graph(nodes, "test", ports[:1], ports[1:], weights)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 8
    return model
