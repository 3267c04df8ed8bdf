"""The engine's asyncio shell: when to take a turn. Decides nothing about requests.

A turn costs two wake-ups of another process whether it carries one request or ten. So a turn waits while each loop
iteration still brings new requests, at most ``PATIENCE`` iterations: a lone request pays one empty iteration (a few
microseconds), a busy door gets its requests into batches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


PATIENCE = 8


class Ticker:
    """Runs ``turn`` on ``loop`` when woken or when the timer is due; ``arrivals`` counts requests so far. Owner: the
    loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn: Callable[[], None] | None = None
        self._arrivals: Callable[[], int] = lambda: 0
        self._seen = 0
        self._waited = 0
        self._awake = False
        self._timers: list[tuple[int, asyncio.TimerHandle]] = []

    def attach(self, turn: Callable[[], None], arrivals: Callable[[], int]) -> None:
        """Name the function to run and the count of requests so far."""
        self._turn = turn
        self._arrivals = arrivals
        self._awake = False
        self.wake()

    def wake(self) -> None:
        """Run a turn in the next loop iteration."""
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._run)

    def set_timer(self, at_ns: int) -> None:
        """Run a turn at ``at_ns`` (monotonic) at the latest."""
        if any(due <= at_ns for due, _ in self._timers):
            return
        delay_s = max(0.0, (at_ns - time.monotonic_ns()) / 1e9)
        self._timers.append((at_ns, self._loop.call_later(delay_s, self._fire, at_ns)))

    def _fire(self, at_ns: int) -> None:
        self._timers = [(due, handle) for due, handle in self._timers if due != at_ns]
        self.wake()

    def _run(self) -> None:
        seen = self._arrivals()
        if seen != self._seen and self._waited < PATIENCE:
            self._seen = seen
            self._waited += 1
            self._loop.call_soon(self._run)
            return
        self._waited = 0
        self._awake = False
        if self._turn is not None:
            self._turn()
