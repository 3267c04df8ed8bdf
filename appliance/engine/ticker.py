"""The engine's asyncio shell: at most one turn per loop iteration, one timer. Decides nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Ticker:
    """Runs ``turn`` on ``loop`` when woken or when the timer is due. Owner: the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn: Callable[[], None] | None = None
        self._awake = False
        self._timers: list[tuple[int, asyncio.TimerHandle]] = []

    def attach(self, turn: Callable[[], None]) -> None:
        """Name the function to run; wishes before this are kept."""
        self._turn = turn
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
        self._awake = False
        if self._turn is not None:
            self._turn()
