"""The turns of the event loop, shared out among work that is done in steps: one step per turn, each client in turn, its
own steps in the order in which they were asked for. So what one sends costs itself time, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Final

from appliance.domain.steps import Steps, T

CLIENT: Final = ContextVar("client", default="")
"""For whom a task works, as quotas tell clients apart."""


class Turns:
    """Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By client, those first whose turn comes first; while there are any the next turn is under way."""

    async def next(self) -> None:
        """Wait until it is the caller's turn for one step."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._give)
        self._waiting.setdefault(CLIENT.get(), deque()).append(turn)
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
        """Give this turn to the client that waits longest, and the next one to the next."""
        waiting = self._waiting
        given = False
        while waiting and not given:
            client = next(iter(waiting))
            turns = waiting.pop(client)
            while turns and not given:
                turn = turns.popleft()
                if given := not turn.done():  # else its client went
                    turn.set_result(None)
            if turns:
                waiting[client] = turns
        if waiting:
            asyncio.get_running_loop().call_soon(self._give)
