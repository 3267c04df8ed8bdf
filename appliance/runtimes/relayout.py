"""Where the tensors of an ONNX file lie in the file beside it: found, laid out anew, and said in a copy of the graph.

A runtime that saves packed weights puts each beside the original it was made from. Runs touch the packed ones only, so
they are moved to the front: what a session without its weights brings back is then one sequential read, and large
pieces show in large pages. Written here because the boxes have no ``onnx``: the graph is copied field by field, and
only the entries of external data are made anew. Bounded in size and depth; everything that is not understood is an
error, never a guess.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import BinaryIO, Final, NamedTuple

from appliance.domain.errors import LoadFailed
from appliance.domain.varint import encode_varint

GRAPH_BYTES_MAX: Final = 1 << 30
DEPTH_MAX: Final = 64
LARGE_BYTES: Final = 64 << 10
LARGE_ALIGNMENT: Final = 4096
LARGE_PAGE_BYTES: Final = 2 << 20
GAP_SHARE: Final = 8
SMALL_ALIGNMENT: Final = 64
COPY_BYTES: Final = 4 << 20
PACKED_KEY: Final = "prepacked_"
ODD_BYTES: Final = "surrogateescape"

_LENGTH: Final = 2
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _FUNCTION = range(6)
_INSIDE: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {
        (_MODEL, 7): _GRAPH,
        (_MODEL, 25): _FUNCTION,
        (_FUNCTION, 7): _NODE,
        (_GRAPH, 1): _NODE,
        (_GRAPH, 5): _TENSOR,
        (_NODE, 5): _ATTRIBUTE,
        (_ATTRIBUTE, 5): _TENSOR,
        (_ATTRIBUTE, 6): _GRAPH,
        (_ATTRIBUTE, 10): _TENSOR,
        (_ATTRIBUTE, 11): _GRAPH,
    }
)
"""Which message a field (message, number) of onnx.proto is, where tensors can lie in it."""
_EXTERNAL_DATA: Final = 13


class Piece(NamedTuple):
    """Bytes of the weights file."""

    offset: int
    length: int


class Layout:
    """The new places of pieces: those that runs touch first, then the rest.

    A large page of memory shows 2 MiB of a file that begin at a multiple of 2 MiB. What runs touch is therefore laid
    out large pieces first, each on such a boundary; small ones go into the gaps, the largest that fits into each (best
    fit), and else follow in their order. Where a gap of more than an eighth of the piece behind it would be left, that
    piece follows at the next page instead.
    """

    def __init__(self, hot: Iterable[Piece], rest: Iterable[Piece]) -> None:
        self._places: dict[Piece, int] = {}
        self.size = 0
        touched = dict.fromkeys(hot)
        large = [piece for piece in touched if piece.length >= LARGE_PAGE_BYTES]
        small = sorted((piece for piece in reversed(touched) if piece.length < LARGE_PAGE_BYTES), key=_length)
        for piece in sorted(large, key=lambda piece: piece.length % LARGE_PAGE_BYTES != 0):
            boundary = _aligned(self.size, LARGE_PAGE_BYTES)
            self._fill(boundary, small)
            fits = boundary - self.size <= piece.length // GAP_SHARE
            self._put(piece, LARGE_PAGE_BYTES if fits else LARGE_ALIGNMENT)
        for piece in (*touched, *rest):
            if piece not in self._places:
                self._put(piece, _alignment(piece))

    def _fill(self, boundary: int, small: list[Piece]) -> None:
        """Take from the ``small`` ones, ascending by length, what fits before the boundary."""
        while True:
            room = boundary - _aligned(self.size, LARGE_ALIGNMENT)
            fitting = bisect.bisect_right(small, room, key=_length)
            if not fitting:
                return
            piece = small.pop(fitting - 1)
            self._put(piece, _alignment(piece))

    def _put(self, piece: Piece, alignment: int) -> None:
        self._places[piece] = _aligned(self.size, alignment)
        self.size = self._places[piece] + piece.length

    def place(self, piece: Piece) -> int:
        """The offset of a piece."""
        return self._places[piece]

    def pieces(self) -> Iterator[tuple[Piece, int]]:
        """Every piece with its new offset, ascending."""
        yield from self._places.items()


def _length(piece: Piece) -> int:
    return piece.length


def _alignment(piece: Piece) -> int:
    return LARGE_ALIGNMENT if piece.length >= LARGE_BYTES else SMALL_ALIGNMENT


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def relay(graph: str, weights: str, new_graph: str, new_weights: str) -> None:
    """Write the graph at ``graph``, whose tensors lie in ``weights`` beside it, to ``new_graph`` and ``new_weights``,
    packed tensors first. Raises LoadFailed when the graph is not understood, OSError."""
    with open(graph, "rb") as file:
        data = file.read(GRAPH_BYTES_MAX + 1)
    if len(data) > GRAPH_BYTES_MAX:
        raise LoadFailed(f"the packed graph has more than {GRAPH_BYTES_MAX} bytes")
    limit = os.path.getsize(weights) if os.path.exists(weights) else 0
    found: list[dict[str, str]] = []

    def note(entries: dict[str, str]) -> dict[str, str]:
        found.append(entries)
        return entries

    rewrite(data, note)
    hot, rest = ([piece for entries in found for piece in _pieces(entries, hot=hot)] for hot in (True, False))
    for piece in (*hot, *rest):
        if piece.offset < 0 or piece.length < 0 or piece.offset + piece.length > limit:
            raise LoadFailed(f"the packed graph names bytes {piece} of a file of {limit}")
    layout = Layout(hot, rest)
    location = os.path.basename(new_weights)
    with open(new_graph, "xb") as copy:
        copy.write(rewrite(data, lambda entries: _moved(entries, layout, location)))
    with open(new_weights, "xb") as target:
        if limit:
            with open(weights, "rb") as source:
                _copy(source, target, layout)


def _pieces(entries: Mapping[str, str], *, hot: bool) -> Iterator[Piece]:
    """What runs touch of a tensor, or the rest of it."""
    packed = [value for key, value in entries.items() if key.startswith(PACKED_KEY)]
    if hot:
        for value in packed:
            for blob in value.split("|")[1:]:
                yield _blob(blob)[0]
    if hot != bool(packed):
        yield Piece(_number(entries.get("offset", "0")), _number(entries.get("length", "")))


def _moved(entries: Mapping[str, str], layout: Layout, location: str) -> dict[str, str]:
    """The entries of a tensor in its new place."""
    moved = dict(entries)
    piece = Piece(_number(entries.get("offset", "0")), _number(entries.get("length", "")))
    moved["location"] = location
    moved["offset"] = str(layout.place(piece))
    for key, value in entries.items():
        if key.startswith(PACKED_KEY):
            name, *blobs = value.split("|")
            moved[key] = "|".join([name, *(_moved_blob(blob, layout) for blob in blobs)])
    return moved


def _moved_blob(text: str, layout: Layout) -> str:
    piece, rest = _blob(text)
    return ";".join([str(layout.place(piece)), str(piece.length), *rest])


def _blob(text: str) -> tuple[Piece, list[str]]:
    offset, _, rest = text.partition(";")
    length, *more = rest.split(";")
    return Piece(_number(offset), _number(length)), more


def _number(text: str) -> int:
    if not text.isdecimal():
        raise LoadFailed(f"the packed graph says '{text[:40]}' where a number of bytes should be")
    return int(text)


def _copy(source: BinaryIO, target: BinaryIO, layout: Layout) -> None:
    for piece, place in layout.pieces():
        target.seek(place)
        source.seek(piece.offset)
        left = piece.length
        while left:
            data = source.read(min(left, COPY_BYTES))
            if not data:
                raise LoadFailed("the file of packed weights ended early")
            target.write(data)
            left -= len(data)
    target.truncate(_aligned(layout.size, LARGE_ALIGNMENT))


# --- the graph, field by field


def rewrite(model: bytes, change: Callable[[dict[str, str]], Mapping[str, str]]) -> bytes:
    """A copy of an ONNX model in which the external data of each tensor, as key and value, is what ``change`` makes of
    it. Raises LoadFailed for bytes that are no such model."""
    return _message(memoryview(model), _MODEL, change, 0)


def _message(
    data: memoryview, kind: int, change: Callable[[dict[str, str]], Mapping[str, str]], depth: int
) -> bytes:
    if depth > DEPTH_MAX:
        raise LoadFailed(f"the packed graph is nested deeper than {DEPTH_MAX} levels")
    if kind == _TENSOR:
        return _tensor(data, change)
    parts: list[bytes | memoryview] = []
    for number, field, value in fields(data):
        inside = _INSIDE.get((kind, number)) if value is not None else None
        if inside is None or value is None:
            parts.append(field)
        else:
            parts.append(message_field(number, _message(value, inside, change, depth + 1)))
    return b"".join(parts)


def _tensor(data: memoryview, change: Callable[[dict[str, str]], Mapping[str, str]]) -> bytes:
    parts: list[bytes | memoryview] = []
    entries: dict[str, str] = {}
    for number, field, value in fields(data):
        if number == _EXTERNAL_DATA and value is not None:
            texts = {key: text for key, _, text in fields(value) if text is not None}
            entries[_text(texts.get(1))] = _text(texts.get(2))
        else:
            parts.append(field)
    if entries:
        for key, text in change(entries).items():
            both = (
                message_field(number, each.encode(errors=ODD_BYTES)) for number, each in ((1, key), (2, text))
            )
            parts.append(message_field(_EXTERNAL_DATA, b"".join(both)))
    return b"".join(parts)


def _text(value: memoryview | None) -> str:
    return "" if value is None else str(value, "utf-8", ODD_BYTES)


def fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """Number and bytes of every field of a message, and its contents where it has a length. Raises LoadFailed."""
    position = 0
    while position < len(data):
        start = position
        key, position = varint(data, position)
        wire, value = key & 7, None
        if wire == _LENGTH:
            length, position = varint(data, position)
            value = data[position : position + length]
            position += length
        elif wire == 0:
            _, position = varint(data, position)
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise LoadFailed("the packed graph is not an ONNX file")
        if position > len(data):
            raise LoadFailed("the packed graph ends early")
        yield key >> 3, data[start:position], value


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """The number at ``position``, and where what follows it begins. Raises LoadFailed."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise LoadFailed("the packed graph is not an ONNX file")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def message_field(number: int, value: bytes) -> bytes:
    """A field of a message, with contents."""
    return encode_varint(number << 3 | _LENGTH) + encode_varint(len(value)) + value
