"""The messages in a graph: tensors, what they say of themselves and where their bytes are; inputs and outputs.

Rules kept here: a tensor, sparse or not, given in pieces counts as one, as protobuf merges it; the bytes themselves are
stepped over; a reference to bytes elsewhere is a file name and two whole numbers, and what else it might say is a flaw:
an address in memory, a second value for the same key, a key that a runtime may read but nothing here. The shape that a
sparse tensor has when it is dense is held to the same rules as any other: runtimes make it dense while they load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from appliance.repository.onnx.summary import (
    ELEMENTS_MAX,
    STRING_ELEMENT,
    ExternalData,
    GraphPort,
    GraphTensor,
    PortKind,
)

EXTERNAL: Final = 1
RANK_MAX: Final = 32
COUNT_DIGITS_MAX: Final = 19
ENTRIES_MAX: Final = 64
MEMORY_ADDRESS: Final = "MEM_ADDR"

_DIMS: Final = varint_key(1)
_PACKED_DIMS: Final = length_key(1)
_DATA_TYPE: Final = varint_key(2)
_FLOAT_DATA: Final = length_key(4)
_INT32_DATA: Final = length_key(5)
_STRING_DATA: Final = length_key(6)
_INT64_DATA: Final = length_key(7)
_NAME: Final = length_key(8)
_RAW_DATA: Final = length_key(9)
_DOUBLE_DATA: Final = length_key(10)
_UINT64_DATA: Final = length_key(11)
_EXTERNAL_DATA: Final = length_key(13)
_DATA_LOCATION: Final = varint_key(14)
_TYPED_DATA: Final = frozenset(
    {_FLOAT_DATA, _INT32_DATA, _STRING_DATA, _INT64_DATA, _DOUBLE_DATA, _UINT64_DATA}
)
_ENTRY_KEY: Final = length_key(1)
_ENTRY_VALUE: Final = length_key(2)
_SPARSE_VALUES: Final = length_key(1)
_SPARSE_INDICES: Final = length_key(2)
_SPARSE_DIMS: Final = varint_key(3)
_SPARSE_PACKED_DIMS: Final = length_key(3)
_VALUE_NAME: Final = length_key(1)
_VALUE_TYPE: Final = length_key(2)
_TENSOR_TYPE_ELEMENT: Final = varint_key(1)
_TENSOR_TYPE_SHAPE: Final = length_key(2)
_SHAPE_DIMENSION: Final = length_key(1)
_DIMENSION_SIZE: Final = varint_key(1)
_DIMENSION_SYMBOL: Final = length_key(2)
_TYPE_KINDS: Final = MappingProxyType({length_key(kind.value): kind for kind in PortKind if kind.value})
_KNOWN_KEYS: Final = frozenset({"location", "offset", "length", "checksum"})

Report = Callable[[str], None]
"""Notes a flaw at the tensor that is being read."""


class TensorMessage:
    """One TensorProto, from all the pieces it is given in."""

    def __init__(self, walk: Walk, texts: TextReader, spans: Sequence[Span], report: Report) -> None:
        self.name = ""
        self.element_type = 0
        self.dims: list[int] = []
        self.inline_bytes = 0
        self.outside = False
        self._raw_bytes: int | None = None
        self._walk = walk
        self._texts = texts
        self._report = report
        self._entries: list[tuple[str, str]] = []
        for span in spans:
            self._read(span)
        self._check_shape()

    def tensor(self, dense_dims: Sequence[int] | None = None) -> GraphTensor:
        """What it says of itself; ``dense_dims`` when it holds the values of a sparse tensor."""
        return GraphTensor(
            name=self.name,
            element_type=self.element_type,
            dims=tuple(self.dims),
            inline_bytes=self.inline_bytes,
            outside=self.outside,
            dense_dims=None if dense_dims is None else tuple(dense_dims),
        )

    def reference(self, where: str) -> ExternalData | None:
        """Where its bytes are, when they are elsewhere and it says so in a way that can be followed."""
        if not self.outside:
            if self._entries:
                self._report(
                    "names data outside the file but is not marked as external; remove one of the two"
                )
            return None
        if self.inline_bytes:
            self._report("has data in the file and outside of it; remove one of the two")
        if self.element_type == STRING_ELEMENT:
            self._report("holds strings, which cannot lie outside the file")
        found = self._places()
        location = found.get("location", "")
        if not location:
            self._report("has external data without a location")
            return None
        if MEMORY_ADDRESS in location:
            self._report("has its data at an address in memory; export the model with the data in a file")
            return None
        offset, length = self._count("offset", found.get("offset", "0")), None
        if "length" in found:
            length = self._count("length", found["length"])
        return ExternalData(
            tensor=self.name,
            location=location,
            offset=offset,
            length=length,
            needed=self.tensor().data_bytes,
            where=where,
        )

    def _read(self, span: Span) -> None:
        for key, value, end in self._walk.fields(span, bulk=True):
            if key == _DIMS:
                _add_dimension(self.dims, value)
            elif key == _PACKED_DIMS:
                for each in self._walk.varints(self._walk.narrow(span.source, value, end)):
                    _add_dimension(self.dims, each)
            elif key == _DATA_TYPE:
                self.element_type = value & 0xFFFFFFFF
            elif key == _NAME:
                self.name = self._texts.read(span.source, value, end)
            elif key == _RAW_DATA:
                self._raw_bytes = end - value
                self.inline_bytes += end - value
            elif key in _TYPED_DATA:
                self.inline_bytes += end - value
            elif key == _EXTERNAL_DATA:
                self._entry(self._walk.narrow(span.source, value, end))
            elif key == _DATA_LOCATION:
                # Said once is enough: readers differ in what a second, unknown value does to the first.
                self.outside = self.outside or value & 0xFFFFFFFF == EXTERNAL

    def _check_shape(self) -> None:
        """Sizes that no tensor has."""
        wrong = _shape_flaw(self.dims)
        if wrong:
            self._report(f"has {wrong}")
            return
        needed = self.tensor().data_bytes
        if self._raw_bytes and needed is not None and needed != self._raw_bytes:
            self._report(f"has {self._raw_bytes} bytes of data; its type and shape need {needed}")

    def _entry(self, span: Span) -> None:
        """StringStringEntryProto; bytes that are not UTF-8 stay what they are, as in a file name."""
        key = value = ""
        for field, start, end in self._walk.fields(span):
            if field == _ENTRY_KEY:
                key = self._texts.read(span.source, start, end)
            elif field == _ENTRY_VALUE:
                value = self._texts.path(span.source, start, end)
        if len(self._entries) < ENTRIES_MAX:
            self._entries.append((key, value))
        else:
            self._report(f"has more than {ENTRIES_MAX} entries about external data")

    def _places(self) -> dict[str, str]:
        """The entries by key; the first value of each."""
        found: dict[str, str] = {}
        for key, value in self._entries:
            if key not in _KNOWN_KEYS:
                self._report(f"has external data with the unknown key '{key[:64]}'; remove it")
            elif found.setdefault(key, value) != value:
                self._report(f"has external data with two different values of '{key}'")
        return found

    def _count(self, key: str, said: str) -> int:
        if said.isascii() and said.isdigit() and len(said) <= COUNT_DIGITS_MAX and int(said) < INT64_SIGN:
            return int(said)
        self._report(f"has external data whose {key} '{said[:64]}' is not a whole number below 2^63")
        return 0


class SparseMessage:
    """One SparseTensorProto, from all the pieces it is given in: where its ``values`` and ``indices`` are, and the
    shape that it has when it is dense."""

    def __init__(self, walk: Walk, spans: Sequence[Span]) -> None:
        self.values: list[Span] = []
        self.indices: list[Span] = []
        self.dims: list[int] = []
        for span in spans:
            self._read(walk, span)

    def flaw(self) -> str:
        """What is wrong with the dense shape; "" when nothing is."""
        wrong = _shape_flaw(self.dims)
        return wrong and f"has, dense, {wrong}"

    def _read(self, walk: Walk, span: Span) -> None:
        """Field by field: its dimensions are among what is passed over in bulk elsewhere."""
        for key, value, end in walk.fields(span):
            if key == _SPARSE_VALUES:
                self.values.append(walk.narrow(span.source, value, end))
            elif key == _SPARSE_INDICES:
                self.indices.append(walk.narrow(span.source, value, end))
            elif key == _SPARSE_DIMS:
                _add_dimension(self.dims, value)
            elif key == _SPARSE_PACKED_DIMS:
                for each in walk.varints(walk.narrow(span.source, value, end)):
                    _add_dimension(self.dims, each)


def _add_dimension(dims: list[int], value: int) -> None:
    """One more, up to the first that is too many."""
    if len(dims) <= RANK_MAX:
        dims.append(signed(value))


def _shape_flaw(dims: Sequence[int]) -> str:
    """What no shape has; "" when it could be one."""
    if len(dims) > RANK_MAX:
        return f"more than {RANK_MAX} dimensions"
    count = 1
    for size in dims:
        if size < 0:
            return f"the negative dimension {size}"
        count *= size or 1
    return "more elements than can be addressed" if count > ELEMENTS_MAX else ""


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
