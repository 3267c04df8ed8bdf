"""A timer of the kernel that wakes an event loop to the microsecond: the timers of loops have milliseconds.

Python before 3.13 does not know the kernel's (``timerfd``), so they are asked for in the C library. Linux only.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from time import CLOCK_MONOTONIC
from typing import Final

SECOND_NS: Final = 1_000_000_000
_TIMER: Final = Struct("qqqq")
"""The C library's ``struct itimerspec`` where its words have eight bytes: seconds and nanoseconds of a period, and of a
time."""
_ABSOLUTE: Final = 1
_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
_CREATE: Final = _LIBRARY.timerfd_create
_SET: Final = _LIBRARY.timerfd_settime
_SET.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Alarm:
    """Calls ``ring`` on ``loop``, once for each time that was set and came. Owner: the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        """Raises OSError where the process may open no more files."""
        self._loop = loop
        self._ring = ring
        self._timer = _done(_CREATE(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        loop.add_reader(self._timer, self._rang)

    def set(self, at_ns: int) -> None:
        """Ring at ``at_ns`` (monotonic) or, if that is over, at once; and not when it was to ring before."""
        at_ns = max(at_ns, 1)  # zero would be never
        _done(_SET(self._timer, _ABSOLUTE, _TIMER.pack(0, 0, at_ns // SECOND_NS, at_ns % SECOND_NS), None))

    def close(self) -> None:
        """Ring no more."""
        self._loop.remove_reader(self._timer)
        os.close(self._timer)

    def _rang(self) -> None:
        with suppress(BlockingIOError):  # it was set anew since
            os.read(self._timer, 8)
            self._ring()


def _done(result: int) -> int:
    if result == -1:
        failure = ctypes.get_errno()
        raise OSError(failure, os.strerror(failure))
    return result
