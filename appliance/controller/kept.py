"""What a look found, told for a while: whoever asks often, or with many at once, costs no more than one look now and
then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """See the module. ``look``, which blocks, is given the time; what it found is told for ``fresh_ms`` from its begin
    on, also that it failed. One at a time, and none while nobody asks. Owner: the event loop."""

    def __init__(self, look: Callable[[int], T], fresh_ms: int) -> None:
        self._look = look
        self._fresh_ms = fresh_ms
        self._began_ms = 0
        self._task: asyncio.Task[T] | None = None

    def age_ms(self, now_ms: int) -> int:
        """How long ago the last look began; below 0 where the clock went back."""
        return now_ms - self._began_ms

    def asked(self, now_ms: int) -> asyncio.Task[T]:
        """The look that goes on, or is not too old, or else a new one: it is of all who asked, so who waits shields
        it."""
        if self._task is None or (self._task.done() and not 0 <= self.age_ms(now_ms) < self._fresh_ms):
            self._began_ms = now_ms
            self._task = asyncio.create_task(asyncio.to_thread(self._look, now_ms))
            self._task.add_done_callback(_seen)
        return self._task


def _seen(task: asyncio.Task[Any]) -> None:
    """Have no complaint written where a look failed for which nobody waits any more."""
    if not task.cancelled():
        task.exception()
