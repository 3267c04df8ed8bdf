"""The interpreter's memory, kept out of the requests' way: room in its heap, and its collector of cycles.

Tables with a bound, such as the history and the timers of versions that are watched, grow with the first thousand swaps
of a day. Their memory is taken at the start: what serves asks the system for none, and what is left behind by a change
can be told from what only filled up.

What requests leave behind is freed without the collector, but for tracebacks, so it comes seldom by itself. Versions
that come and go leave more: cycles of the libraries' own, and above all the interpreter's lists of spare tuples, which
grow by some with every version, up to 2,000 of each length (5 MB), and which only a full collection empties. So that
one is made a moment after versions have changed, when no request waits for this process. Owner: the event loop's
thread.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

RESERVE_BYTES: Final = 2 << 20
"""What a thousand swaps add to the tables takes a quarter of this; the rest is for what each has for a while."""

_HALF_ARENA_BITS: Final = 19
"""Of the address: wherever an arena of 1 MiB begins, it has one such block as a whole."""
_PIECE: Final = 400
"""Bytes of one piece: arenas are for objects of at most 512 bytes, header and all."""

THRESHOLDS: Final = (10_000, 20, 500)
"""Net allocations, and collections of the younger generation, before a collection of each of the three. A full one
walks all that is queued (14 ms with 20,000 requests): it is left for when hundreds of the others found it worth
while."""
PAUSE_S: Final = 2.0
"""From a change until the collection, and until it is tried again while requests are under way."""


def reserve(nbytes: int) -> list[bytes]:
    """Have the allocator take ``nbytes`` of arenas from the system and keep them, empty but for the objects that this
    gives: one at least in each arena of 1 MiB (CPython 3.10 and later), so that none goes back while they are kept.
    With another allocator there is less of an effect, or none."""
    pieces = [bytes(_PIECE) for _ in range(nbytes // _PIECE)]
    kept = {id(piece) >> _HALF_ARENA_BITS: piece for piece in pieces}
    return list(kept.values())


class Collector:
    """``at_work`` tells whether requests are under way that this process has a part in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, at_work: Callable[[], bool]) -> None:
        self._loop = loop
        self._at_work = at_work
        self._timer: asyncio.TimerHandle | None = None

    def calm(self) -> None:
        """What lives now lives for ever and is not walked again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)

    def changed(self) -> None:
        """Versions came or went."""
        if self._timer is None:
            self._timer = self._loop.call_later(PAUSE_S, self._collect)

    def _collect(self) -> None:
        self._timer = None
        if self._at_work():
            self.changed()
        else:
            gc.collect()

    def close(self) -> None:
        """Collect no more."""
        if self._timer is not None:
            self._timer.cancel()
