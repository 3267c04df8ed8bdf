"""Values that a person types or keeps in a file, turned into tensors of the wire. Pure but for reading the file.

numpy reads .npy files and is loaded only for them.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan, prod
from pathlib import Path
from typing import Any

from appliance.cli.failure import CommandFailed
from appliance.cli.numbers import natural
from appliance.domain.errors import system_reason
from appliance.domain.tensor import FREE, Datatype, TensorSpec, encode_bytes, numbers, split_bytes

_NAMED_SHAPE = re.compile(r"(.+)=([0-9,]+)")
_INTEGERS = frozenset("BHIQbhiq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Values in row-major order: numbers, booleans or bytes. ``shape`` [] is one value. ``note`` tells whoever gave
    them what was changed of them, "" where nothing was."""

    values: Sequence[Any]
    shape: tuple[int, ...]
    note: str = ""


def parse_values(text: str) -> Array:
    """Values as typed: JSON (a value or nested lists), else words between commas."""
    try:
        parsed = json.loads(text)
    except ValueError:
        if text.lstrip().startswith(("[", "{")):
            raise CommandFailed(f"'{text}' looks like JSON but is not") from None
        parsed = [_word(word.strip()) for word in text.split(",")]
    shape = tuple(_shape(parsed, text))
    values = list(_flat(parsed))
    if len(values) != prod(shape):
        raise CommandFailed(f"the lists in '{text}' are not all of the same length")
    return Array(values=values, shape=shape)


def read_npy(path: Path) -> Array:
    """A .npy file of numbers, booleans or texts; nothing that would run code is read from it."""
    import numpy

    try:
        array = numpy.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"'{path}' cannot be read as a .npy file: {system_reason(error)}") from error
    if not isinstance(array, numpy.ndarray):
        raise CommandFailed(f"'{path}' holds several arrays; save one with numpy.save")
    return plain_array(array, f"'{path}' holds {array.dtype}")


def plain_array(array: Any, what: str) -> Array:
    """The numpy array as plain values; ``what`` it is begins the sentence about one that cannot be sent."""
    if array.dtype.kind not in "biufSU":
        raise CommandFailed(f"{what}, which has no datatype of the wire")
    return Array(values=array.ravel().tolist(), shape=array.shape)


def zeros(shape: Sequence[int], datatype: Datatype) -> Array:
    """Zeros, or empty texts, of ``shape``; free dimensions become 1, which is told of others than the first, the
    batch."""
    fixed = tuple(1 if dimension < 0 else dimension for dimension in shape)
    free = FREE in shape[1:]
    note = f"its zeros are of shape {list(fixed)}, where it takes {list(shape)}; --shape makes them larger"
    values = [b"" if datatype is Datatype.BYTES else 0] * prod(fixed)
    return Array(values=values, shape=fixed, note=note if free else "")


def add_shapes(parser: argparse.ArgumentParser, about: str) -> None:
    """Declare sizes for free dimensions; ``about`` is the help."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=named_shape,
        metavar="INPUT=D1,D2",
        help=f"{about}; may be repeated",
    )


def named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The type of an argument INPUT=D1,D2."""
    match = _NAMED_SHAPE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is no shape such as INPUT=3,224,224")
    return match[1], tuple(map(natural(0), match[2].split(",")))


def narrowed(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """The input with its free dimensions as ``shape`` has them, in which that of the batch may be left out. Raises
    CommandFailed."""
    for full in (shape, (1, *shape)):
        if len(full) == len(spec.shape) and all(
            want in (FREE, have) for want, have in zip(spec.shape, full, strict=True)
        ):
            return replace(spec, shape=full)
    raise CommandFailed(
        f"input '{spec.name}' takes shape {list(spec.shape)} (-1 is any size); --shape {list(shape)} does not fit it"
    )


def fit_shape(array: Array, wanted: Sequence[int], name: str) -> tuple[int, ...]:
    """The full shape in which ``array`` goes into an input of shape ``wanted`` (-1: free): as it is, with a leading
    1 as its batch, or flat values poured into the one shape that they fill."""
    for shape in (array.shape, (1, *array.shape)):
        if len(shape) == len(wanted) and all(w in (-1, s) for s, w in zip(shape, wanted, strict=True)):
            return shape
    poured = _poured(len(array.values), wanted) if len(array.shape) <= 1 else None
    if poured is None:
        raise CommandFailed(
            f"input '{name}' takes shape {list(wanted)} (-1 is any size); {list(array.shape)} does not fit into it"
        )
    return poured


def encode(array: Array, datatype: Datatype, name: str) -> bytes:
    """The raw bytes of ``array`` as ``datatype``; raises CommandFailed for a value that it cannot hold."""
    try:
        if datatype is Datatype.BYTES:
            return encode_bytes(_as_bytes(value) for value in array.values)
        if datatype is Datatype.BF16:
            return b"".join(_bf16(float(value)) for value in array.values)
        plain = [_number(value, datatype) for value in array.values]
        return struct.pack(f"<{len(plain)}{datatype.code}", *plain)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise CommandFailed(f"input '{name}' is {datatype.wire}: {error}") from error


def decode(raw: bytes, datatype: Datatype) -> Sequence[Any]:
    """Values of raw bytes; BYTES as text, with escapes where they are not UTF-8."""
    if datatype is Datatype.BYTES:
        return [
            bytes(element).decode("utf-8", "backslashreplace") for element in split_bytes(memoryview(raw))
        ]
    return numbers(raw, datatype, len(raw) // datatype.size)


def nested(values: Sequence[Any], shape: Sequence[int]) -> Any:
    """Row-major ``values`` as lists in lists."""
    if not shape:
        return values[0]
    if len(shape) == 1:
        return list(values)
    step = prod(shape[1:])
    return [nested(values[row * step : (row + 1) * step], shape[1:]) for row in range(shape[0])]


def _word(word: str) -> object:
    try:
        return json.loads(word)
    except ValueError:
        return word


def _shape(parsed: object, text: str) -> Iterator[int]:
    while isinstance(parsed, list):
        yield len(parsed)
        if not parsed:
            return
        parsed = parsed[0]
    if isinstance(parsed, dict) or parsed is None:
        raise CommandFailed(f"'{text}' must hold numbers, booleans or texts")


def _flat(parsed: object) -> Iterator[object]:
    if isinstance(parsed, list):
        for element in parsed:
            yield from _flat(element)
    else:
        yield parsed


def _poured(count: int, wanted: Sequence[int]) -> tuple[int, ...] | None:
    """``wanted`` with its free dimensions filled so that it holds ``count`` values: a leading one is the batch when the
    rest is fixed, else it is 1 and at most one other may be free."""
    for shape in (tuple(wanted), (1, *wanted[1:]) if wanted and wanted[0] == -1 else tuple(wanted)):
        fixed = prod(dimension for dimension in shape if dimension >= 0)
        free = shape.count(-1)
        if free == 0 and fixed == count:
            return shape
        if free == 1 and fixed and count % fixed == 0:
            return tuple(count // fixed if dimension < 0 else dimension for dimension in shape)
    return None


def _number(value: object, datatype: Datatype) -> int | float | bool:
    if isinstance(value, (str, bytes)):
        raise ValueError(f"'{value!s}' is not a number")
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    if datatype is Datatype.BOOL:
        if value not in (0, 1):
            raise ValueError(f"{value} is neither true nor false")
        return bool(value)
    if datatype.code in _INTEGERS and value != int(value):
        raise ValueError(f"{value} is not an integer")
    return int(value) if datatype.code in _INTEGERS else float(value)


def _as_bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _bf16(value: float) -> bytes:
    """Rounded to the nearest, ties to even; NaN stays NaN."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if not isnan(value):
        bits += 0x7FFF + ((bits >> 16) & 1)
    return struct.pack("<H", min(bits >> 16, 0xFFFF))
