"""The nudge: a thread in the idle class offers its processor anew every fraction of a millisecond.

Nothing of the idle class should hold up what is done for somebody, but Linux lets it. Say the door works, and wakes a
thread that is let onto the processor at once. When that one sleeps, the door had just more than its share, so that
EEVDF's choice falls on the one thread that had less, the yielding one, and nobody asks again before the next tick:
up to 4 ms with HZ=250 (seen in scheduler traces of loads, Linux 6.18). So a timer of the kernel's interrupts the
yielding thread with a signal whose handler is ``sched_yield`` itself: by then the door has waited long enough to be
chosen. A swap of 500 MB takes an eighth longer for it (docs/BENCHMARKS.md).

A thread that sleeps is woken as well, so one that waits for another says so (``resting``). Calls of the kernel go on
after the signal, but for those that never do (``poll``, ``usleep``): only code that takes an early end of these for
what it is may run nudged, as Python, the C++ library and ONNX Runtime do. Linux only.
"""

from __future__ import annotations

import ctypes
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NUDGE_NS: Final = 250_000
"""How long a choice that is wrong may last."""

_SIGNAL: Final = signal.SIGRTMAX
_CLOCK_MONOTONIC: Final = 1
_SIGEV_THREAD_ID: Final = 4
_EVENT: Final = struct.Struct("=Qiii44x")
"""The kernel's ``struct sigevent``: value, signal, how, thread."""
_PERIOD: Final = struct.Struct("=qqqq")
"""Its ``struct itimerspec``: the period, then the first time; seconds and nanoseconds."""


def be_nudged() -> None:
    """Have the calling thread nudged until it ends. Where that cannot be had, nothing happens."""
    _own.nudge = _Nudge()


@contextmanager
def resting() -> Iterator[None]:
    """The calling thread waits: until it goes on it is not nudged."""
    nudged = getattr(_own, "nudge", None) is not None
    _own.nudge = None
    try:
        yield
    finally:
        if nudged:
            be_nudged()


class _Nudge:
    """A timer that is gone with the last reference to this, which a thread holds in its thread-local storage."""

    def __init__(self) -> None:
        self._timer: ctypes.c_void_p | None = None
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "timer_create"):  # a C library before glibc 2.34
            return
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal.restype = ctypes.c_void_p
        # The C library's asks for SA_RESTART. Python's would only take a note, which the main thread reads.
        libc.signal(_SIGNAL, ctypes.cast(libc.sched_yield, ctypes.c_void_p))
        event = _EVENT.pack(0, _SIGNAL, _SIGEV_THREAD_ID, threading.get_native_id())
        timer = ctypes.c_void_p()
        if libc.timer_create(_CLOCK_MONOTONIC, event, ctypes.byref(timer)):
            return
        self._timer = timer
        libc.timer_settime(timer, 0, _PERIOD.pack(0, NUDGE_NS, 0, NUDGE_NS), None)

    def __del__(self) -> None:
        if self._timer is not None:
            ctypes.CDLL(None).timer_delete(self._timer)


_own: Final = threading.local()
