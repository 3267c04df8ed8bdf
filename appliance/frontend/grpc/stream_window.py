"""What of one stream may be under way: so many requests, and no more while their messages are so many bytes.

A request is under way from when its message was read until its answer was written.
"""

from __future__ import annotations

import asyncio


class StreamWindow:
    """At most ``requests``, and none beyond those that have ``nbytes`` together. Owner: the event loop's thread."""

    def __init__(self, requests: int, nbytes: int) -> None:
        self._requests = requests
        self._nbytes = nbytes
        self._released = asyncio.Event()

    async def opened(self) -> None:
        """Wait until one more may be read."""
        while self._requests <= 0 or self._nbytes <= 0:
            await self.released()

    def take(self, nbytes: int) -> None:
        """A request whose message has ``nbytes`` is under way."""
        self._requests -= 1
        self._nbytes -= nbytes

    def release(self, nbytes: int) -> None:
        """It is no longer."""
        self._requests += 1
        self._nbytes += nbytes
        self._released.set()

    async def released(self) -> None:
        """Wait until the next one is under way no longer."""
        self._released.clear()
        await self._released.wait()
