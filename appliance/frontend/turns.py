"""The turns of the event loop, shared out among work that is done in steps: one step per turn, in the order in which
they were asked for, however many clients there are. So what they send costs each other time, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import deque

from appliance.domain.steps import Steps, T


class Turns:
    """Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait until it is the caller's turn for one step."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._give)
        await turn

    async def take(self, steps: Steps[T]) -> T:
        """Do all of ``steps``, and give what they come to; what is small is done at once."""
        try:
            while True:
                next(steps)
                await self.next()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()  # at once, if its client went: there may be memory to give back

    def _give(self) -> None:
        """Give this turn to whoever waits longest, and the next one to the next."""
        waiting = self._waiting
        while waiting and waiting[0].done():
            waiting.popleft()  # its client went
        if waiting:
            waiting[0].set_result(None)
            waiting.popleft()
        if waiting:
            asyncio.get_running_loop().call_soon(self._give)
