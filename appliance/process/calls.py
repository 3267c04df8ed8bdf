"""System calls that the C library has no functions for, and those for which it has one that Python does not know.

The functions are typed once, by the process that forks the workers: to look one up anew costs each of them more than
the call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Final

ARGUMENTS: Final = 6
CONTROL_ARGUMENTS: Final = 4


def _typed(name: str, kind: Any, more: int) -> Callable[..., int]:
    """Give a function of the C library that takes one of ``kind`` and then integers in full width, or memory."""
    function = ctypes.CDLL(None, use_errno=True)[name]
    function.argtypes = (kind, *(ctypes.c_void_p,) * more)
    function.restype = kind
    typed: Callable[..., int] = function
    return typed


_SYSCALL: Final = _typed("syscall", ctypes.c_long, ARGUMENTS)
_PRCTL: Final = _typed("prctl", ctypes.c_int, CONTROL_ARGUMENTS)


def call(number: int, *arguments: Any) -> int:
    """Do a system call. Raises OSError."""
    return _done(_SYSCALL(number, *arguments, *(0,) * (ARGUMENTS - len(arguments))), "")


def prctl(option: int, *arguments: int | bytes) -> int:
    """Do one of the operations on the own process that go by that name. Raises OSError."""
    padding = (0,) * (CONTROL_ARGUMENTS - len(arguments))
    return _done(_PRCTL(option, *arguments, *padding), f"prctl({option}): ")


def _done(result: int, what: str) -> int:
    if result == -1:
        failure = ctypes.get_errno()
        raise OSError(failure, f"{what}{os.strerror(failure)}")
    return result
