"""Inputs of an ONNX graph that none of its nodes reads, found in the file itself: ONNX Runtime does not tell them from
those that it reads on the processor. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.domain.errors import LoadFailed
from appliance.runtimes.relayout import DEPTH_MAX, fields

_MODEL_GRAPH: Final = 7
_GRAPH_NODE, _GRAPH_OUTPUT = 1, 12
_NODE_INPUT, _NODE_ATTRIBUTE = 1, 5
_ATTRIBUTE_GRAPHS: Final = frozenset({6, 11})
_OUTPUT_NAME: Final = 1


def unread(model: bytes, names: Sequence[str]) -> tuple[str, ...]:
    """Those of ``names`` that no node reads, subgraphs included, and that are no outputs either. Raises LoadFailed for
    bytes that are no ONNX model."""
    left = {name.encode() for name in names}
    for number, _, value in fields(memoryview(model)):
        if number == _MODEL_GRAPH and value is not None:
            _strike_out(left, value, DEPTH_MAX)
    return tuple(name for name in names if name.encode() in left)


def _strike_out(left: set[bytes], graph: memoryview, depth: int) -> None:
    """Take out of ``left`` what a graph reads or gives."""
    if not depth:
        raise LoadFailed(f"the packed graph is nested deeper than {DEPTH_MAX} levels")
    for number, _, value in fields(graph):
        if number == _GRAPH_NODE and value is not None:
            _strike_out_of_node(left, value, depth)
        elif number == _GRAPH_OUTPUT and value is not None:
            left.difference_update(
                bytes(text) for key, _, text in fields(value) if key == _OUTPUT_NAME and text
            )


def _strike_out_of_node(left: set[bytes], node: memoryview, depth: int) -> None:
    for number, _, value in fields(node):
        if number == _NODE_INPUT and value is not None:
            left.discard(bytes(value))
        elif number == _NODE_ATTRIBUTE and value is not None:
            for key, _, graph in fields(value):
                if key in _ATTRIBUTE_GRAPHS and graph is not None:
                    _strike_out(left, graph, depth - 1)
