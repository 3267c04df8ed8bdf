"""Bytes of tensors in a form that compresses: differences of whole numbers, then the planes of their bytes.

Weights of a fine-tuned model differ little from those before: read as whole numbers and subtracted, what is left is
small, its sign folded into the lowest bit, and the planes of its upper bytes are almost empty. Byte planes are the
transposition known from bitshuffle and Blosc. The only module here that knows numpy; the daemon and the agent do not
import it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from appliance.transfer.stream import SECTION_BYTES_MAX

_UNSIGNED: Final[dict[int, Any]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
WIDTHS: Final = frozenset(_UNSIGNED)


def planes(data: bytes | memoryview, width: int) -> bytes:
    """The lowest bytes of all elements of ``width`` bytes, then the next, and so on. The length of ``data`` is a
    multiple of ``width``."""
    return _transposed(np.frombuffer(data, np.uint8).reshape(-1, width))


def from_planes(data: bytes | memoryview, width: int) -> bytes:
    """What ``planes`` was given."""
    return _transposed(np.frombuffer(data, np.uint8).reshape(width, -1))


def subtract(data: bytes | memoryview, base: bytes | memoryview, width: int) -> bytes:
    """Elements less those of ``base``, modulo 2^(8 width), with the sign in the lowest bit. Of equal lengths."""
    kind = _UNSIGNED[width]
    difference = np.frombuffer(data, kind) - np.frombuffer(base, kind)
    negative = difference >> kind(8 * width - 1)
    folded: NDArray[Any] = (difference << kind(1)) ^ (kind(0) - negative)
    return folded.tobytes()


def add(data: bytes | memoryview, base: bytes | memoryview, width: int) -> bytes:
    """What ``subtract`` was given, from what it gave."""
    kind = _UNSIGNED[width]
    folded = np.frombuffer(data, kind)
    difference = folded >> kind(1)
    difference ^= kind(0) - (folded & kind(1))
    difference += np.frombuffer(base, kind)
    result: bytes = difference.tobytes()
    return result


def _transposed(array: NDArray[np.uint8]) -> bytes:
    assert array.nbytes <= SECTION_BYTES_MAX
    return np.ascontiguousarray(array.T).tobytes()
