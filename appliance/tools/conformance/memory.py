"""Memory for one run as a worker has it: a region with the inputs in it, and a place for the outputs."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from appliance.domain.tensor import aligned
from appliance.runtimes.runtime import Feed, Place, Produced, Region, Session
from appliance.workers.child.tensors import region_of

Array = NDArray[Any]
REGION_BYTES: Final = 64 << 10
FIRST_INPUT: Final = 64
FIRST_OUTPUT: Final = 128
"""Not at the start: a runtime that forgets an offset writes to the wrong place."""
UNTOUCHED: Final = 0xEE


def any_floats(rows: int, columns: int, seed: int = 5) -> NDArray[np.float32]:
    """An array in which every bit pattern of FP32 may occur, infinities and NaNs too."""
    raw = np.random.default_rng(seed).bytes(4 * rows * columns)
    return np.frombuffer(raw, np.float32).reshape(rows, columns)


class Memory:
    """A source region with arrays in it (None: an optional input that is left out) and a place for outputs."""

    def __init__(self, *arrays: Array | None, capacity: int = 4096) -> None:
        self.source: Region = region_of(mmap.mmap(-1, REGION_BYTES))
        self.place = Place(region_of(mmap.mmap(-1, REGION_BYTES)), FIRST_OUTPUT, capacity)
        feeds: list[Feed | None] = []
        position = FIRST_INPUT
        for array in arrays:
            if array is None:
                feeds.append(None)
                continue
            self.source.view[position : position + array.nbytes] = array.tobytes()
            feeds.append(Feed(array.shape, position, array.nbytes))
            position += aligned(array.nbytes)
        self.feeds = tuple(feeds)

    def run(self, session: Session, wanted: tuple[int, ...]) -> Produced:
        """Run once."""
        return session.run(self.source, self.feeds, wanted, self.place)

    def prepared(self, session: Session, wanted: tuple[int, ...]) -> Callable[[], None] | None:
        """Ask for the last run, made ready."""
        return session.prepared(self.source, self.feeds, wanted, self.place)

    def put(self, *arrays: Array) -> None:
        """Have other values in place of the first ones."""
        for feed, array in zip(self.feeds, arrays, strict=True):
            assert feed is not None
            self.source.view[feed.offset : feed.offset + feed.nbytes] = array.tobytes()

    def outputs(self, produced: Produced) -> list[bytes]:
        """Give the bytes that were produced, wherever they are."""
        if produced.parts is not None:
            return [bytes(part) for part in produced.parts]
        return self.in_place(produced.sizes)

    def in_place(self, sizes: Sequence[int]) -> list[bytes]:
        """Give the bytes of tensors that lie one after the other in the place."""
        found, position = [], self.place.offset
        for size in sizes:
            found.append(bytes(self.place.region.view[position : position + size]))
            position += aligned(size)
        return found

    def mark(self) -> None:
        """Fill the outputs' region with what no run leaves there."""
        self.place.region.view[:] = bytes([UNTOUCHED]) * len(self.place.region.view)

    def spoilt(self) -> int | None:
        """Give the offset of a byte that was written beyond the place since ``mark``; None when there is none."""
        start, end = self.place.offset, self.place.offset + self.place.capacity
        view = np.frombuffer(self.place.region.view, np.uint8)
        wrong = [int(at) for at in np.flatnonzero(view != UNTOUCHED) if not start <= at < end]
        return wrong[0] if wrong else None
