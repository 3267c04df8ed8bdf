"""Tensors as JSON arrays, both ways, without numpy.

Pure. A request may send an array flat or nested; an answer is flat. FP16 and BF16 have no JSON form. NaN and
infinity, for which JSON has no number, are the strings "NaN", "Infinity" and "-Infinity", as in protobuf's
JSON form: numpy and the protocol's Python clients turn them back into numbers by themselves.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from appliance.domain.errors import InvalidRequest
from appliance.domain.steps import Steps
from appliance.domain.tensor import Datatype, encode_bytes, split_bytes
from appliance.frontend.http.json_document import MAX_NESTING

PIECE_ELEMENTS: Final = 2_048
"""Elements turned into text at once: well under a millisecond."""
PIECE_BYTES: Final = 64 * 1024
"""Bytes of BYTES elements turned into text at once, but for a single one that is larger."""

RAW_ONLY: Final = frozenset({Datatype.FP16, Datatype.BF16})
_FLOATS: Final = frozenset({Datatype.FP32, Datatype.FP64})
_LONGEST: Final[Mapping[Datatype, int]] = MappingProxyType(
    {
        Datatype.BOOL: len("false,"),
        Datatype.UINT8: len("255,"),
        Datatype.UINT16: len("65535,"),
        Datatype.UINT32: len("4294967295,"),
        Datatype.UINT64: len("18446744073709551615,"),
        Datatype.INT8: len("-128,"),
        Datatype.INT16: len("-32768,"),
        Datatype.INT32: len("-2147483648,"),
        Datatype.INT64: len("-9223372036854775808,"),
        Datatype.FP32: len("-2.2250738585072014e-308,"),
        Datatype.FP64: len("-2.2250738585072014e-308,"),
    }
)
"""Characters that an element takes at most, with its comma."""
_NOT_FINITE: Final[Mapping[str, float]] = MappingProxyType(
    {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
)


def raw_from_json(data: object, datatype: Datatype, elements: int, name: str) -> Steps[bytes | memoryview]:
    """The raw wire bytes of input ``name`` given as JSON ``data``. Raises InvalidRequest for the wrong number
    of elements, a value of the wrong kind or one that does not fit the datatype."""
    if datatype in RAW_ONLY:
        raise InvalidRequest(
            f"input '{name}' is {datatype.wire}, which has no JSON form; send it as binary tensor data "
            "('binary_data_size')"
        )
    flat = yield from _flatten(data, name)
    if len(flat) != elements:
        raise InvalidRequest(
            f"Unable to parse 'data': shape does not match true shape of 'data' field of input '{name}': "
            f"{elements} elements expected, {len(flat)} given"
        )
    return (yield from _packed(flat, datatype, name))


def json_pieces(datatype: Datatype, raw: bytes, name: str) -> Iterator[str]:
    """The elements of a raw tensor as JSON text without the brackets, in pieces that each take well under a
    millisecond; joined by commas they are the array. Raises InvalidRequest when the datatype or the content
    has no JSON form."""
    if datatype in RAW_ONLY:
        raise InvalidRequest(
            f"output '{name}' is {datatype.wire}, which has no JSON form; ask for binary tensor data "
            "('binary_data' of the output, or 'binary_data_output' of the request)"
        )
    if datatype is Datatype.BYTES:
        yield from _text_pieces(raw, name)
        return
    width = PIECE_ELEMENTS * datatype.size
    for start in range(0, len(raw), width):
        piece = raw[start : start + width]
        values: Sequence[Any] = struct.unpack(f"<{len(piece) // datatype.size}{datatype.code}", piece)
        yield _dump(values)


def longest_text(datatype: Datatype, nbytes: int) -> int:
    """More characters than the JSON text of ``nbytes`` raw bytes has, as a rule: that of BYTES may be up to six
    times as long, where they are control characters."""
    return nbytes if datatype is Datatype.BYTES else nbytes // datatype.size * _LONGEST.get(datatype, 0)


def _flatten(data: object, name: str) -> Steps[list[Any]]:
    if not isinstance(data, list):
        if isinstance(data, dict) or data is None:
            raise InvalidRequest(f"'data' of input '{name}' must be an array")
        return [data]
    level: list[Any] = data
    for _ in range(MAX_NESTING):
        if not level:
            return level
        below: list[Any] | None = [] if type(level[0]) is list else None
        for number, piece in enumerate(_pieces(level)):
            if number:
                yield
            kinds = set(map(type, piece))
            if (
                (kinds != {list} or set(map(len, piece)) != {len(level[0])})
                if below is not None
                else list in kinds
            ):
                raise InvalidRequest(
                    f"'data' of input '{name}' is ragged: arrays at one depth must have one length"
                )
            if below is not None:
                below.extend(chain.from_iterable(piece))
        if below is None:
            return level
        level = below
    raise InvalidRequest(f"'data' of input '{name}' is nested deeper than {MAX_NESTING} levels")


def _pieces(values: list[Any]) -> Iterator[list[Any]]:
    return (values[start : start + PIECE_ELEMENTS] for start in range(0, len(values), PIECE_ELEMENTS))


def _packed(flat: list[Any], datatype: Datatype, name: str) -> Steps[bytes | memoryview]:
    pack = _bytes_elements if datatype is Datatype.BYTES else partial(_packed_piece, datatype)
    if len(flat) <= PIECE_ELEMENTS:
        return pack(flat, name)
    raw = bytearray()
    for piece in _pieces(flat):
        yield
        raw += pack(piece, name)
    return memoryview(raw)


def _packed_piece(datatype: Datatype, flat: list[Any], name: str) -> bytes:
    kinds = set(map(type, flat))
    if datatype in _FLOATS and str in kinds:
        flat = [_NOT_FINITE.get(value, value) if type(value) is str else value for value in flat]
        kinds = set(map(type, flat))
    wrong = kinds - _accepted(datatype)
    if wrong:
        raise InvalidRequest(
            f"'data' of input '{name}' must hold {datatype.wire} values; found "
            + ", ".join(sorted(_spoken(kind) for kind in wrong))
        )
    if datatype is Datatype.BOOL and int in kinds and not set(flat) <= {0, 1}:
        raise InvalidRequest(f"'data' of input '{name}' must hold BOOL values: true, false, 1 or 0")
    try:
        return struct.pack(f"<{len(flat)}{datatype.code}", *flat)
    except (struct.error, OverflowError):
        raise InvalidRequest(
            f"'data' of input '{name}' holds a value outside the range of {datatype.wire}"
        ) from None


def _accepted(datatype: Datatype) -> frozenset[type]:
    if datatype is Datatype.BOOL:
        return frozenset({bool, int})
    return frozenset({int, float}) if datatype in _FLOATS else frozenset({int})


def _spoken(kind: type) -> str:
    return {
        bool: "a boolean",
        int: "an integer",
        float: "a fraction",
        str: "a string",
        dict: "an object",
    }.get(kind, "null")


def _bytes_elements(flat: list[Any], name: str) -> bytes:
    if not set(map(type, flat)) <= {str}:
        raise InvalidRequest(f"'data' of input '{name}' must hold strings")
    try:
        return encode_bytes([text.encode() for text in flat])
    except UnicodeEncodeError:
        raise InvalidRequest(f"'data' of input '{name}' holds a string that is not valid Unicode") from None


def _text_pieces(raw: bytes, name: str) -> Iterator[str]:
    texts: list[str] = []
    room = PIECE_BYTES
    try:
        for element in split_bytes(memoryview(raw)):
            texts.append(str(element, "utf-8"))
            room -= len(element)
            if len(texts) == PIECE_ELEMENTS or room < 0:
                yield _dump(texts)
                texts, room = [], PIECE_BYTES
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"output '{name}' holds bytes that are not UTF-8 text and have no JSON form; ask for binary tensor data"
        ) from None
    if texts:
        yield _dump(texts)


def _dump(values: Sequence[Any]) -> str:
    try:
        return json.dumps(values, allow_nan=False, separators=(",", ":"))[1:-1]
    except ValueError:
        return json.dumps([_finite_or_text(value) for value in values], separators=(",", ":"))[1:-1]


def _finite_or_text(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
