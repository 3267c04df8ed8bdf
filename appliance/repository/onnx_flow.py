"""The data flow of an ONNX file, read from the file itself: nodes with what they take and give, subgraphs, functions.

For people who look at a graph, not for judging one: ``onnx_graph`` and ``onnx_firewall`` do that, and have read the
file before. Bounded as they are, and by the number of names that are kept: what is larger is no flow, which
is told. No runtime and no onnx package is needed, weights are never read, and nothing but ArtefactError comes out
whatever the bytes are. Training graphs are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from appliance.domain.errors import ArtefactError
from appliance.repository import onnx_schema as schema
from appliance.repository.data_flow import DataFlow, FlowFunction, FlowGraph, FlowNode
from appliance.repository.firewall_settings import FirewallConfig
from appliance.repository.onnx_graph import standard
from appliance.repository.onnx_ports import PortReader
from appliance.repository.onnx_summary import GraphPort, GraphTensor, PortKind
from appliance.repository.onnx_tensor import TensorMessage
from appliance.repository.onnx_text import TextReader
from appliance.repository.protobuf_walk import FileSource, Source, Span, Walk

FIELDS_MAX: Final = 12_000_000
NAMES_MAX: Final = 4_000_000
TRAIT_BYTES_MAX: Final = 1024


def read_flow(descriptor: int, limits: FirewallConfig = FirewallConfig()) -> DataFlow:  # noqa: B008 - frozen
    """The flow of the ONNX file open at ``descriptor``, left open. ArtefactError says why there is none."""
    try:
        size = os.fstat(descriptor).st_size
        return _FlowReader(limits).flow(Span(FileSource(descriptor, size), 0, size))
    except OSError as error:
        raise ArtefactError(f"cannot be read: {error.strerror}") from error


class _FlowReader:
    """Reads one file. What is given in pieces is put together as protobuf does it."""

    def __init__(self, limits: FirewallConfig) -> None:
        self._limits = limits
        self._walk = Walk(FIELDS_MAX)
        self._texts = TextReader(limits.max_name_bytes, _told_elsewhere)
        self._ports = PortReader(self._walk, self._texts)
        self._names: dict[str, str] = {}
        self._names_left = NAMES_MAX
        self._nodes_left = limits.max_nodes

    def flow(self, span: Span) -> DataFlow:
        """ModelProto."""
        main: list[Span] = []
        functions: list[FlowFunction] = []
        for key, value, end in self._walk.fields(span):
            if key == schema.MODEL_GRAPH:
                main.append(self._walk.narrow(span.source, value, end))
            elif key == schema.MODEL_FUNCTION and len(functions) < self._limits.max_functions:
                functions.append(self._function(self._walk.narrow(span.source, value, end)))
        return DataFlow(main=self._graph(main, 1), functions=tuple(functions))

    def _name(self, source: Source, start: int, end: int) -> str:
        """A name, kept once however often it is used."""
        self._names_left -= 1
        if self._names_left < 0:
            raise ArtefactError(f"uses more than {NAMES_MAX} names")
        name = self._texts.read(source, start, end)
        return self._names.setdefault(name, name)

    def _graph(self, spans: Sequence[Span], depth: int) -> FlowGraph:
        """GraphProto."""
        if depth > self._limits.max_depth:
            raise ArtefactError(f"has graphs nested more than {self._limits.max_depth} deep")
        ports: dict[int, list[GraphPort]] = {
            key: [] for key in (schema.GRAPH_INPUT, schema.GRAPH_OUTPUT, schema.GRAPH_VALUE)
        }
        tensors: dict[str, GraphTensor] = {}
        nodes: list[FlowNode] = []
        for span in spans:
            for key, value, end in self._walk.fields(span):
                if key == schema.GRAPH_NODE:
                    nodes.append(self._node(self._walk.narrow(span.source, value, end), depth))
                elif key in (schema.GRAPH_INITIALIZER, schema.GRAPH_SPARSE_INITIALIZER):
                    part = self._walk.narrow(span.source, value, end)
                    tensor = self._tensor([part] if key == schema.GRAPH_INITIALIZER else self._values([part]))
                    tensors.setdefault(tensor.name, tensor)
                elif key in ports:
                    port = self._ports.read(self._walk.narrow(span.source, value, end), strict=False)
                    ports[key].append(port)
        inputs, outputs, values = ports.values()
        return _graph_of(inputs, outputs, values, nodes, tensors)

    def _function(self, span: Span) -> FlowFunction:
        """FunctionProto."""
        key = ["", "", ""]
        inputs: list[str] = []
        outputs: list[str] = []
        nodes: list[FlowNode] = []
        values: list[GraphPort] = []
        for field, value, end in self._walk.fields(span):
            if field == schema.FUNCTION_NODE:
                nodes.append(self._node(self._walk.narrow(span.source, value, end), 1))
            elif field in (schema.FUNCTION_INPUT, schema.FUNCTION_OUTPUT):
                side = inputs if field == schema.FUNCTION_INPUT else outputs
                side.append(self._name(span.source, value, end))
            elif field == schema.FUNCTION_VALUE:
                values.append(self._ports.read(self._walk.narrow(span.source, value, end), strict=False))
            elif field in (schema.FUNCTION_DOMAIN, schema.FUNCTION_NAME, schema.FUNCTION_OVERLOAD):
                place = (schema.FUNCTION_DOMAIN, schema.FUNCTION_NAME, schema.FUNCTION_OVERLOAD).index(field)
                key[place] = self._name(span.source, value, end)
        graph = _graph_of(map(_untyped, inputs), map(_untyped, outputs), values, nodes, {})
        return FlowFunction(key=(standard(key[0]), key[1], key[2]), graph=graph)

    def _node(self, span: Span, depth: int) -> FlowNode:
        """NodeProto."""
        self._nodes_left -= 1
        if self._nodes_left < 0:
            raise ArtefactError(
                f"has more than {self._limits.max_nodes} nodes (repository.firewall.max_nodes)"
            )
        takes: list[str] = []
        gives: list[str] = []
        words = {
            schema.NODE_NAME: "",
            schema.NODE_OPERATOR: "",
            schema.NODE_DOMAIN: "",
            schema.NODE_OVERLOAD: "",
        }
        inside = _Inside()
        for key, value, end in self._walk.fields(span):
            if key == schema.NODE_INPUT:
                takes.append(self._name(span.source, value, end))
            elif key == schema.NODE_OUTPUT:
                gives.append(self._name(span.source, value, end))
            elif key in words:
                words[key] = self._name(span.source, value, end)
            elif key == schema.NODE_ATTRIBUTE:
                self._attribute(self._walk.narrow(span.source, value, end), depth, inside)
        return FlowNode(
            name=words[schema.NODE_NAME],
            operator=(standard(words[schema.NODE_DOMAIN]), words[schema.NODE_OPERATOR]),
            overload=words[schema.NODE_OVERLOAD],
            takes=tuple(takes),
            gives=tuple(gives),
            graphs=tuple(inside.graphs),
            captured=tuple(dict.fromkeys(name for _, graph in inside.graphs for name in graph.captured)),
            tensors=tuple(inside.tensors),
            traits=tuple(inside.traits),
        )

    def _attribute(self, span: Span, depth: int, inside: _Inside) -> None:
        """AttributeProto, added to what is ``inside`` the node. The graph and the tensor may come in pieces."""
        name = ""
        parts: dict[int, list[Span]] = {}
        for key, value, end in self._walk.fields(span, bulk=True):
            if key in schema.ATTRIBUTE_PARTS:
                parts.setdefault(key, []).append(self._walk.narrow(span.source, value, end))
            elif key == schema.ATTRIBUTE_NAME:
                name = self._name(span.source, value, end)
        for key, spans in parts.items():
            if key == schema.ATTRIBUTE_GRAPH:
                inside.graphs.append((name, self._graph(spans, depth + 1)))
            elif key == schema.ATTRIBUTE_GRAPHS:
                inside.graphs += [(name, self._graph([each], depth + 1)) for each in spans]
            elif key == schema.ATTRIBUTE_TENSOR:
                inside.tensors.append(self._tensor(spans))
            elif key == schema.ATTRIBUTE_TENSORS:
                inside.tensors += [self._tensor([each]) for each in spans]
            elif key == schema.ATTRIBUTE_SPARSE:
                inside.tensors.append(self._tensor(self._values(spans)))
            else:
                inside.tensors += [self._tensor(self._values([each])) for each in spans]
        if not parts and span.end - span.start <= TRAIT_BYTES_MAX:
            inside.traits.append(span.read())

    def _values(self, spans: Sequence[Span]) -> list[Span]:
        """SparseTensorProto: the tensor of its values, by whose name it goes."""
        return [
            self._walk.narrow(span.source, value, end)
            for span in spans
            for key, value, end in self._walk.fields(span, bulk=True)
            if key == schema.SPARSE_VALUES
        ]

    def _tensor(self, spans: Sequence[Span]) -> GraphTensor:
        """TensorProto, in pieces that count as one."""
        return TensorMessage(self._walk, self._texts, spans, _told_elsewhere).tensor()


class _Inside:
    """What stands in a node's attributes."""

    def __init__(self) -> None:
        self.graphs: list[tuple[str, FlowGraph]] = []
        self.tensors: list[GraphTensor] = []
        self.traits: list[bytes] = []


def _told_elsewhere(text: str) -> None:
    """What is wrong is ``onnx_graph``'s to tell."""


def _untyped(name: str) -> GraphPort:
    return GraphPort(name=name, kind=PortKind.NOTHING, element_type=0, dims=None)


def _graph_of(
    inputs: Iterable[GraphPort],
    outputs: Iterable[GraphPort],
    values: Iterable[GraphPort],
    nodes: Sequence[FlowNode],
    tensors: Mapping[str, GraphTensor],
) -> FlowGraph:
    kept = tuple(port for port in inputs if port.name not in tensors)
    given = tuple(outputs)
    made = {name for node in nodes for name in node.gives}
    made.update(tensors, (port.name for port in kept), ("",))
    used = [name for node in nodes for name in (*node.takes, *node.captured)]
    used += [port.name for port in given]
    return FlowGraph(
        inputs=kept,
        outputs=given,
        nodes=tuple(nodes),
        tensors=tensors,
        values={port.name: port for port in (*values, *given, *kept)},
        captured=tuple(name for name in dict.fromkeys(used) if name not in made),
    )
