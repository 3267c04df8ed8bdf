"""A shared memory object that tensors lie in: one for each group of workers, which map it and no other.

Sparse: a page costs memory only once it was touched. It cannot be resized through its descriptor, so nobody who has
that makes another's reads fault. Owner: the arena.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class MemoryObject:
    """An object of ``size`` bytes behind descriptor ``fd``, mapped here. ``number`` was never another's. The arena
    counts the ``workers`` that it is shared with, and the ``slots`` that are used in it. Raises OSError."""

    __slots__ = ("_map", "_view", "fd", "group", "number", "slots", "workers")

    def __init__(self, number: int, group: int, size: int) -> None:
        self.number = number
        self.group = group
        self.workers = self.slots = 0
        self.fd = -1
        self.fd = os.memfd_create("appliance-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, size)
        except OSError:
            self._close()
            raise
        self._view = memoryview(self._map)

    def __del__(self) -> None:
        self._close()

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Writable bytes; both ends must lie inside one slot of the caller's."""
        return self._view[offset : offset + nbytes]

    def discard(self, offset: int, nbytes: int) -> None:
        """Give whole pages back to the kernel."""
        self._map.madvise(mmap.MADV_REMOVE, offset, nbytes)

    def close(self) -> None:
        """Let go of it. Views that are still alive keep the mapping until they go."""
        self._close()
        try:
            self._view.release()
            self._map.close()
        except BufferError:
            pass  # a view is still held; the mapping ends with it

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
