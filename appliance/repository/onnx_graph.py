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
    WireType,
)

FIELDS_MAX: Final = 4_000_000
GRAPH_DEPTH_MAX: Final = 32
EXTERNAL: Final = 1
INT64_SIGN: Final = 1 << 63

_LFS_POINTER: Final = b"version https://git-lfs"
_ORT_FORMAT: Final = b"ORTM"


class PortKind(Enum):
    """What stands at an input or output; TypeProto's field number of it."""

    NOTHING = 0
    TENSOR = 1
    SEQUENCE = 4
    MAP = 5
    OPAQUE = 7
    SPARSE_TENSOR = 8
    OPTIONAL = 9


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
    """The summary of the ONNX file open at ``descriptor`` (left open); raises ArtefactError saying what is
    wrong."""
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, 64, 0)
    if not head:
        raise ArtefactError("is empty; an ONNX model is expected")
    if head.startswith(_LFS_POINTER):
        raise ArtefactError(
            "is a Git LFS pointer and not the model itself; run 'git lfs pull' where it came from"
        )
    if head[4:8] == _ORT_FORMAT:
        raise ArtefactError("is in ORT format; give the ONNX model it was made from")
    reader = _ModelReader()
    try:
        source: Source = FileSource(descriptor, size)
        if size <= INLINE_BYTES:
            source = MemorySource(source.read(0, size))
        reader.model(Span(source, 0, size))
    except Malformed as error:
        what = "is a damaged or truncated ONNX model" if reader.begun else "is not an ONNX model"
        raise ArtefactError(f"{what}: {error}") from error
    except OSError as error:
        raise ArtefactError(f"cannot be read: {error.strerror}") from error
    return reader.summary()


class _ModelReader:
    """Collects while it walks. Message field numbers are those of onnx.proto."""

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
        for field in self._walk.fields(span):
            if field.number == 1 and field.wire == WireType.VARINT:
                self._ir_version = _signed(field.value)
                self.begun = True
            elif field.wire == WireType.LENGTH:
                self._model_part(field.number, self._walk.narrow(span.source, field))

    def _model_part(self, number: int, span: Span) -> None:
        if number == 7:
            self._graphs += 1
            self.begun = True
            self._graph(span, 1, main=True)
        elif number == 8:
            self._opset(span)
        elif number == 20:
            self._training(span)
        elif number == 25:
            self._function(span)

    def _opset(self, span: Span) -> None:
        domain, version = "", 0
        for field in self._walk.fields(span):
            if field.number == 1 and field.wire == WireType.LENGTH:
                domain = _text(span.source, field.start, field.end)
            elif field.number == 2 and field.wire == WireType.VARINT:
                version = _signed(field.value)
        self._opsets.append((domain, version))

    def _training(self, span: Span) -> None:
        for field in self._walk.fields(span):
            if field.number in (1, 2) and field.wire == WireType.LENGTH:
                self._graph(self._walk.narrow(span.source, field), 1)

    def _function(self, span: Span) -> None:
        for field in self._walk.fields(span):
            if field.wire != WireType.LENGTH:
                continue
            if field.number == 7:
                self._node(self._walk.narrow(span.source, field), 1)
            elif field.number == 11:
                self._attribute(self._walk.narrow(span.source, field), 1)

    def _graph(self, span: Span, depth: int, *, main: bool = False) -> None:
        """GraphProto: its nodes and tensors, and of the ``main`` graph the names of inputs, outputs,
        initializers."""
        if depth > GRAPH_DEPTH_MAX:
            raise ArtefactError(f"has graphs nested more than {GRAPH_DEPTH_MAX} deep")
        for field in self._walk.fields(span):
            if field.wire != WireType.LENGTH or field.number not in (1, 5, 11, 12, 15):
                continue
            part = self._walk.narrow(span.source, field)
            if field.number == 1:
                self._node(part, depth)
            elif field.number in (5, 15):
                name = self._tensor((part,)) if field.number == 5 else self._sparse((part,))
                if main:
                    self._initializers.add(name)
            elif main:
                (self._inputs if field.number == 11 else self._outputs).append(self._port(part))

    def _node(self, span: Span, depth: int) -> None:
        domain = operator = ""
        for field in self._walk.fields(span):
            if field.wire != WireType.LENGTH:
                continue
            if field.number == 4:
                operator = _text(span.source, field.start, field.end)
            elif field.number == 7:
                domain = _text(span.source, field.start, field.end)
            elif field.number == 5:
                self._attribute(self._walk.narrow(span.source, field), depth)
        self._operators.add((domain, operator))

    def _attribute(self, span: Span, depth: int) -> None:
        tensor: list[Span] = []
        sparse: list[Span] = []
        for field in self._walk.fields(span, bulk=True):
            if field.wire != WireType.LENGTH or field.number not in (5, 6, 10, 11, 22, 23):
                continue
            part = self._walk.narrow(span.source, field)
            if field.number == 5:
                tensor.append(part)
            elif field.number == 22:
                sparse.append(part)
            elif field.number == 10:
                self._tensor((part,))
            elif field.number == 23:
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
            for field in self._walk.fields(span, bulk=True):
                if field.wire == WireType.LENGTH and field.number in (1, 2):
                    part = self._walk.narrow(span.source, field)
                    (values if field.number == 1 else indices).append(part)
        self._tensor(indices)
        return self._tensor(values)

    def _tensor(self, spans: Sequence[Span]) -> str:
        """TensorProto, in pieces that count as one; gives its name."""
        name, location = "", 0
        entries: list[tuple[str, str]] = []
        for span in spans:
            for field in self._walk.fields(span, bulk=True):
                if field.number == 14 and field.wire == WireType.VARINT:
                    location = field.value
                elif field.wire != WireType.LENGTH:
                    continue
                elif field.number == 8:
                    name = _text(span.source, field.start, field.end)
                elif field.number == 13:
                    entries.append(self._entry(self._walk.narrow(span.source, field)))
        if location == EXTERNAL:
            self._external.append(_external_data(name, entries))
        return name

    def _entry(self, span: Span) -> tuple[str, str]:
        """StringStringEntryProto; bytes that are not UTF-8 stay what they are, as in a file name."""
        key = value = ""
        for field in self._walk.fields(span):
            if field.wire == WireType.LENGTH and field.number == 1:
                key = _text(span.source, field.start, field.end)
            elif field.wire == WireType.LENGTH and field.number == 2:
                value = os.fsdecode(span.source.read(field.start, field.end))
        return key, value

    def _port(self, span: Span) -> GraphPort:
        """ValueInfoProto."""
        name, types = b"", b""
        for field in self._walk.fields(span):
            if field.wire == WireType.LENGTH and field.number == 1:
                name = span.source.read(field.start, field.end)
            elif field.wire == WireType.LENGTH and field.number == 2:
                types += span.source.read(field.start, field.end)  # joined pieces parse as one message
        kind, element_type, dims = self._type(types)
        try:
            return GraphPort(name=name.decode(), kind=kind, element_type=element_type, dims=dims)
        except UnicodeDecodeError:
            raise ArtefactError(f"has an input or output whose name is not UTF-8: {name!r}") from None

    def _type(self, data: bytes) -> tuple[PortKind, int, tuple[int | str | None, ...] | None]:
        """TypeProto: (kind, element type, dimensions); of its alternatives the last one given counts."""
        kind, body = PortKind.NOTHING, b""
        for field in self._walk.fields(_span(data)):
            if field.wire != WireType.LENGTH or field.number not in (1, 4, 5, 7, 8, 9):
                continue
            found = PortKind(field.number)
            piece = data[field.start : field.end]
            kind, body = found, body + piece if found is kind else piece
        if kind not in (PortKind.TENSOR, PortKind.SPARSE_TENSOR):
            return kind, 0, None
        element_type, shape = 0, None
        for field in self._walk.fields(_span(body)):
            if field.number == 1 and field.wire == WireType.VARINT:
                element_type = field.value & 0xFFFFFFFF
            elif field.number == 2 and field.wire == WireType.LENGTH:
                shape = (shape or b"") + body[field.start : field.end]
        return kind, element_type, None if shape is None else self._shape(shape)

    def _shape(self, data: bytes) -> tuple[int | str | None, ...]:
        """TensorShapeProto."""
        return tuple(
            self._dimension(data[field.start : field.end])
            for field in self._walk.fields(_span(data))
            if field.number == 1 and field.wire == WireType.LENGTH
        )

    def _dimension(self, data: bytes) -> int | str | None:
        """A number, a symbol, or None; a negative number says as little as none."""
        dimension: int | str | None = None
        for field in self._walk.fields(_span(data)):
            if field.number == 1 and field.wire == WireType.VARINT:
                value = _signed(field.value)
                dimension = value if value >= 0 else None
            elif field.number == 2 and field.wire == WireType.LENGTH:
                dimension = data[field.start : field.end].decode(errors="replace") or None
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
