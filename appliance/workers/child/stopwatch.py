"""How long a thread takes for something, less the time in which it could have run and others had the processor.

So a version can be measured while it yields to all else, and what is found is what its runs take, not what else ran
meanwhile. What it sleeps or waits for a device counts. Where the kernel does not tell the waits, they count as well.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

WAITS: Final = "/proc/thread-self/schedstat"
"""Nanoseconds on a processor, nanoseconds in wait of one, how often it got one (kernel, sched-stats.rst)."""
LINE_BYTES_MAX: Final = 128


class Stopwatch:
    """Belongs to the thread that makes it, for the time of its ``with``."""

    def __init__(self) -> None:
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.open(WAITS, os.O_RDONLY | os.O_CLOEXEC)
        self._waited_ns = self._begin_ns = 0

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def start(self) -> None:
        """Begin; what was begun before is forgotten."""
        self._waited_ns = self._waits_ns()
        self._begin_ns = time.monotonic_ns()

    def stop(self) -> int:
        """Nanoseconds since ``start``, waits not counted; at least 1."""
        passed_ns = time.monotonic_ns() - self._begin_ns
        return max(passed_ns - (self._waits_ns() - self._waited_ns), 1)

    def _waits_ns(self) -> int:
        return int(os.pread(self._descriptor, LINE_BYTES_MAX, 0).split()[1]) if self._descriptor >= 0 else 0
