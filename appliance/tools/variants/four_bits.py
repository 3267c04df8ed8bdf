"""Weights of four bits: in a graph, each MatMul and Gemm with FP32 weights gets them unpacked from fewer bits.

Weights lie in blocks along the inner dimension, each with a scale of its own, and activations stay FP32, so nothing is
calibrated. There are two forms. ``PackedForm`` is ONNX Runtime's operator ``MatMulNBits``, whose blocks have a zero
point as well; what packs a matrix is handed in. ``StandardForm`` is of operators that ONNX itself has, symmetric around
zero, as TensorRT wants it. Nodes in subgraphs stay as they are, and so do products that scale or transpose their other
input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

BITS: Final = 4
BLOCK_ROWS: Final = 32
STANDARD_BLOCK_ROWS: Final = 64
"""The smallest blocks of four bits that NVIDIA's documentation names for TensorRT; it takes whole ones alone."""
STANDARD_OPSET: Final = 21
"""The operator set of ONNX in which scales of blocks and integers of four bits came."""
STANDARD_IR: Final = 10
LOWEST: Final = -8
HIGHEST: Final = 7
MICROSOFT: Final = "com.microsoft"
MATRIX: Final = 2

Array = NDArray[Any]
Packer = Callable[[Array, Array, Array, Array, int, int, int, bool], Any]
"""Fills packed values, given the matrix, and scales and zero points: (packed, matrix, scales, zero points, rows of a
block, columns, rows, symmetric)."""


class Form(Protocol):
    """How a matrix of four bits is held, and what multiplies with it."""

    def takes(self, rows: int) -> bool:
        """Whether a matrix of so many rows can be held so."""

    def tensors(self, name: str, matrix: Array) -> Iterator[TensorProto]:
        """What is held of the matrix that is called ``name``."""

    def product(self, name: str, size: tuple[int, int], *, left: str, result: str) -> Iterator[NodeProto]:
        """What computes ``result`` from ``left`` and the matrix of that size (rows, columns)."""

    def complete(self, model: ModelProto) -> None:
        """Have the model say what its nodes need."""


class PackedForm:
    """``MatMulNBits`` of ONNX Runtime."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer

    def takes(self, rows: int) -> bool:
        """Any number: the last block may be cut short."""
        return rows > 0

    def tensors(self, name: str, matrix: Array) -> Iterator[TensorProto]:
        """Values, scales, zero points."""
        rows, columns = matrix.shape
        blocks = -(-rows // BLOCK_ROWS)
        whole = np.pad(matrix, ((0, blocks * BLOCK_ROWS - rows), (0, 0)))
        values = np.zeros((columns, blocks, BLOCK_ROWS * BITS // 8), np.uint8)
        scales = np.zeros((columns, blocks), np.float32)
        zeros = np.zeros((columns, -(-blocks * BITS // 8)), np.uint8)
        self._packer(values, np.ascontiguousarray(whole), scales, zeros, BLOCK_ROWS, columns, rows, False)
        for part, array in (("values", values), ("scales", scales), ("zeros", zeros)):
            yield numpy_helper.from_array(array, f"{name}_{part}")

    def product(self, name: str, size: tuple[int, int], *, left: str, result: str) -> Iterator[NodeProto]:
        """One node."""
        yield helper.make_node(
            "MatMulNBits",
            [left, *(f"{name}_{part}" for part in ("values", "scales", "zeros"))],
            [result],
            name=f"{result}_product",
            domain=MICROSOFT,
            K=size[0],
            N=size[1],
            bits=BITS,
            block_size=BLOCK_ROWS,
        )

    def complete(self, model: ModelProto) -> None:
        """Microsoft's operators."""
        if all(each.domain != MICROSOFT for each in model.opset_import):
            model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


class StandardForm:
    """``DequantizeLinear`` and ``MatMul`` of ONNX. The model has to be of STANDARD_OPSET or a later one."""

    def takes(self, rows: int) -> bool:
        """Whole blocks alone."""
        return rows % STANDARD_BLOCK_ROWS == 0

    def tensors(self, name: str, matrix: Array) -> Iterator[TensorProto]:
        """Values, scales: of each block the smallest with which its values lie within four bits."""
        rows, columns = matrix.shape
        blocks = matrix.reshape(rows // STANDARD_BLOCK_ROWS, STANDARD_BLOCK_ROWS, columns)
        scales = np.maximum(blocks.max(axis=1) / HIGHEST, blocks.min(axis=1) / LOWEST).astype(np.float32)
        scales[scales == 0] = 1  # a block of zeros: TensorRT takes no scale that is none
        values = np.clip(np.rint(blocks / scales[:, None]), LOWEST, HIGHEST).astype(np.int8)
        halves = values.reshape(-1, 2).view(np.uint8) & 15
        packed = (halves[:, 0] | halves[:, 1] << BITS).astype(np.uint8)
        yield helper.make_tensor(
            f"{name}_values", TensorProto.INT4, (rows, columns), packed.tobytes(), raw=True
        )
        yield numpy_helper.from_array(scales, f"{name}_scales")

    def product(self, name: str, size: tuple[int, int], *, left: str, result: str) -> Iterator[NodeProto]:
        """Two nodes. The weights are unpacked for each product anew: runtimes join the two where only one reads
        them."""
        unpacked = f"{result}_weights"
        yield helper.make_node(
            "DequantizeLinear",
            [f"{name}_values", f"{name}_scales"],
            [unpacked],
            name=f"{result}_unpacking",
            axis=0,
            block_size=STANDARD_BLOCK_ROWS,
        )
        yield helper.make_node("MatMul", [left, unpacked], [result], name=f"{result}_product")

    def complete(self, model: ModelProto) -> None:
        """The format of files that has integers of four bits."""
        model.ir_version = max(model.ir_version, STANDARD_IR)


class _Product(NamedTuple):
    """A node that multiplies with weights: the name of their tensor, whether it holds them transposed, what is added
    to the product ("": nothing)."""

    weights: str
    transposed: bool
    bias: str


def with_four_bits(model: ModelProto, form: Form) -> tuple[ModelProto, int]:
    """The model with weights in that form, changed in place, and of how many matrices."""
    graph = model.graph
    matrices = {
        each.name: each
        for each in graph.initializer
        if each.data_type == TensorProto.FLOAT and len(each.dims) == MATRIX and all(each.dims)
    }
    fixed = {each.name for each in graph.input}  # a default that a request may replace
    packed: set[tuple[str, bool]] = set()
    nodes: list[NodeProto] = []
    for number, node in enumerate(graph.node):
        product = _product(node)
        if product is None or product.weights not in matrices or product.weights in fixed:
            nodes.append(node)
            continue
        weights = matrices[product.weights]
        rows, columns = reversed(weights.dims) if product.transposed else weights.dims
        if not form.takes(rows):
            nodes.append(node)
            continue
        key = (product.weights, product.transposed)
        if key not in packed:
            matrix = numpy_helper.to_array(weights)
            held = form.tensors(_packed_name(key), matrix.T if product.transposed else matrix)
            graph.initializer.extend(held)
            packed.add(key)
        name = f"{node.output[0]}_four_bits_{number}"
        nodes += _nodes_for(node, product, form, (rows, columns), name)
    if packed:
        kept = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
        del graph.node[:]
        graph.node.extend(kept)
        _drop_unused(graph)
        form.complete(model)
    return model, len(packed)


def _product(node: NodeProto) -> _Product | None:
    """What the node multiplies with; None when it is no product that can be replaced."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "MatMul":
        return _Product(node.input[1], transposed=False, bias="")
    said = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    plain = said.get("alpha", 1.0) == said.get("beta", 1.0) == 1.0 and not said.get("transA", 0)
    if node.op_type != "Gemm" or not plain:
        return None
    bias = node.input[2] if len(node.input) > 2 else ""
    return _Product(node.input[1], transposed=bool(said.get("transB", 0)), bias=bias)


def _packed_name(key: tuple[str, bool]) -> str:
    name, transposed = key
    return f"{name}_four_bits{'_transposed' if transposed else ''}"


def _nodes_for(
    node: NodeProto, product: _Product, form: Form, size: tuple[int, int], between: str
) -> Iterator[NodeProto]:
    """The nodes that take the place of a product; ``between`` is what the product is called before its bias."""
    name = _packed_name((product.weights, product.transposed))
    result = between if product.bias else node.output[0]
    yield from form.product(name, size, left=node.input[0], result=result)
    if product.bias:
        yield helper.make_node("Add", [between, product.bias], [node.output[0]], name=node.name)


def _drop_unused(graph: GraphProto) -> None:
    """Weights that no node reads any more go."""
    used = {*_read_by(graph), *(each.name for each in (*graph.input, *graph.output))}
    kept = [
        TensorProto.FromString(each.SerializeToString()) for each in graph.initializer if each.name in used
    ]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _read_by(graph: GraphProto) -> Iterator[str]:
    """What nodes read, those of subgraphs included."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _read_by(inner)
                yield from (each.name for each in inner.output)
