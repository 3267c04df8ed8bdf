"""What a burst of large requests leaves in the daemon's heap goes back to the system once it is over.

Messages are taken from the heap of the thread that reads them and freed by another one: the allocator keeps what lies
between smaller pieces, some hundred MiB after dozens of large ones at once. While they come it is right to, for pages
that are taken anew cost more than what is copied into them. Owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from appliance.process.heap import trim_heap
from appliance.process.memory import resident_of

PERIOD_S: Final = 10.0
GROWN_BYTES: Final = 32 << 20
"""By less than this the heap may grow and nothing is given back: that stops the allocator's users for milliseconds."""


class Heap:
    """``at_work`` tells whether requests are under way that this process has a part in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, at_work: Callable[[], bool]) -> None:
        self._loop = loop
        self._at_work = at_work
        self._timer: asyncio.TimerHandle | None = None
        self._least_bytes: int | None = None
        """What the process had at least since memory was given back; None: it was not looked since."""

    def watch(self) -> None:
        """Look now, and from time to time."""
        self._timer = self._loop.call_later(PERIOD_S, self.watch)
        has = resident_of(os.getpid()).anonymous
        least = self._least_bytes = has if self._least_bytes is None else min(has, self._least_bytes)
        if has - least >= GROWN_BYTES and not self._at_work():
            self._least_bytes = None
            self._loop.run_in_executor(None, trim_heap)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
