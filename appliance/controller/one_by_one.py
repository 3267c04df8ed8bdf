"""Questions that take a thread and a processor for seconds: answered one after another, so that boxes find threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from appliance.controller.bodies import Refused

AT_ONCE_MAX: Final = 8
"""Questions that are answered or wait for that."""
RETRY_S: Final = 10


class OneByOne:
    """See the module. Owner: the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._asked = 0

    async def answer(self, work: Callable[..., Any], *of: Any) -> Any:
        """What ``work`` gives. Raises Refused where too many wait."""
        if self._asked >= AT_ONCE_MAX:
            text = f"{self._asked} such questions wait already; ask again in {RETRY_S} seconds"
            raise Refused(429, "too-often", text, RETRY_S)
        self._asked += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work, *of)
        finally:
            self._asked -= 1
