"""Reading tensors from the safetensors format: a length, a JSON header, then raw little-endian data.

Nothing in the file is believed before it is checked: the header's size, every tensor's datatype, shape and byte range.
Only FP32 and INT64 are read, which is what the imported models hold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LENGTH_BYTES: Final = 8
HEADER_BYTES_MAX: Final = 1 << 20
DATATYPES: Final[Mapping[str, str]] = {"F32": "<f4", "I64": "<i8"}

Tensors = Mapping[str, NDArray[Any]]


class SafetensorsError(ValueError):
    """The bytes are not a safetensors file that can be read; the message says where it breaks."""


def read_tensors(content: bytes) -> Tensors:
    """Name to read-only array over `content`, without a copy. Raises SafetensorsError."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    if not 0 < length <= HEADER_BYTES_MAX or start > len(content):
        raise SafetensorsError(f"header of {length} bytes does not fit a file of {len(content)} bytes")
    try:
        header = json.loads(content[LENGTH_BYTES:start])
    except ValueError as problem:
        raise SafetensorsError(f"header is not JSON: {problem}") from problem
    if not isinstance(header, dict):
        raise SafetensorsError("header is not a JSON object")
    data = memoryview(content)[start:]
    return {name: _tensor(name, entry, data) for name, entry in header.items() if name != "__metadata__"}


def _tensor(name: str, entry: Any, data: memoryview) -> NDArray[Any]:
    try:
        datatype = np.dtype(DATATYPES[entry["dtype"]])
        shape = tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as problem:
        raise SafetensorsError(f"tensor {name!r} has an entry that cannot be read: {entry!r}") from problem
    bytes_wanted = math.prod(shape) * datatype.itemsize
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(data) or end - begin != bytes_wanted:
        raise SafetensorsError(f"tensor {name!r} of shape {shape} cannot lie in bytes {begin} to {end}")
    return np.frombuffer(data[begin:end], datatype).reshape(shape)
