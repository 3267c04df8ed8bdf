"""The C library's heap, of which it keeps what was freed."""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM: Final = ctypes.CDLL(None).malloc_trim
_TRIM.argtypes = (ctypes.c_size_t,)


def trim_heap() -> None:
    """Give memory back to the system that the allocator has but nothing uses."""
    _TRIM(0)
