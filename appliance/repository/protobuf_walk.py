"""Walk protobuf messages field by field without building them: bounded, and without copying what is skipped.

Rules kept here: every length is checked against the message around it, the number of fields looked at is
bounded, and a file is read through a small window, so that the weights of a model are stepped over and never
read. The window is filled by ``pread``, not mapped: a file that someone shortens meanwhile gives an error
here, where a mapping would kill the process. Knows the encoding only, no schema.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from appliance.errors import ArtefactError

WINDOW_BYTES: Final = 16 * 1024
INLINE_BYTES: Final = 64 * 1024
HEADER_BYTES_MAX: Final = 20  # a key and a length or value, ten bytes each at most

# Scalar fields with one-byte keys, in runs: big trees of decisions hold millions of them. Field 14 as a varint is left
# out because it is the one scalar that callers want (where a tensor's data lies).
_VARINT_KEYS: Final = b"[\\x08\\x10\\x18\\x20\\x28\\x30\\x38\\x40\\x48\\x50\\x58\\x60\\x68\\x78]"
_FIXED64_KEYS: Final = b"[\\x09\\x11\\x19\\x21\\x29\\x31\\x39\\x41\\x49\\x51\\x59\\x61\\x69\\x71\\x79]"
_FIXED32_KEYS: Final = b"[\\x0d\\x15\\x1d\\x25\\x2d\\x35\\x3d\\x45\\x4d\\x55\\x5d\\x65\\x6d\\x75\\x7d]"
_SCALAR_RUN: Final = re.compile(
    b"(?:"
    + _VARINT_KEYS
    + b"[\\x80-\\xff]{0,9}+[\\x00-\\x7f]|"
    + _FIXED32_KEYS
    + b".{4}|"
    + _FIXED64_KEYS
    + b".{8}){1,1000}+",
    re.DOTALL,
)


class Malformed(ArtefactError):
    """Bytes that are not the protobuf message they should be, or more of it than the bound allows."""


class WireType(IntEnum):
    """How a field's value is written."""

    VARINT = 0
    FIXED64 = 1
    LENGTH = 2
    FIXED32 = 5


class Window(NamedTuple):
    """A piece of a source: ``data`` begins at ``base``; a field header at or before ``safe`` lies wholly
    inside."""

    data: bytes
    base: int
    safe: int


class Source(Protocol):
    """Random access to bytes."""

    def window(self, position: int) -> Window:
        """The piece around ``position``."""

    def read(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` up to ``end``."""


class Span(NamedTuple):
    """The bytes of one message."""

    source: Source
    start: int
    end: int

    def read(self) -> bytes:
        """The bytes themselves."""
        return self.source.read(self.start, self.end)


class MemorySource:
    """Bytes that are in memory; the first of them is called position ``origin``, its place in the file."""

    def __init__(self, data: bytes, origin: int = 0) -> None:
        self._window = Window(data, origin, origin + len(data))

    def window(self, position: int) -> Window:
        return self._window

    def read(self, start: int, end: int) -> bytes:
        data, origin, _ = self._window
        return data[start - origin : end - origin]


class FileSource:
    """An open file of ``size`` bytes, of which only what is asked for is read. Does not close the
    descriptor."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size

    def window(self, position: int) -> Window:
        data = self.read(position, min(position + WINDOW_BYTES, self._size))
        whole = position + len(data) == self._size
        return Window(data, position, self._size if whole else position + len(data) - HEADER_BYTES_MAX)

    def read(self, start: int, end: int) -> bytes:
        data = os.pread(self._descriptor, end - start, start)
        if len(data) != end - start:
            raise Malformed(f"the file became shorter while it was read: byte {start + len(data)} is gone")
        return data


class Field(NamedTuple):
    """One field: its number and wire type; ``value`` of a VARINT (0 for others); where its bytes lie."""

    number: int
    wire: int
    value: int
    start: int
    end: int


class Walk:
    """Steps through messages and counts the fields; raises Malformed after ``fields_max`` of them.

    One owner: whoever reads one file.
    """

    def __init__(self, fields_max: int) -> None:
        self._fields_max = fields_max
        self._left = fields_max

    def fields(self, span: Span, *, bulk: bool = False) -> Iterator[Field]:
        """The fields of a message in file order. ``bulk``: scalar fields may be passed over (see
        _SCALAR_RUN)."""
        source, position, end = span
        window, base, safe = source.window(position)
        while position < end:
            if position > safe:
                window, base, safe = source.window(position)
            field = _field(window, base, position, end)
            if bulk and field.wire != WireType.LENGTH:
                run = _SCALAR_RUN.match(window, position - base, min(end - base, len(window)))
                if run is not None:
                    position = base + run.end()
                    continue
            self._count()
            position = field.end
            yield field

    def narrow(self, source: Source, field: Field) -> Span:
        """The message inside ``field``, held in memory when it is small."""
        if isinstance(source, MemorySource) or field.end - field.start > INLINE_BYTES:
            return Span(source, field.start, field.end)
        return Span(MemorySource(source.read(field.start, field.end), field.start), field.start, field.end)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Malformed(f"has more than {self._fields_max} fields; at most that many are read")


def _field(window: bytes, base: int, position: int, end: int) -> Field:
    """The field that begins at ``position``."""
    try:
        key, at = _varint(window, position - base)
        wire = key & 7
        if wire == WireType.LENGTH:
            length, at = _varint(window, at)
            field = Field(key >> 3, wire, 0, base + at, base + at + length)
        elif wire == WireType.VARINT:
            start = at
            value, at = _varint(window, at)
            field = Field(key >> 3, wire, value, base + start, base + at)
        elif wire in (WireType.FIXED32, WireType.FIXED64):
            field = Field(key >> 3, wire, 0, base + at, base + at + (4 if wire == WireType.FIXED32 else 8))
        else:
            raise Malformed(f"byte {position} begins a field of the unknown wire type {wire}")
    except IndexError:
        raise Malformed(f"the field at byte {position} is cut off at byte {end}") from None
    if field.number == 0 or field.number > 0x1FFFFFFF:
        raise Malformed(f"byte {position} begins a field of the impossible number {field.number}")
    if field.end > end:
        raise Malformed(
            f"the field at byte {position} needs {field.end - field.start} bytes, {max(0, end - field.start)} are left"
        )
    return field


def _varint(window: bytes, at: int) -> tuple[int, int]:
    """(value, position after it); raises IndexError where the window ends first."""
    byte = window[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = window[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + 1
    raise Malformed("a number is written with more than ten bytes")
