"""Processor and I/O class of a single thread: what is done for nobody yields to whatever is done for somebody.

An unprivileged thread cannot come back from SCHED_IDLE, so a thread is made for each thing that is to be done in the
background; threads that it starts are normal again (SCHED_RESET_ON_FORK), but for their I/O class, which is inherited.
Linux only.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

IOPRIO_WHO_PROCESS: Final = 1
IOPRIO_CLASS_SHIFT: Final = 13
IOPRIO_NORMAL: Final = 0
IOPRIO_IDLE: Final = 3 << IOPRIO_CLASS_SHIFT

_CALLS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"x86_64": (251, 252), "aarch64": (30, 31), "riscv64": (30, 31)}
)
"""Numbers of ioprio_set and ioprio_get, which the C library has no functions for."""


def yield_processor() -> None:
    """Put the calling thread into SCHED_IDLE, for good. A kernel that refuses leaves it as it is."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def yield_disk() -> None:
    """Put the calling thread into the idle I/O class; reads of others go first where the disk's scheduler knows it."""
    _set_io_class(0, IOPRIO_IDLE)


def restore_disk(thread: int = 0) -> None:
    """Put a thread of this process, by default the calling one, into the normal I/O class."""
    _set_io_class(thread, IOPRIO_NORMAL)


def io_class(thread: int = 0) -> int:
    """The I/O class and level of a thread as the kernel has it; IOPRIO_NORMAL where it cannot be asked."""
    numbers = _CALLS.get(platform.machine())
    if numbers is None:
        return IOPRIO_NORMAL
    found: int = _libc().syscall(numbers[1], IOPRIO_WHO_PROCESS, thread)
    return max(found, IOPRIO_NORMAL)


def _set_io_class(thread: int, value: int) -> None:
    numbers = _CALLS.get(platform.machine())
    if numbers is not None:
        _libc().syscall(numbers[0], IOPRIO_WHO_PROCESS, thread, value)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
