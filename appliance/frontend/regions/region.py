"""One region, from its file's descriptor on: read where its user asks for it, written by a thread."""

from __future__ import annotations

import os
from mmap import ALLOCATIONGRANULARITY, MAP_SHARED, PROT_READ, PROT_WRITE, mmap
from typing import NamedTuple

from appliance.domain.errors import InvalidRequest
from appliance.frontend.regions.writer import Scratch


class Registered(NamedTuple):
    """A region as its user may see it: ``offset`` is where it begins in its file."""

    name: str
    key: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """Where it ends in its file."""
        return self.offset + self.nbytes


class File:
    """An open file, and its part from ``offset`` to ``end``, once that is mapped."""

    __slots__ = ("_end", "_mapping", "_offset", "descriptor")

    def __init__(self, descriptor: int, offset: int, end: int) -> None:
        self.descriptor = descriptor
        self._offset = offset
        self._end = end
        self._mapping: mmap | None = None

    def write(self, position: int, data: memoryview, scratch: Scratch) -> None:
        """Put ``data`` at ``position`` of the file. Raises OSError; ValueError where it has shrunk. By the writer's
        thread."""
        if os.fstat(self.descriptor).st_size < position + len(data):
            raise ValueError
        first = self._offset - self._offset % ALLOCATIONGRANULARITY
        if self._mapping is None:
            self._mapping = mmap(
                self.descriptor, self._end - first, MAP_SHARED, PROT_READ | PROT_WRITE, offset=first
            )
        start = position - first
        with memoryview(self._mapping) as whole, whole[start : start + len(data)] as place:
            scratch.copy(data, place)

    def close(self) -> None:
        """Give it back. By the writer's thread, too: the last to do so frees all of its memory."""
        try:
            if self._mapping is not None:
                self._mapping.close()
        finally:
            os.close(self.descriptor)


class Region:
    """An open region. Whoever uses it holds it open; its file is closed after the last of them."""

    __slots__ = ("__weakref__", "_file", "registered")

    def __init__(self, registered: Registered, file: File) -> None:
        self.registered = registered
        self._file = file

    def read_into(self, offset: int, place: memoryview) -> InvalidRequest | None:
        """Fill ``place`` with what is at ``offset``; gives why that is not possible."""
        done, start = 0, self.registered.offset + offset
        try:
            while done < len(place):
                count = os.preadv(self._file.descriptor, [place[done:]], start + done)
                if not count:
                    return self._shrunk()
                done += count
        except OSError as error:
            return self._failed("read", error)
        return None

    def write(self, offset: int, data: memoryview, scratch: Scratch) -> InvalidRequest | None:
        """Put ``data`` at ``offset``; gives why that is not possible. By the writer's thread."""
        try:
            self._file.write(self.registered.offset + offset, data, scratch)
        except ValueError:
            return self._shrunk()
        except OSError as error:
            return self._failed("written", error)
        return None

    def _shrunk(self) -> InvalidRequest:
        return InvalidRequest(
            f"shared memory region '{self.registered.name}' is smaller than when it was registered; register it anew "
            "with the size that it has"
        )

    def _failed(self, done: str, error: OSError) -> InvalidRequest:
        return InvalidRequest(
            f"shared memory region '{self.registered.name}' cannot be {done}: {error.strerror}; it has shrunk, or the "
            "machine has no memory for it"
        )
