"""When the daemon ends, and how its parts are closed: each of them, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Protocol


class EventLog(Protocol):
    """Where it is told."""

    def event(self, what: str, **fields: object) -> None:
        """Write a line."""


class Shutdown:
    """``stop`` is set when the daemon is to end, ``hurry`` when it is not to wait for anything any more; ``failed``
    says that a part broke, and only a new start can be trusted."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._asked = 0
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.failed = False

    def asked(self) -> None:
        """Stop, as a signal asks for; the second one cuts the grace short."""
        self._asked += 1
        if self._asked > 1:
            self.hurry.set()
        self.stop.set()

    def failed_part(self, part: str, error: BaseException) -> None:
        """Stop because nothing that ``part`` holds can be trusted: it broke its own rules, or lost its thread."""
        self._log.event(f"{part} failed; stopping", error="".join(traceback.format_exception(error)))
        self.failed = True
        self.stop.set()

    async def step(self, what: str, close: Callable[[], Awaitable[None] | None]) -> None:
        """Take a step on the way out. What fails is told, shows in the exit status, and keeps nothing from its end."""
        try:
            done = close()
            if done is not None:
                await done
        except Exception as error:  # noqa: BLE001  whatever it is, the others are still to be closed
            self.failed_part(what, error)


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until one of ``events`` is set or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
