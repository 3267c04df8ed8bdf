"""Walk protobuf messages field by field without building them: bounded, and without copying what is skipped.

Rules kept here: every length is checked against the message around it, the number of fields looked at is
bounded, and a file is read through a small window, so that the weights of a model are stepped over and never
read. The window is filled by ``pread``, not mapped: a file that is shortened meanwhile gives an error
here, where a mapping would kill the process. Knows the encoding only, no schema.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from appliance.domain.errors import ArtefactError

WINDOW_BYTES: Final = 4 * 1024
INLINE_BYTES: Final = 64 * 1024
INT64_SIGN: Final = 1 << 63
TEXT_BYTES_MAX: Final = 1 << 20
ALL_TEXT_BYTES_MAX: Final = 64 << 20
# protobuf's own reader drops higher bits of a key, and would see another field than is seen here.
KEY_MAX: Final = (1 << 32) - 1
HEADER_BYTES_MAX: Final = 20  # a key and a length or value, ten bytes each at most

_VARINT: Final = 0  # the wire types
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5

# Scalar fields with one-byte keys, in runs: big trees of decisions hold millions of them. Fields 1, 2 and 14 as
# varints are left out because callers want them (the dimensions, type and place of a tensor).
_VARINT_KEYS: Final = b"[\\x18\\x20\\x28\\x30\\x38\\x40\\x48\\x50\\x58\\x60\\x68\\x78]"
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
    """An open file of ``size`` bytes, of which only what is asked for is read. Leaves it open."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._window = Window(b"", 0, -1)

    def window(self, position: int) -> Window:
        if not self._window.base <= position <= self._window.safe:
            data = self._load(position, min(position + WINDOW_BYTES, self._size))
            whole = position + len(data) == self._size
            safe = self._size if whole else position + len(data) - HEADER_BYTES_MAX
            self._window = Window(data, position, safe)
        return self._window

    def read(self, start: int, end: int) -> bytes:
        data, base, _ = self._window
        if base <= start and end <= base + len(data):
            return data[start - base : end - base]
        return self._load(start, end)

    def _load(self, start: int, end: int) -> bytes:
        data = os.pread(self._descriptor, end - start, start)
        if len(data) != end - start:
            raise Malformed(f"the file became shorter while it was read: byte {start + len(data)} is gone")
        return data


Field = tuple[int, int, int]
"""One field: (key, value, end) for a VARINT, (key, start, end) for all others. The key is number * 8 + wire
type; end is where the next field begins. A plain tuple, because there are many."""


def varint_key(number: int) -> int:
    """The key of field ``number`` when it holds a VARINT."""
    return number << 3 | _VARINT


def length_key(number: int) -> int:
    """The key of field ``number`` when it holds bytes, text or a message."""
    return number << 3 | _LENGTH


def signed(value: int) -> int:
    """A VARINT as the int64 that it stands for."""
    return value - (1 << 64) if value >= INT64_SIGN else value


class Walk:
    """Steps through messages and counts the fields; raises Malformed after ``fields_max`` of them.

    One owner: the reader of one file.
    """

    def __init__(self, fields_max: int) -> None:
        self._fields_max = fields_max
        self._left = fields_max

    def fields(self, span: Span, *, bulk: bool = False) -> Iterator[Field]:
        """The fields of a message in file order. ``bulk``: scalar fields may be passed over, see _SCALAR_RUN.

        Written out in one loop: this is where the time of reading a model goes.
        """
        source, position, end = span
        window, base, safe = source.window(position)
        try:
            while position < end:
                if position > safe:
                    window, base, safe = source.window(position)
                at = position - base
                key = window[at]
                at += 1
                if key > 0x7F:
                    key, at = _varint(window, at - 1)
                    if key > KEY_MAX:
                        raise Malformed(f"the field at byte {position} has a number above {KEY_MAX >> 3}")
                wire = key & 7
                if bulk and wire != _LENGTH:
                    run = _SCALAR_RUN.match(window, position - base, min(end - base, len(window)))
                    if run is not None:
                        position = base + run.end()
                        continue
                if wire == _LENGTH:
                    size = window[at]
                    at += 1
                    if size > 0x7F:
                        size, at = _varint(window, at - 1)
                    value = base + at
                    at += size
                elif wire == _VARINT:
                    value, at = _varint(window, at)
                else:
                    value = base + at
                    at += _fixed_size(key, position)
                self._left -= 1
                if key < 8 or base + at > end or self._left < 0:
                    raise self._fault(key, position, base + at, end)
                position = base + at
                yield key, value, position
        except IndexError:
            raise Malformed(f"the field at byte {position} is cut off at byte {end}") from None

    def varints(self, span: Span) -> Iterator[int]:
        """The numbers of a packed field, which holds nothing else; each counts as a field."""
        source, position, end = span
        window, base, safe = source.window(position)
        try:
            while position < end:
                if position > safe:
                    window, base, safe = source.window(position)
                value, at = _varint(window, position - base)
                self._left -= 1
                if base + at > end or self._left < 0:
                    raise self._fault(8, position, base + at, end)
                position = base + at
                yield value
        except IndexError:
            raise Malformed(f"the number at byte {position} is cut off at byte {end}") from None

    def narrow(self, source: Source, start: int, end: int) -> Span:
        """The message at these bytes, held in memory when it is small."""
        if end - start > INLINE_BYTES or isinstance(source, MemorySource):
            return Span(source, start, end)
        return Span(MemorySource(source.read(start, end), start), start, end)

    def _fault(self, key: int, position: int, stop: int, end: int) -> Malformed:
        """Why the field at ``position`` is refused."""
        if self._left < 0:
            return Malformed(f"has more than {self._fields_max} fields; at most that many are read")
        if key < 8:
            return Malformed(f"byte {position} begins a field of the impossible number 0")
        return Malformed(f"the field at byte {position} ends {stop - end} bytes after what holds it")


def _fixed_size(key: int, position: int) -> int:
    wire = key & 7
    if wire == _FIXED32:
        return 4
    if wire == _FIXED64:
        return 8
    raise Malformed(f"byte {position} begins a field of the unknown wire type {wire}")


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


class TextReader:
    """Reads names and other short texts, bounded each and in all, and tells of names above ``name_bytes_max``. Owned by
    the reader of one file."""

    def __init__(self, name_bytes_max: int, report: Callable[[str], None]) -> None:
        self._name_bytes_max = name_bytes_max
        self._report = report
        self._left = ALL_TEXT_BYTES_MAX

    def read(self, source: Source, start: int, end: int) -> str:
        """A name, for comparing and showing; bytes that are not UTF-8 are replaced."""
        return self.name(source, start, end).decode(errors="replace")

    def name(self, source: Source, start: int, end: int) -> bytes:
        """The bytes of a name."""
        data = self.raw(source, start, end)
        if len(data) > self._name_bytes_max:
            self._report(f"has a name of {len(data)} bytes; at most {self._name_bytes_max} are allowed")
        return data

    def path(self, source: Source, start: int, end: int) -> str:
        """What may be a file name: bytes that are not UTF-8 stay what they are."""
        return os.fsdecode(self.raw(source, start, end))

    def raw(self, source: Source, start: int, end: int) -> bytes:
        """The bytes; raises Malformed when they are more than any text here has, or when there is too much in all."""
        if end - start > TEXT_BYTES_MAX:
            raise Malformed(
                f"the text at byte {start} has {end - start} bytes; at most {TEXT_BYTES_MAX} are read"
            )
        self._left -= end - start
        if self._left < 0:
            raise Malformed(f"has more than {ALL_TEXT_BYTES_MAX} bytes of names; at most that many are read")
        return source.read(start, end)
