"""Processor and I/O class of a single thread, and how long its turns are: what is done for nobody yields to whatever is
done for somebody, and what takes long to what is done in a moment.

An unprivileged thread cannot come back from SCHED_IDLE, and every thread that it starts is born into the same classes:
SCHED_RESET_ON_FORK resets real-time classes and negative nice values, not this one (``sched_fork`` of the kernel). So
what yields is a thread made for it by one that does not. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from appliance.process.calls import call

IOPRIO_WHO_PROCESS: Final = 1
IOPRIO_CLASS_SHIFT: Final = 13
IOPRIO_IDLE: Final = 3 << IOPRIO_CLASS_SHIFT

_MACHINE: Final = platform.machine()
_CALLS: Final[Mapping[str, int]] = MappingProxyType({"x86_64": 251, "aarch64": 30, "riscv64": 30})
"""Number of ioprio_set, which the C library has no function for."""

_TURN_CALLS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
)
"""Numbers of sched_setattr and sched_getattr, of which the same holds."""
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""The first version of the kernel's ``struct sched_attr``: size, policy, flags, nice, priority, runtime, deadline,
period; nanoseconds."""
_AttributesMemory: Final = ctypes.c_char * _ATTRIBUTES.size
"""A type, made once: that costs a worker more than the calls."""
SHORT_TURN_NS: Final = 100_000
"""The shortest turn that the kernel grants."""
USUAL_TURN_NS: Final = 0


def take_turns(turn_ns: int, thread: int = 0) -> None:
    """Ask for turns of this length on the processor for a thread, by default the calling one, and those that it starts.

    A thread that asks for a shorter turn than the one that runs is let onto the processor at once when it wakes, and
    otherwise waits up to the end of that turn (EEVDF with PREEMPT_SHORT, Linux 6.12). All shares stay as they are.
    An older kernel takes no notice."""
    known = _attributes(thread)
    if known is not None:
        _, policy, _, nice, priority, *_ = known
        asked = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, priority, turn_ns, 0, 0)
        with suppress(OSError):
            call(_TURN_CALLS[_MACHINE][0], thread, asked, 0)


def turn_ns(thread: int = 0) -> int:
    """How long the turns of a thread are; 0 where the kernel does not say."""
    known = _attributes(thread)
    return 0 if known is None else known[5]


def _attributes(thread: int) -> tuple[int, ...] | None:
    numbers = _TURN_CALLS.get(_MACHINE)
    if numbers is None:
        return None
    known = _AttributesMemory()
    try:
        call(numbers[1], thread, known, _ATTRIBUTES.size, 0)
    except OSError:
        return None
    return _ATTRIBUTES.unpack(known.raw)


def yield_processor() -> None:
    """Put the calling thread into SCHED_IDLE. A kernel that refuses leaves it as it is."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def yield_disk() -> None:
    """Put the calling thread into the idle I/O class; reads of others go first where the disk's scheduler knows it."""
    number = _CALLS.get(_MACHINE)
    if number is not None:
        with suppress(OSError):
            call(number, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE)
