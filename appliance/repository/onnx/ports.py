"""Inputs and outputs of an ONNX graph: ValueInfoProto and the types inside it."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from appliance.domain.errors import ArtefactError
from appliance.repository.onnx.protobuf import (
    INT64_SIGN,
    MemorySource,
    Span,
    TextReader,
    Walk,
    length_key,
    signed,
    varint_key,
)
from appliance.repository.onnx.summary import GraphPort, PortKind

_VALUE_NAME: Final = length_key(1)
_VALUE_TYPE: Final = length_key(2)
_TENSOR_TYPE_ELEMENT: Final = varint_key(1)
_TENSOR_TYPE_SHAPE: Final = length_key(2)
_SHAPE_DIMENSION: Final = length_key(1)
_DIMENSION_SIZE: Final = varint_key(1)
_DIMENSION_SYMBOL: Final = length_key(2)
_TYPE_KINDS: Final = MappingProxyType({length_key(kind.value): kind for kind in PortKind if kind.value})


class PortReader:
    """Reads with the walk of the file's reader."""

    def __init__(self, walk: Walk, texts: TextReader) -> None:
        self._walk = walk
        self._texts = texts

    def read(self, span: Span) -> GraphPort:
        """ValueInfoProto. Raises ArtefactError for a name that is not UTF-8."""
        name = b""
        types: list[bytes] = []
        for key, value, end in self._walk.fields(span):
            if key == _VALUE_NAME:
                name = self._texts.name(span.source, value, end)
            elif key == _VALUE_TYPE:
                types.append(self._texts.raw(span.source, value, end))
        kind, element_type, dims = self._type(b"".join(types))  # joined pieces parse as one message
        try:
            text = name.decode()
            return GraphPort(name=text, kind=kind, element_type=element_type, dims=dims)
        except UnicodeDecodeError:
            raise ArtefactError(f"has an input or output whose name is not UTF-8: {name[:200]!r}") from None

    def _type(self, data: bytes) -> tuple[PortKind, int, tuple[int | str | None, ...] | None]:
        """TypeProto: (kind, element type, dimensions); of its alternatives the last one given counts."""
        kind = PortKind.NOTHING
        bodies: list[bytes] = []
        for key, value, end in self._walk.fields(_span(data)):
            found = _TYPE_KINDS.get(key)
            if found is not None:
                if found is not kind:
                    kind, bodies = found, []
                bodies.append(data[value:end])
        if kind not in (PortKind.TENSOR, PortKind.SPARSE_TENSOR):
            return kind, 0, None
        element_type = 0
        body = b"".join(bodies)
        shapes: list[bytes] = []
        for key, value, end in self._walk.fields(_span(body)):
            if key == _TENSOR_TYPE_ELEMENT:
                element_type = value & 0xFFFFFFFF
            elif key == _TENSOR_TYPE_SHAPE:
                shapes.append(body[value:end])
        return kind, element_type, self._shape(b"".join(shapes)) if shapes else None

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
                dimension = signed(value) if value < INT64_SIGN else None
            elif key == _DIMENSION_SYMBOL:
                dimension = data[value:end].decode(errors="replace") or None
        return dimension


def _span(data: bytes) -> Span:
    return Span(MemorySource(data), 0, len(data))
