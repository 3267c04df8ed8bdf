"""ONNX models whose weights lie in every place where an ONNX file can hold them."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[np.float32]


def values(*shape: int, seed: int = 0) -> Array:
    """Random numbers."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def tensor(name: str, array: NDArray[np.generic]) -> TensorProto:
    """An initialiser with raw data."""
    made: TensorProto = numpy_helper.from_array(array, name)
    return made


def model(
    nodes: list[NodeProto],
    tensors: list[TensorProto],
    *,
    width: int = 64,
    opset: int = 21,
    ir_version: int = 10,
) -> ModelProto:
    """A model from x [batch, width] to y."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        tensors,
    )
    made: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = ir_version
    return made


def layers(count: int = 3, width: int = 64) -> ModelProto:
    """Products, whose weights the file lists in the opposite order of use."""
    names = [f"w{index}" for index in range(count)]
    nodes = [
        helper.make_node("MatMul", ["x" if not index else f"h{index}", name], [f"h{index + 1}"])
        for index, name in enumerate(names)
    ]
    nodes.append(helper.make_node("Identity", [f"h{count}"], ["y"]))
    tensors = [tensor(name, values(width, width, seed=index)) for index, name in enumerate(names)]
    return model(nodes, tensors[::-1], width=width)


def without_weights() -> ModelProto:
    """y = x + x."""
    return model([helper.make_node("Add", ["x", "x"], ["y"])], [])


def typed() -> ModelProto:
    """Weights as numbers instead of raw bytes."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], values(64, 64).ravel().tolist())
    half = helper.make_tensor("h", TensorProto.FLOAT16, [64, 64], values(64, 64, seed=1).ravel().tolist())
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["a", "f"], ["y"]),
    ]
    return model(nodes, [weights, half])


def constants() -> ModelProto:
    """Weights in Constant nodes."""
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor("", values(64, 64))),
        helper.make_node("Constant", [], ["b"], value=tensor("", values(64))),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    return model(nodes, [])


def _branch(result: str, weights: Array, name: str = "w") -> GraphProto:
    nodes = [helper.make_node("MatMul", ["x", name], [result])]
    out = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    made: GraphProto = helper.make_graph(nodes, result, [], [out], [tensor(name, weights)])
    return made


def subgraphs(*, equal: bool) -> ModelProto:
    """Weights in both branches of an If, under one name, with ``equal`` bytes or not."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["more"]),
        helper.make_node(
            "If", ["more"], ["y"],
            then_branch=_branch("t", values(64, 64)),
            else_branch=_branch("e", values(64, 64, seed=0 if equal else 1)),
        ),
    ]  # fmt: skip
    return model(nodes, [tensor("zero", np.zeros((), np.float32))])


def tied() -> ModelProto:
    """Two weights with equal bytes."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("MatMul", ["a", "w1"], ["y"]),
    ]
    return model(nodes, [tensor("w0", values(64, 64)), tensor("w1", values(64, 64))])


def sparse() -> ModelProto:
    """A sparse initialiser, of which another part is dense."""
    numbers, places = values(300), np.arange(300, dtype=np.int64) * 13
    made = model(
        [
            helper.make_node("MatMul", ["x", "s"], ["a"]),
            helper.make_node("MatMul", ["a", "w"], ["y"]),
        ],
        [tensor("w", values(64, 64))],
    )
    made.graph.sparse_initializer.append(
        helper.make_sparse_tensor(tensor("s", numbers), tensor("s_places", places), [64, 64])
    )
    return made


def quantised() -> ModelProto:
    """Four-bit weights, two in a byte."""
    packed = helper.make_tensor("w", TensorProto.INT4, [64, 64], bytes(range(256)) * 8, raw=True)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["f"]),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    return model(nodes, [packed, tensor("scale", np.array(0.1, np.float32))])


def unused() -> ModelProto:
    """Weights that nothing uses, and an odd number of bytes among them."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    more = tensor("unused", np.arange(1027, dtype=np.uint8))
    return model(nodes, [more, tensor("w", values(64, 64))])


MODELS = {
    "layers": layers(),
    "without-weights": without_weights(),
    "typed": typed(),
    "constants": constants(),
    "subgraphs-equal": subgraphs(equal=True),
    "subgraphs": subgraphs(equal=False),
    "tied": tied(),
    "sparse": sparse(),
    "quantised": quantised(),
    "unused": unused(),
    "old": model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor("w", values(64, 64))], ir_version=3, opset=8
    ),
}


def save_outside(made: ModelProto, path: str, *, location: str = "model.bin") -> None:
    """The model with all of its initialisers in one file beside it."""
    copy = ModelProto()
    copy.CopyFrom(made)
    onnx.save(
        copy, path, save_as_external_data=True, location=location, size_threshold=0, convert_attribute=True
    )
