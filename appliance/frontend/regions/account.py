"""What one user has: counts that any thread may give back to, whatever it was doing when something went."""

from __future__ import annotations

from collections import deque
from functools import partial
from weakref import finalize

from appliance.domain.errors import QueueFull
from appliance.frontend.regions.region import File
from appliance.frontend.regions.writer import Scratch, Writer


class Held:
    """How many are taken, and their bytes. ``take``, ``count`` and ``nbytes`` are the event loop's thread's; what was
    given back counts when that looks next."""

    __slots__ = ("_count", "_given", "_nbytes")

    def __init__(self) -> None:
        self._count = self._nbytes = 0
        self._given = deque[int]()

    def take(self, nbytes: int) -> None:
        """One more, of ``nbytes``."""
        self._count += 1
        self._nbytes += nbytes

    def give(self, nbytes: int) -> None:
        """One less. By any thread, and at any point of it: nothing here is locked."""
        self._given.append(nbytes)

    @property
    def count(self) -> int:
        """How many there are."""
        self._look()
        return self._count

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        self._look()
        return self._nbytes

    def _look(self) -> None:
        while self._given:
            self._count -= 1
            self._nbytes -= self._given.popleft()


class _Copy(bytearray):
    """Strings of a region; unlike a plain one it can be told when it goes."""

    __slots__ = ("__weakref__",)


class Copies:
    """The strings of one user that were copied out of regions and are not in a slot yet: requests of a stream may wait
    for one. They have ``most`` bytes at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = Held()

    def take(self, nbytes: int) -> memoryview:
        """Memory for a copy, which counts until nobody holds it. Raises QueueFull."""
        held = self._held.nbytes
        if held + nbytes > self._most:
            raise QueueFull(
                f"Exceeds maximum queue size: strings copied from shared memory hold {held} of {self._most} bytes"
            )
        copy = _Copy(nbytes)
        self._held.take(nbytes)
        finalize(copy, self._held.give, nbytes).atexit = False
        return memoryview(copy)


class Account:
    """What one user has: open regions, with those that only requests use any more, and their bytes; open files, with
    those that are still to be closed; copies of strings; and the thread that writes and closes."""

    __slots__ = ("copies", "files", "regions", "writer")

    def __init__(self, copies_bytes: int) -> None:
        self.regions = Held()
        self.files = Held()
        self.copies = Copies(copies_bytes)
        self.writer = Writer()

    def close(self, file: File) -> None:
        """Have a file closed. By any thread."""
        self.writer.do(partial(_close, self.files, file))

    def let_go(self, file: File, nbytes: int) -> None:
        """Nobody has a region of ``nbytes`` any more. By any thread."""
        self.regions.give(nbytes)
        self.close(file)


def _close(files: Held, file: File, _: Scratch) -> None:
    try:
        file.close()
    finally:
        files.give(0)
