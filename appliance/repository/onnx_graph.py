"""What an ONNX file promises, read from the file itself: its inputs and outputs, operators and outside
references.

Rules kept here: no runtime and no onnx package is needed, weights are never read, nesting and the number of
fields are bounded, and nothing but ArtefactError comes out whatever the bytes are. A tensor's data may lie in
another file, and a tensor may stand in many places (initializers, sparse ones, attributes, subgraphs,
functions, training graphs): all of them are visited, so that no path outside the model's directory stays
unseen. A field given several times is merged the way protobuf does it, so that this reading and the runtime's
agree. Whether the graph computes anything sensible is the runtime's business.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from appliance.errors import ArtefactError
from appliance.repository.protobuf_walk import (
    INLINE_BYTES,
    FileSource,
    Malformed,
    MemorySource,
    Source,
    Span,
    Walk,
    length_key,
    varint_key,
)

FIELDS_MAX: Final = 4_000_000
GRAPH_DEPTH_MAX: Final = 32
EXTERNAL: Final = 1
INT64_SIGN: Final = 1 << 63

_LFS_POINTER: Final = b"version https://git-lfs"
_ORT_FORMAT: Final = b"ORTM"


_MODEL_IR_VERSION: Final = varint_key(1)
_MODEL_GRAPH: Final = length_key(7)
_MODEL_OPSET: Final = length_key(8)
_MODEL_TRAINING: Final = length_key(20)
_MODEL_FUNCTION: Final = length_key(25)
_OPSET_DOMAIN: Final = length_key(1)
_OPSET_VERSION: Final = varint_key(2)
_TRAINING_GRAPHS: Final = (length_key(1), length_key(2))
_FUNCTION_NODE: Final = length_key(7)
_FUNCTION_ATTRIBUTE: Final = length_key(11)
_GRAPH_NODE: Final = length_key(1)
_GRAPH_INITIALIZER: Final = length_key(5)
_GRAPH_INPUT: Final = length_key(11)
_GRAPH_OUTPUT: Final = length_key(12)
_GRAPH_SPARSE_INITIALIZER: Final = length_key(15)
_NODE_OPERATOR: Final = length_key(4)
_NODE_ATTRIBUTE: Final = length_key(5)
_NODE_DOMAIN: Final = length_key(7)
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
_SPARSE_VALUES: Final = length_key(1)
_SPARSE_INDICES: Final = length_key(2)
_TENSOR_NAME: Final = length_key(8)
_TENSOR_EXTERNAL_DATA: Final = length_key(13)
_TENSOR_DATA_LOCATION: Final = varint_key(14)
_ENTRY_KEY: Final = length_key(1)
_ENTRY_VALUE: Final = length_key(2)
_VALUE_NAME: Final = length_key(1)
_VALUE_TYPE: Final = length_key(2)
_TENSOR_TYPE_ELEMENT: Final = varint_key(1)
_TENSOR_TYPE_SHAPE: Final = length_key(2)
_SHAPE_DIMENSION: Final = length_key(1)
_DIMENSION_SIZE: Final = varint_key(1)
_DIMENSION_SYMBOL: Final = length_key(2)


class PortKind(Enum):
    """What stands at an input or output; TypeProto's field number of it."""

    NOTHING = 0
    TENSOR = 1
    SEQUENCE = 4
    MAP = 5
    OPAQUE = 7
    SPARSE_TENSOR = 8
    OPTIONAL = 9


_TYPE_KINDS: Final = MappingProxyType({length_key(kind.value): kind for kind in PortKind if kind.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPort:
    """A graph input or output. ``element_type`` is ONNX's number (0: not said). ``dims`` is None when the
    graph does not say the rank; a dimension is a number, a symbol, or None when nothing is known of it."""

    name: str
    kind: PortKind
    element_type: int
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalData:
    """Where a tensor says its bytes are: a path relative to the model file, and a piece of it. ``length``
    None: as many bytes as the tensor's shape needs."""

    tensor: str
    location: str
    offset: int
    length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """An ONNX file without its weights. ``opsets`` are (domain, version), ``operators`` (domain, type); "" is
    the standard domain. An input named in ``initializers`` has a default."""

    ir_version: int
    opsets: tuple[tuple[str, int], ...]
    inputs: tuple[GraphPort, ...]
    outputs: tuple[GraphPort, ...]
    initializers: frozenset[str]
    operators: frozenset[tuple[str, str]]
    external: tuple[ExternalData, ...]


def read_graph(descriptor: int) -> GraphSummary:
    """The summary of the ONNX file open at ``descriptor``, left open. ArtefactError says what is wrong."""
    reader = _ModelReader()
    try:
        size = os.fstat(descriptor).st_size
        source: Source = FileSource(descriptor, size)
        if size <= INLINE_BYTES:
            source = MemorySource(source.read(0, size))
        _check_head(source.read(0, min(size, 64)))
        reader.model(Span(source, 0, size))
    except Malformed as error:
        what = "is a damaged or truncated ONNX model" if reader.begun else "is not an ONNX model"
        raise ArtefactError(f"{what}: {error}") from error
    except OSError as error:
        raise ArtefactError(f"cannot be read: {error.strerror}") from error
    return reader.summary()


def _check_head(head: bytes) -> None:
    """Things often put where a model should be."""
    if not head:
        raise ArtefactError("is empty; an ONNX model is expected")
    if head.startswith(_LFS_POINTER):
        raise ArtefactError(
            "is a Git LFS pointer and not the model itself; run 'git lfs pull' where it came from"
        )
    if head[4:8] == _ORT_FORMAT:
        raise ArtefactError("is in ORT format; give the ONNX model it was made from")


class _ModelReader:
    """Collects while it walks. The keys are named after the messages and fields of onnx.proto."""

    def __init__(self) -> None:
        self.begun = False
        self._walk = Walk(FIELDS_MAX)
        self._graphs = 0
        self._ir_version = 0
        self._opsets: list[tuple[str, int]] = []
        self._inputs: list[GraphPort] = []
        self._outputs: list[GraphPort] = []
        self._initializers: set[str] = set()
        self._operators: set[tuple[str, str]] = set()
        self._external: list[ExternalData] = []

    def summary(self) -> GraphSummary:
        """What was collected; raises ArtefactError when it is not a model with outputs."""
        if not self._graphs:
            raise ArtefactError("is not an ONNX model: it holds no graph")
        if not self._outputs:
            raise ArtefactError("has a graph without outputs; nothing can be asked of it")
        return GraphSummary(
            ir_version=self._ir_version,
            opsets=tuple(self._opsets),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            initializers=frozenset(self._initializers),
            operators=frozenset(self._operators),
            external=tuple(self._external),
        )

    def model(self, span: Span) -> None:
        """ModelProto."""
        for key, value, end in self._walk.fields(span):
            if key == _MODEL_IR_VERSION:
                self._ir_version = _signed(value)
                self.begun = True
            elif key == _MODEL_GRAPH:
                self._graphs += 1
                self.begun = True
                self._graph(self._walk.narrow(span.source, value, end), 1, main=True)
            elif key == _MODEL_OPSET:
                self._opset(self._walk.narrow(span.source, value, end))
            elif key == _MODEL_TRAINING:
                self._training(self._walk.narrow(span.source, value, end))
            elif key == _MODEL_FUNCTION:
                self._function(self._walk.narrow(span.source, value, end))

    def _opset(self, span: Span) -> None:
        domain, version = "", 0
        for key, value, end in self._walk.fields(span):
            if key == _OPSET_DOMAIN:
                domain = _text(span.source, value, end)
            elif key == _OPSET_VERSION:
                version = _signed(value)
        self._opsets.append((domain, version))

    def _training(self, span: Span) -> None:
        for key, value, end in self._walk.fields(span):
            if key in _TRAINING_GRAPHS:
                self._graph(self._walk.narrow(span.source, value, end), 1)

    def _function(self, span: Span) -> None:
        for key, value, end in self._walk.fields(span):
            if key == _FUNCTION_NODE:
                self._node(self._walk.narrow(span.source, value, end), 1)
            elif key == _FUNCTION_ATTRIBUTE:
                self._attribute(self._walk.narrow(span.source, value, end), 1)

    def _graph(self, span: Span, depth: int, *, main: bool = False) -> None:
        """GraphProto: nodes, tensors, and of the ``main`` graph also inputs, outputs, initializer names."""
        if depth > GRAPH_DEPTH_MAX:
            raise ArtefactError(f"has graphs nested more than {GRAPH_DEPTH_MAX} deep")
        for key, value, end in self._walk.fields(span):
            if key == _GRAPH_NODE:
                self._node(self._walk.narrow(span.source, value, end), depth)
            elif key in (_GRAPH_INITIALIZER, _GRAPH_SPARSE_INITIALIZER):
                part = self._walk.narrow(span.source, value, end)
                name = self._tensor((part,)) if key == _GRAPH_INITIALIZER else self._sparse((part,))
                if main:
                    self._initializers.add(name)
            elif main and key == _GRAPH_INPUT:
                self._inputs.append(self._port(self._walk.narrow(span.source, value, end)))
            elif main and key == _GRAPH_OUTPUT:
                self._outputs.append(self._port(self._walk.narrow(span.source, value, end)))

    def _node(self, span: Span, depth: int) -> None:
        domain = operator = ""
        for key, value, end in self._walk.fields(span):
            if key == _NODE_OPERATOR:
                operator = _text(span.source, value, end)
            elif key == _NODE_DOMAIN:
                domain = _text(span.source, value, end)
            elif key == _NODE_ATTRIBUTE:
                self._attribute(self._walk.narrow(span.source, value, end), depth)
        self._operators.add((domain, operator))

    def _attribute(self, span: Span, depth: int) -> None:
        tensor: list[Span] = []
        sparse: list[Span] = []
        for key, value, end in self._walk.fields(span, bulk=True):
            if key not in _ATTRIBUTE_PARTS:
                continue
            part = self._walk.narrow(span.source, value, end)
            if key == _ATTRIBUTE_TENSOR:
                tensor.append(part)
            elif key == _ATTRIBUTE_SPARSE:
                sparse.append(part)
            elif key == _ATTRIBUTE_TENSORS:
                self._tensor((part,))
            elif key == _ATTRIBUTE_SPARSES:
                self._sparse((part,))
            else:
                self._graph(part, depth + 1)
        if tensor:
            self._tensor(tensor)
        if sparse:
            self._sparse(sparse)

    def _sparse(self, spans: Sequence[Span]) -> str:
        """SparseTensorProto, in pieces that count as one; gives the name of its values."""
        values: list[Span] = []
        indices: list[Span] = []
        for span in spans:
            for key, value, end in self._walk.fields(span, bulk=True):
                if key == _SPARSE_VALUES:
                    values.append(self._walk.narrow(span.source, value, end))
                elif key == _SPARSE_INDICES:
                    indices.append(self._walk.narrow(span.source, value, end))
        self._tensor(indices)
        return self._tensor(values)

    def _tensor(self, spans: Sequence[Span]) -> str:
        """TensorProto, in pieces that count as one; gives its name."""
        name, outside = "", False
        entries: list[tuple[str, str]] = []
        for span in spans:
            for key, value, end in self._walk.fields(span, bulk=True):
                if key == _TENSOR_NAME:
                    name = _text(span.source, value, end)
                elif key == _TENSOR_EXTERNAL_DATA:
                    entries.append(self._entry(self._walk.narrow(span.source, value, end)))
                elif key == _TENSOR_DATA_LOCATION:
                    # Said once is enough: readers differ in what a second, unknown value does to the first.
                    outside = outside or value & 0xFFFFFFFF == EXTERNAL
        if outside:
            self._external.append(_external_data(name, entries))
        return name

    def _entry(self, span: Span) -> tuple[str, str]:
        """StringStringEntryProto; bytes that are not UTF-8 stay what they are, as in a file name."""
        name = text = ""
        for key, value, end in self._walk.fields(span):
            if key == _ENTRY_KEY:
                name = _text(span.source, value, end)
            elif key == _ENTRY_VALUE:
                text = os.fsdecode(span.source.read(value, end))
        return name, text

    def _port(self, span: Span) -> GraphPort:
        """ValueInfoProto."""
        name, types = b"", b""
        for key, value, end in self._walk.fields(span):
            if key == _VALUE_NAME:
                name = span.source.read(value, end)
            elif key == _VALUE_TYPE:
                types += span.source.read(value, end)  # joined pieces parse as one message
        kind, element_type, dims = self._type(types)
        try:
            return GraphPort(name=name.decode(), kind=kind, element_type=element_type, dims=dims)
        except UnicodeDecodeError:
            raise ArtefactError(f"has an input or output whose name is not UTF-8: {name!r}") from None

    def _type(self, data: bytes) -> tuple[PortKind, int, tuple[int | str | None, ...] | None]:
        """TypeProto: (kind, element type, dimensions); of its alternatives the last one given counts."""
        kind, body = PortKind.NOTHING, b""
        for key, value, end in self._walk.fields(_span(data)):
            found = _TYPE_KINDS.get(key)
            if found is not None:
                kind, body = found, body + data[value:end] if found is kind else data[value:end]
        if kind not in (PortKind.TENSOR, PortKind.SPARSE_TENSOR):
            return kind, 0, None
        element_type, shape = 0, None
        for key, value, end in self._walk.fields(_span(body)):
            if key == _TENSOR_TYPE_ELEMENT:
                element_type = value & 0xFFFFFFFF
            elif key == _TENSOR_TYPE_SHAPE:
                shape = (shape or b"") + body[value:end]
        return kind, element_type, None if shape is None else self._shape(shape)

    def _shape(self, data: bytes) -> tuple[int | str | None, ...]:
        """TensorShapeProto."""
        return tuple(
            self._dimension(data[value:end])
            for key, value, end in self._walk.fields(_span(data))
            if key == _SHAPE_DIMENSION
        )

    def _dimension(self, data: bytes) -> int | str | None:
        """A number, a symbol, or None; a negative number says as little as none."""
        dimension: int | str | None = None
        for key, value, end in self._walk.fields(_span(data)):
            if key == _DIMENSION_SIZE:
                dimension = _signed(value) if value < INT64_SIGN else None
            elif key == _DIMENSION_SYMBOL:
                dimension = data[value:end].decode(errors="replace") or None
        return dimension


def _span(data: bytes) -> Span:
    return Span(MemorySource(data), 0, len(data))


def _text(source: Source, start: int, end: int) -> str:
    """A short string for comparing and showing; bytes that are not UTF-8 are replaced."""
    return source.read(start, end).decode(errors="replace")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= INT64_SIGN else value


def _external_data(tensor: str, entries: Sequence[tuple[str, str]]) -> ExternalData:
    """The reference that ``entries`` make; raises ArtefactError when it names no place, or more than one."""
    found: dict[str, str] = {}
    for key, value in entries:
        if key in found and found[key] != value:
            raise ArtefactError(f"tensor '{tensor}' has external data with two different values of '{key}'")
        found[key] = value
    if not found.get("location"):
        raise ArtefactError(f"tensor '{tensor}' has external data without a location")
    return ExternalData(
        tensor=tensor,
        location=found["location"],
        offset=_count(tensor, "offset", found.get("offset", "0")),
        length=_count(tensor, "length", found["length"]) if "length" in found else None,
    )


def _count(tensor: str, key: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    raise ArtefactError(
        f"tensor '{tensor}' has external data whose {key} '{text[:64]}' is not a whole number"
    )
