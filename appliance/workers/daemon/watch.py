"""When the pool looks at the time, and whether this process stood still until then.

Who stands still looks late. So much of the time counts against no worker, which may have stood still as well, with the
whole machine: what takes too long is measured by how long somebody could look. Who is busy looks late, too: what this
thread computed itself is no standstill, or whoever keeps it busy would have what hangs live on. Owner: the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import thread_time
from typing import Final

INTERVAL_S: Final = 0.05
STANDSTILL_S: Final = 0.25
"""What is late by no more than this is busy: else such a one would never find out what hangs."""


class Watch:
    """Has ``look`` called, once for all who ask for it meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
        self._loop = loop
        self._look = look
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = inf
        self._computed_s = 0.0

    def ask(self) -> None:
        """Look soon."""
        if self._timer is None:
            self._due_s = self._loop.time() + INTERVAL_S
            self._computed_s = thread_time()
            self._timer = self._loop.call_at(self._due_s, self._ring)

    def cancel(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def standstill_ns(self) -> int:
        """For how long this process stood still, where that was not told before; else 0."""
        now_s, computed_s = self._loop.time(), thread_time()
        still_s = now_s - self._due_s - (computed_s - self._computed_s)
        if still_s <= STANDSTILL_S:
            return 0
        self._due_s, self._computed_s = now_s, computed_s
        return int(still_s * 1e9)

    def _ring(self) -> None:
        self._timer = None
        self._look()
        if self._timer is None:
            self._due_s = inf
