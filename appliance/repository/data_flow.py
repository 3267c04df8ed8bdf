"""The data flow of a graph: nodes, what they take and give, and the graphs inside them; values only.

Names are as the file has them, and say nothing about each other: what a node takes may be made later, by itself, or by
nobody. Who shows a flow says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.repository.onnx_summary import FunctionKey, GraphPort, GraphTensor, OperatorKey

CONSTANT: OperatorKey = ("", "Constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    """A node. ``takes`` and ``gives`` are names of values in their places, "" where one is left out. ``graphs`` are
    those in its attributes, by the attributes' names; ``captured`` are names that they use from around the node.
    ``tensors`` stand in its attributes. ``traits`` are its other attributes as they are written, as far as they are
    short: equal ones are equal."""

    name: str
    operator: OperatorKey
    overload: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    graphs: tuple[tuple[str, FlowGraph], ...] = ()
    captured: tuple[str, ...] = ()
    tensors: tuple[GraphTensor, ...] = ()
    traits: tuple[bytes, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether it only gives numbers that are in the file."""
        return self.operator == CONSTANT and not self.takes and not self.graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGraph:
    """A graph. ``inputs`` are without those that have a tensor in ``tensors``, which is their default. ``values`` say
    of which types the values between nodes are, where the file says that. ``captured`` are names that it uses and does
    not make, in the order of their first use."""

    inputs: tuple[GraphPort, ...]
    outputs: tuple[GraphPort, ...]
    nodes: tuple[FlowNode, ...]
    tensors: Mapping[str, GraphTensor]
    values: Mapping[str, GraphPort]
    captured: tuple[str, ...] = ()

    def port(self, name: str) -> GraphPort | None:
        """What the file says of the value ``name``."""
        return self.values.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFunction:
    """A function that the model brings along."""

    key: FunctionKey
    graph: FlowGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlow:
    """The graph that is served, and the functions that it may call."""

    main: FlowGraph
    functions: tuple[FlowFunction, ...] = ()


def tensor_bytes(tensor: GraphTensor) -> int:
    """Bytes of a tensor, wherever they lie."""
    needed = tensor.data_bytes
    return tensor.inline_bytes if needed is None else needed
