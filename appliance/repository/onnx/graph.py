"""What an ONNX file promises, read from the file itself: its inputs and outputs, operators, tensors and outside
references.

Rules kept here: no runtime and no onnx package is needed, weights are never read, nesting, the number of fields and
the bytes of names are bounded, and nothing but ArtefactError comes out whatever the bytes are. A tensor's data may lie
in another file, and a tensor may stand in many places (initializers, sparse ones, attributes, subgraphs, functions,
training graphs): all of them are visited in one walk, so that no path outside the model's directory stays unseen. A
field given several times is merged the way protobuf does it, so that this reading and the runtime's agree. What is
wrong is collected with its place in the graph; ``firewall`` says what is allowed. Whether the graph computes
anything sensible is the runtime's business.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from appliance.domain.errors import ArtefactError
from appliance.repository.onnx.firewall import GraphLimits
from appliance.repository.onnx.foreign import HEAD_BYTES, foreign_format
from appliance.repository.onnx.messages import PortReader, SparseMessage, TensorMessage
from appliance.repository.onnx.protobuf import (
    INLINE_BYTES,
    FileSource,
    Malformed,
    MemorySource,
    Source,
    Span,
    TextReader,
    Walk,
    length_key,
    signed,
    varint_key,
)
from appliance.repository.onnx.summary import (
    SHOWN_NAME_CHARACTERS,
    GraphFunction,
    GraphSummary,
    OperatorKey,
    Step,
    Trail,
    standard,
)

FIELDS_MAX: Final = 4_000_000
OPSETS_MAX: Final = 1_000
OPSETS_IN_ALL_MAX: Final = 100_000
ATTRIBUTES_MAX: Final = 4_096

_MODEL_IR_VERSION: Final = varint_key(1)
_MODEL_GRAPH: Final = length_key(7)
_MODEL_OPSET: Final = length_key(8)
_MODEL_TRAINING: Final = length_key(20)
_MODEL_FUNCTION: Final = length_key(25)
_OPSET_DOMAIN: Final = length_key(1)
_OPSET_VERSION: Final = varint_key(2)
_TRAINING_PARTS: Final = MappingProxyType({length_key(1): "initialization", length_key(2): "algorithm"})
_FUNCTION_NAME: Final = length_key(1)
_FUNCTION_NODE: Final = length_key(7)
_FUNCTION_OPSET: Final = length_key(9)
_FUNCTION_DOMAIN: Final = length_key(10)
_FUNCTION_ATTRIBUTE: Final = length_key(11)
_FUNCTION_OVERLOAD: Final = length_key(13)
_GRAPH_NODE: Final = length_key(1)
_GRAPH_INITIALIZER: Final = length_key(5)
_GRAPH_INPUT: Final = length_key(11)
_GRAPH_OUTPUT: Final = length_key(12)
_GRAPH_SPARSE_INITIALIZER: Final = length_key(15)
_NODE_NAME: Final = length_key(3)
_NODE_OPERATOR: Final = length_key(4)
_NODE_ATTRIBUTE: Final = length_key(5)
_NODE_DOMAIN: Final = length_key(7)
_NODE_OVERLOAD: Final = length_key(8)
_ATTRIBUTE_NAME: Final = length_key(1)
_ATTRIBUTE_TENSOR: Final = length_key(5)
_ATTRIBUTE_GRAPH: Final = length_key(6)
_ATTRIBUTE_TENSORS: Final = length_key(10)
_ATTRIBUTE_GRAPHS: Final = length_key(11)
_ATTRIBUTE_SPARSE: Final = length_key(22)
_ATTRIBUTE_SPARSES: Final = length_key(23)
_ATTRIBUTE_PARTS: Final = frozenset(
    {
        _ATTRIBUTE_TENSOR,
        _ATTRIBUTE_GRAPH,
        _ATTRIBUTE_TENSORS,
        _ATTRIBUTE_GRAPHS,
        _ATTRIBUTE_SPARSE,
        _ATTRIBUTE_SPARSES,
    }
)


_Part = tuple[int, Span]
"""A message inside another one, by the key of its field; not read yet."""


def read_graph(descriptor: int, limits: GraphLimits = GraphLimits()) -> GraphSummary:  # noqa: B008 - frozen
    """The summary of the ONNX file open at ``descriptor``, left open. ArtefactError says what is wrong when it cannot
    be read; what is wrong in a graph that can be is in ``flaws``."""
    begun = False
    try:
        size = os.fstat(descriptor).st_size
        source: Source = FileSource(descriptor, size)
        if size <= INLINE_BYTES:
            source = MemorySource(source.read(0, size))
        check_head(source.read(0, min(size, HEAD_BYTES)))
        if size > limits.max_graph_bytes:
            raise ArtefactError(f"has {size} bytes; at most {limits.max_graph_bytes} are read")
        reader = _ModelReader(limits)
        try:
            reader.model(Span(source, 0, size))
        finally:
            begun = reader.begun
        return reader.summary(size)
    except Malformed as error:
        what = "is a damaged or truncated ONNX model" if begun else "is not an ONNX model"
        raise ArtefactError(f"{what}: {error}") from error
    except OSError as error:
        raise ArtefactError(f"cannot be read: {error.strerror}") from error


def check_head(head: bytes) -> None:
    """Raise ArtefactError for things often put where a model should be."""
    if not head:
        raise ArtefactError("is empty; an ONNX model is expected")
    if foreign := foreign_format(head):
        raise ArtefactError(f"is {foreign}")


class _ModelReader:
    """Collects while it walks. The keys are named after the messages and fields of onnx.proto."""

    def __init__(self, limits: GraphLimits) -> None:
        self.begun = False
        self._limits = limits
        self._walk = Walk(FIELDS_MAX)
        self._findings = Trail()
        self._trail = self._findings.steps
        self._flaw = self._findings.report
        self._texts = TextReader(limits.max_name_bytes, self._flaw)
        self._ports = PortReader(self._walk, self._texts)
        self._graphs = 0
        self._seen = GraphSummary()

    def summary(self, size: int) -> GraphSummary:
        """What was collected; raises ArtefactError when it is not a model with outputs."""
        if not self._graphs:
            raise ArtefactError("is not an ONNX model: it holds no graph")
        if not self._seen.outputs:
            raise ArtefactError("has a graph without outputs; nothing can be asked of it")
        self._seen.file_bytes, self._seen.flaws = size, self._findings.flaws
        return self._seen

    def model(self, span: Span) -> None:
        """ModelProto."""
        trainings = 0
        for key, value, end in self._walk.fields(span):
            if key == _MODEL_IR_VERSION:
                self._seen.ir_version = signed(value)
                self.begun = True
            elif key == _MODEL_GRAPH:
                self._graphs += 1
                self.begun = True
                self._at(Step("graph"), self._main, self._walk.narrow(span.source, value, end))
            elif key == _MODEL_OPSET:
                self._opset(self._walk.narrow(span.source, value, end), self._seen.opsets)
            elif key == _MODEL_TRAINING:
                step = Step("training", trainings)
                trainings += 1
                if trainings > self._limits.max_functions:
                    raise ArtefactError(f"has more than {self._limits.max_functions} training graphs")
                self._at(step, self._training, self._walk.narrow(span.source, value, end))
            elif key == _MODEL_FUNCTION:
                self._function(self._walk.narrow(span.source, value, end))

    @staticmethod
    def _room(parts: Sequence[object], limit: int, what: str) -> None:
        """Raise ArtefactError when another one would be too many to remember."""
        if len(parts) >= limit:
            raise ArtefactError(f"has more than {limit} {what}")

    def _at(self, step: Step, read: Callable[[Span], object], span: Span) -> None:
        """Read what is one step further in."""
        self._trail.append(step)
        read(span)
        self._trail.pop()

    def _opset(self, span: Span, opsets: list[tuple[str, int]]) -> None:
        domain, version = "", 0
        for key, value, end in self._walk.fields(span):
            if key == _OPSET_DOMAIN:
                domain = self._texts.read(span.source, value, end)
            elif key == _OPSET_VERSION:
                version = signed(value)
        self._seen.opset_count += 1
        if len(opsets) >= OPSETS_MAX:
            self._flaw(f"has more than {OPSETS_MAX} operator sets")
        elif self._seen.opset_count > OPSETS_IN_ALL_MAX:
            self._flaw(f"has more than {OPSETS_IN_ALL_MAX} operator sets in all")
        else:
            opsets.append((domain, version))

    def _training(self, span: Span) -> None:
        for key, value, end in self._walk.fields(span):
            if key in _TRAINING_PARTS:
                step = Step(_TRAINING_PARTS[key])
                self._at(step, lambda part: self._graph(part, 1), self._walk.narrow(span.source, value, end))

    def _function(self, span: Span) -> None:
        """FunctionProto: its name stands behind its nodes."""
        key = ["", "", ""]
        opsets: list[tuple[str, int]] = []
        parts: list[_Part] = []
        for field, value, end in self._walk.fields(span):
            if field in (_FUNCTION_NODE, _FUNCTION_ATTRIBUTE):
                self._room(parts, self._limits.max_nodes, "nodes in one function")
                parts.append((field, Span(span.source, value, end)))
            elif field in (_FUNCTION_DOMAIN, _FUNCTION_NAME, _FUNCTION_OVERLOAD):
                place = (_FUNCTION_DOMAIN, _FUNCTION_NAME, _FUNCTION_OVERLOAD).index(field)
                key[place] = self._texts.read(span.source, value, end)
            elif field == _FUNCTION_OPSET:
                self._opset(self._walk.narrow(span.source, value, end), opsets)
        self._seen.function_count += 1
        before, outer, self._seen.calls = self._seen.nodes, self._seen.calls, Counter()
        tensors_before = len(self._seen.tensors)
        self._trail.append(Step("function", name=":".join(filter(None, key))))
        for index, (field, part) in enumerate(parts):
            inner = self._walk.narrow(*part)
            if field == _FUNCTION_NODE:
                self._node(inner, 1, index)
            else:
                self._attribute(inner, 1)
        self._trail.pop()
        if len(self._seen.functions) < self._limits.max_functions:
            self._seen.functions.append(
                GraphFunction(
                    key=(standard(key[0]), key[1], key[2]),
                    nodes=self._seen.nodes - before,
                    calls=dict(self._seen.calls),
                    tensors=tuple(self._seen.tensors[tensors_before:]),
                    opsets=tuple(opsets),
                )
            )
        self._seen.calls = outer

    def _main(self, span: Span) -> None:
        self._graph(span, 1, main=True)

    def _graph(self, span: Span, depth: int, *, main: bool = False) -> None:
        """GraphProto: nodes, tensors, and of the ``main`` graph also inputs, outputs, initializer names."""
        if depth > self._limits.max_depth:
            raise ArtefactError(f"has graphs nested more than {self._limits.max_depth} deep")
        self._seen.depth = max(self._seen.depth, depth)
        nodes = tensors = 0
        for key, value, end in self._walk.fields(span):
            if key == _GRAPH_NODE:
                self._node(self._walk.narrow(span.source, value, end), depth, nodes)
                nodes += 1
            elif key in (_GRAPH_INITIALIZER, _GRAPH_SPARSE_INITIALIZER):
                part = self._walk.narrow(span.source, value, end)
                self._trail.append(Step("initializer", tensors))
                tensors += 1
                name = self._tensor((part,)) if key == _GRAPH_INITIALIZER else self._sparse((part,))
                self._trail.pop()
                if main and len(self._seen.initializers) <= self._limits.max_tensors:
                    self._seen.initializers.add(name)
            elif main and key in (_GRAPH_INPUT, _GRAPH_OUTPUT):
                self._port(self._walk.narrow(span.source, value, end), key == _GRAPH_INPUT)

    def _port(self, span: Span, is_input: bool) -> None:
        side = self._seen.inputs if is_input else self._seen.outputs
        if len(side) >= self._limits.max_ports:
            what = "inputs" if is_input else "outputs"
            raise ArtefactError(f"has more than {self._limits.max_ports} {what}")
        side.append(self._ports.read(span))

    def _node(self, span: Span, depth: int, index: int) -> None:
        """NodeProto: what it is called is read first, for the way to its attributes."""
        domain = operator = overload = name = ""
        attributes: list[Span] = []
        for key, value, end in self._walk.fields(span):
            if key == _NODE_OPERATOR:
                operator = self._texts.read(span.source, value, end)
            elif key == _NODE_NAME:
                name = self._texts.read(span.source, value, end)
            elif key == _NODE_DOMAIN:
                domain = standard(self._texts.read(span.source, value, end))
            elif key == _NODE_OVERLOAD:
                overload = self._texts.read(span.source, value, end)
            elif key == _NODE_ATTRIBUTE:
                self._room(attributes, ATTRIBUTES_MAX, "attributes of one node")
                attributes.append(Span(span.source, value, end))
        self._trail.append(Step("node", index, name, operator))
        self._count((domain, operator), overload)
        for part in attributes:
            self._attribute(self._walk.narrow(*part), depth)
        self._trail.pop()

    def _count(self, operator: OperatorKey, overload: str) -> None:
        self._seen.nodes += 1
        if self._seen.nodes > self._limits.max_nodes:
            raise ArtefactError(
                f"has more than {self._limits.max_nodes} nodes (repository.firewall.max_nodes)"
            )
        if operator not in self._seen.operators:
            if len(self._seen.operators) > self._limits.max_operators:
                return
            self._seen.places[operator] = self._findings.where()
        self._seen.operators[operator] += 1
        call = (*operator, overload)
        if call not in self._seen.calls and len(self._seen.calls) >= self._limits.max_operators:
            if len(self._seen.operators) > self._limits.max_operators:
                return  # refused for these, which says more
            raise ArtefactError(f"has more than {self._limits.max_operators} overloads of its operators")
        self._seen.calls[call] += 1

    def _attribute(self, span: Span, depth: int) -> None:
        """AttributeProto. A tensor and a sparse tensor may be given in pieces; in lists each is one."""
        name = ""
        parts: list[_Part] = []
        for key, value, end in self._walk.fields(span, bulk=True):
            if key in _ATTRIBUTE_PARTS:
                self._room(parts, self._limits.max_tensors, "tensors and graphs in one attribute")
                parts.append((key, Span(span.source, value, end)))
            elif key == _ATTRIBUTE_NAME:
                name = self._texts.read(span.source, value, end)
        if not parts:
            return
        self._trail.append(Step("attribute", name=name))
        whole: dict[int, list[Span]] = {}
        for key, part in parts:
            inner = self._walk.narrow(*part)
            if key == _ATTRIBUTE_TENSORS:
                self._tensor((inner,))
            elif key == _ATTRIBUTE_SPARSES:
                self._sparse((inner,))
            elif key in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_SPARSE):
                whole.setdefault(key, []).append(inner)
            else:
                self._graph(inner, depth + 1)
        for key, spans in whole.items():
            if key == _ATTRIBUTE_TENSOR:
                self._tensor(spans)
            else:
                self._sparse(spans)
        self._trail.pop()

    def _sparse(self, spans: Sequence[Span]) -> str:
        """SparseTensorProto, in pieces that count as one; gives the name of its values."""
        message = SparseMessage(self._walk, spans)
        self._trail.append(Step("sparse indices"))
        self._tensor(message.indices)
        self._trail[-1] = Step("sparse values")
        name = self._tensor(message.values, message.dims)
        self._trail.pop()
        flaw = message.flaw()
        if flaw:
            self._flaw(f"tensor '{name[:SHOWN_NAME_CHARACTERS]}' {flaw}")
        return name

    def _tensor(self, spans: Sequence[Span], dense_dims: Sequence[int] | None = None) -> str:
        """TensorProto, in pieces that count as one; gives its name. No pieces: there is none. ``dense_dims``: it holds
        the values of a sparse tensor."""
        if not spans:
            return ""
        reports: list[str] = []
        message = TensorMessage(self._walk, self._texts, spans, reports.append)
        reference = message.reference(self._findings.where() if message.outside else "")
        for report in reports:
            self._flaw(f"tensor '{message.name[:SHOWN_NAME_CHARACTERS]}' {report}")
        if len(self._seen.tensors) >= self._limits.max_tensors:
            raise ArtefactError(
                f"has more than {self._limits.max_tensors} tensors (repository.firewall.max_tensors)"
            )
        self._seen.tensors.append(message.tensor(dense_dims))
        if reference is not None:
            self._seen.external.append(reference)
        return message.name
