"""Tensors as the wire describes them: datatypes, shapes, checked sizes, BYTES encoding.

Values only. numpy is not needed here, so the daemon need not import it. Raw tensors are little-endian, row-major and
unpadded; a BYTES element is a uint32 length followed by that many bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from appliance.domain.errors import InvalidRequest

MAX_RANK = 8
MAX_BYTES = 1 << 62
FREE = -1
ALIGNMENT = 64
"""Tensors that follow each other in memory begin at multiples of so many bytes."""

_LENGTH = struct.Struct("<I")


class Datatype(Enum):
    """A datatype of the wire: name, bytes per element (0 for BYTES), number in ``model_config.proto``,
    ``struct`` format of one element ("" where the wire has only the raw form)."""

    BOOL = ("BOOL", 1, 1, "?")
    UINT8 = ("UINT8", 1, 2, "B")
    UINT16 = ("UINT16", 2, 3, "H")
    UINT32 = ("UINT32", 4, 4, "I")
    UINT64 = ("UINT64", 8, 5, "Q")
    INT8 = ("INT8", 1, 6, "b")
    INT16 = ("INT16", 2, 7, "h")
    INT32 = ("INT32", 4, 8, "i")
    INT64 = ("INT64", 8, 9, "q")
    FP16 = ("FP16", 2, 10, "e")
    FP32 = ("FP32", 4, 11, "f")
    FP64 = ("FP64", 8, 12, "d")
    BYTES = ("BYTES", 0, 13, "")
    BF16 = ("BF16", 2, 14, "")

    def __init__(self, wire: str, size: int, number: int, code: str) -> None:
        self.wire = wire
        self.size = size
        self.number = number
        self.code = code

    @property
    def config_name(self) -> str:
        """Name in ``model_config.proto``, e.g. ``TYPE_FP32`` (BYTES is ``TYPE_STRING`` there)."""
        return "TYPE_STRING" if self is Datatype.BYTES else f"TYPE_{self.wire}"


FLOATS = frozenset({Datatype.FP16, Datatype.FP32, Datatype.FP64, Datatype.BF16})


def parse_datatype(wire: str) -> Datatype:
    """The datatype named ``wire``; raises InvalidRequest for a name the protocol does not have."""
    try:
        return Datatype[wire]
    except KeyError:
        raise InvalidRequest(
            f"unknown datatype '{wire}'; expected one of {', '.join(Datatype.__members__)}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """An input or output of a model. ``shape`` excludes the batch dimension of a batchable model; -1 is a free
    dimension. ``optional`` inputs have a default inside the model."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    optional: bool = False


def element_count(shape: Sequence[int]) -> int:
    """Product of the dimensions (1 for rank 0). Raises InvalidRequest when a dimension is negative, the rank is above
    MAX_RANK or the product does not fit in 63 bits."""
    if len(shape) > MAX_RANK:
        raise InvalidRequest(f"shape has rank {len(shape)}; at most {MAX_RANK} dimensions are supported")
    count = 1
    empty = False
    for dimension in shape:
        if dimension < 0:
            raise InvalidRequest(f"shape {list(shape)} has a negative dimension")
        if dimension == 0:
            empty = True
        else:
            count *= dimension
            if count > MAX_BYTES:
                raise InvalidRequest(f"shape {list(shape)} describes more elements than can be addressed")
    return 0 if empty else count


def byte_size(datatype: Datatype, shape: Sequence[int]) -> int:
    """Bytes of a raw tensor of fixed-size elements; raises InvalidRequest like element_count."""
    size = element_count(shape) * datatype.size
    if size > MAX_BYTES:
        raise InvalidRequest(f"shape {list(shape)} describes more bytes than can be addressed")
    return size


def encode_bytes(elements: Iterable[bytes | memoryview]) -> bytes:
    """BYTES tensor in its raw form."""
    parts: list[bytes | memoryview] = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def split_bytes(raw: memoryview) -> Iterator[memoryview]:
    """Elements of a raw BYTES tensor in row-major order; raises InvalidRequest where it is cut short."""
    position, end = 0, len(raw)
    while position < end:
        if position + 4 > end:
            raise InvalidRequest(f"incomplete string length indicator at byte {position} of {end}")
        (length,) = _LENGTH.unpack_from(raw, position)
        position += 4
        if position + length > end:
            raise InvalidRequest(
                f"incomplete string data at byte {position}: {length} bytes announced, {end - position} left"
            )
        yield raw[position : position + length]
        position += length


def numbers(raw: memoryview | bytes, datatype: Datatype, count: int) -> Sequence[float]:
    """The values of ``count`` raw elements of a datatype other than BYTES."""
    if datatype is not Datatype.BF16:
        return struct.unpack(f"<{count}{datatype.code}", raw)
    halves = struct.unpack(f"<{count}H", raw)
    return struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves)))


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to the next multiple of ALIGNMENT."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT
