"""Tensors of an ONNX file, wherever they stand: what they say of themselves, and where they say their bytes are.

Rules kept here: a tensor given in pieces counts as one, as protobuf merges it; the bytes themselves are stepped over;
a reference to bytes elsewhere is a file name and two whole numbers, and what else it might say is a flaw: an address in
memory, a second value for the same key, a key that a runtime may read but nobody here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from appliance.repository.onnx_summary import (
    ELEMENTS_MAX,
    STRING_ELEMENT,
    ExternalData,
    GraphTensor,
)
from appliance.repository.onnx_text import TextReader
from appliance.repository.protobuf_walk import INT64_SIGN, Span, Walk, length_key, signed, varint_key

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

    def tensor(self) -> GraphTensor:
        """What it says of itself."""
        return GraphTensor(
            name=self.name,
            element_type=self.element_type,
            dims=tuple(self.dims),
            inline_bytes=self.inline_bytes,
            outside=self.outside,
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
                self._dimension(value)
            elif key == _PACKED_DIMS:
                for each in self._walk.varints(self._walk.narrow(span.source, value, end)):
                    self._dimension(each)
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

    def _dimension(self, value: int) -> None:
        if len(self.dims) <= RANK_MAX:
            self.dims.append(signed(value))

    def _check_shape(self) -> None:
        """Sizes that no tensor has."""
        if len(self.dims) > RANK_MAX:
            self._report(f"has more than {RANK_MAX} dimensions")
            return
        count = 1
        for size in self.dims:
            if size < 0:
                self._report(f"has the negative dimension {size}")
                return
            count *= size or 1
        if count > ELEMENTS_MAX:
            self._report("has more elements than can be addressed")
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
