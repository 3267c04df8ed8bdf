"""System calls that the C library has no functions for."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: Any) -> int:
    """Do a system call; integers are passed in full width. Raises OSError."""
    full = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *full))
    if result == -1:
        failure = ctypes.get_errno()
        raise OSError(failure, os.strerror(failure))
    return result


def prctl(option: int, *arguments: int) -> int:
    """Do one of the operations on the own process that go by that name. Raises OSError."""
    full = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)][:4]
    result = int(_LIBC.prctl(option, *full))
    if result == -1:
        failure = ctypes.get_errno()
        raise OSError(failure, f"prctl({option}): {os.strerror(failure)}")
    return result
