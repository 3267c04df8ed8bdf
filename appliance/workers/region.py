"""Memory regions of a worker: the mapped arena, and scratch memory of its own that grows."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from appliance.runtimes.runtime import Region

SCRATCH_FIRST_BYTES: Final = 64 << 10


def region_of(memory: mmap.mmap) -> Region:
    """The region that a writable mapping is. The mapping can no longer be closed."""
    return Region(memoryview(memory), ctypes.addressof(ctypes.c_ubyte.from_buffer(memory)))


class Scratch:
    """Private memory, page-aligned, replaced by a larger one when asked for more."""

    def __init__(self) -> None:
        self._region: Region | None = None

    def at_least(self, nbytes: int) -> Region:
        """A region of ``nbytes`` bytes or more; earlier contents may be gone."""
        if self._region is None or len(self._region.view) < nbytes:
            size = max(SCRATCH_FIRST_BYTES, 1 << (nbytes - 1).bit_length() if nbytes else 0)
            self._region = region_of(mmap.mmap(-1, size))
        return self._region

    def holds(self, nbytes: int) -> bool:
        """Whether ``at_least`` would give the memory that is there."""
        return self._region is not None and len(self._region.view) >= nbytes

    def drop_beyond(self, nbytes: int) -> None:
        """Give the memory back when it is larger than ``nbytes``."""
        if self._region is not None and len(self._region.view) > nbytes:
            self._region = None
