"""The I/O class of a thread, as the kernel has it."""

from __future__ import annotations

import ctypes
import platform

from appliance.process.priority import IOPRIO_WHO_PROCESS

IOPRIO_NORMAL = 0
IOPRIO_GET = {"x86_64": 252, "aarch64": 31, "riscv64": 31}


def io_class(thread: int = 0) -> int:
    """Class and level of a thread; IOPRIO_NORMAL where it cannot be asked."""
    number = IOPRIO_GET.get(platform.machine())
    if number is None:
        return IOPRIO_NORMAL
    found: int = ctypes.CDLL(None).syscall(number, IOPRIO_WHO_PROCESS, thread)
    return max(found, IOPRIO_NORMAL)
