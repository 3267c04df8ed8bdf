"""Weights of four bits: in a graph, each MatMul and Gemm with FP32 weights becomes a ``MatMulNBits``.

That operator of ONNX Runtime keeps its weights packed, in blocks along the inner dimension with a scale and a zero
point each, and computes with what they unpack to: activations stay FP32, so nothing is calibrated. What packs a matrix
is handed in. Nodes in subgraphs stay as they are, and so do products that scale or transpose their other input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

BITS: Final = 4
BLOCK_ROWS: Final = 32
MICROSOFT: Final = "com.microsoft"
MATRIX: Final = 2

Array = NDArray[Any]
Packer = Callable[[Array, Array, Array, Array, int, int, int, bool], Any]
"""Fills packed values, given the matrix, and scales and zero points: (packed, matrix, scales, zero points, rows of a
block, columns, rows, symmetric)."""


class _Product(NamedTuple):
    """A node that multiplies with weights: the name of their tensor, whether it holds them transposed, what is added
    to the product ("": nothing)."""

    weights: str
    transposed: bool
    bias: str


def with_four_bits(model: ModelProto, packer: Packer) -> tuple[ModelProto, int]:
    """The model with packed weights, changed in place, and how many matrices were packed."""
    graph = model.graph
    matrices = {
        each.name: each
        for each in graph.initializer
        if each.data_type == TensorProto.FLOAT and len(each.dims) == MATRIX and all(each.dims)
    }
    fixed = {each.name for each in graph.input}  # a default that a request may replace
    packed: dict[tuple[str, bool], tuple[int, int]] = {}
    nodes: list[NodeProto] = []
    for number, node in enumerate(graph.node):
        product = _product(node)
        if product is None or product.weights not in matrices or product.weights in fixed:
            nodes.append(node)
            continue
        key = (product.weights, product.transposed)
        if key not in packed:
            matrix = numpy_helper.to_array(matrices[product.weights])
            packed[key] = _add_packed(
                graph, _packed_name(key), matrix.T if product.transposed else matrix, packer
            )
        nodes += _nodes_for(node, product, packed[key], f"{node.output[0]}_four_bits_{number}")
    if packed:
        kept = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
        del graph.node[:]
        graph.node.extend(kept)
        _drop_unused(graph)
        _import_operators(model)
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


def _add_packed(graph: GraphProto, name: str, matrix: Array, packer: Packer) -> tuple[int, int]:
    """Put the packed matrix into the graph; gives its rows and columns."""
    rows, columns = matrix.shape
    blocks = -(-rows // BLOCK_ROWS)
    whole = np.pad(matrix, ((0, blocks * BLOCK_ROWS - rows), (0, 0)))
    values = np.zeros((columns, blocks, BLOCK_ROWS * BITS // 8), np.uint8)
    scales = np.zeros((columns, blocks), np.float32)
    zeros = np.zeros((columns, -(-blocks * BITS // 8)), np.uint8)
    packer(values, np.ascontiguousarray(whole), scales, zeros, BLOCK_ROWS, columns, rows, False)
    for part, array in (("values", values), ("scales", scales), ("zeros", zeros)):
        graph.initializer.append(numpy_helper.from_array(array, f"{name}_{part}"))
    return rows, columns


def _nodes_for(
    node: NodeProto, product: _Product, size: tuple[int, int], between: str
) -> Iterator[NodeProto]:
    """The nodes that take the place of a product; ``between`` is what the product is called before its bias."""
    name = _packed_name((product.weights, product.transposed))
    yield helper.make_node(
        "MatMulNBits",
        [node.input[0], *(f"{name}_{part}" for part in ("values", "scales", "zeros"))],
        [between if product.bias else node.output[0]],
        name=f"{node.name}_four_bits" if node.name else "",
        domain=MICROSOFT,
        K=size[0],
        N=size[1],
        bits=BITS,
        block_size=BLOCK_ROWS,
    )
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


def _import_operators(model: onnx.ModelProto) -> None:
    if all(each.domain != MICROSOFT for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
