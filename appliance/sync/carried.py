"""Streams that a bundle brought: the directory on the box that they lie in until the agent takes them over.

Its layout is that of a bundle, ``streams/DIGEST`` and ``indexes/DIGEST``. A file has its name when it is whole and on
the disk. Handing over is a change of name, so nothing is there twice; the spool verifies what it gets, as ever.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.durable import Bytes, Folder, ensure_directory, remove_file
from appliance.fleet.documents import Transfer
from appliance.store.layout import FLEET

CARRIED: Final = "carried"
STREAMS: Final = "streams"
INDEXES: Final = "indexes"
SPOOL: Final = "spool"
_WRITABLE: Final = 0o600
"""The spool goes on writing to what it has."""
_ARRIVING: Final = "arriving"


def spool_of(state: Path) -> Path:
    """Where streams lie that came to the box with this state directory."""
    return state / FLEET / SPOOL


class Carried:
    """What was carried here, below ``folder``, the agent's own."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def has(self, path: str, size: int) -> bool:
        """Whether the stream or index at ``path`` of a bundle is here."""
        found = self._folder.status(f"{CARRIED}/{path}")
        return found is not None and found.is_file and found.size == size

    def check_room(self, files: Iterable[tuple[str, int]]) -> None:
        """Raise OSError unless the disk has room for all of these, by path and size, that are not here yet: before any
        of them takes some."""
        needed = sum(size for path, size in files if not self.has(path, size))
        if needed > (free := self._folder.free_bytes()):
            raise OSError(errno.ENOSPC, f"what the bundle brings takes {needed} bytes, and {free} are free")

    def put(self, path: str, chunks: Iterable[Bytes]) -> None:
        """Have the contents there for good. Raises OSError, and what ``chunks`` raises; then nothing is there."""
        for place in (CARRIED, f"{CARRIED}/{STREAMS}", f"{CARRIED}/{INDEXES}"):
            ensure_directory(self._folder, place)
        draft = f"{CARRIED}/{_ARRIVING}"
        remove_file(self._folder, draft)
        try:
            with self._folder.create(draft, _WRITABLE) as file:
                for chunk in chunks:
                    file.write(chunk)
                file.sync()
            self._folder.rename(draft, f"{CARRIED}/{path}")
        except BaseException:
            with suppress(OSError):
                remove_file(self._folder, draft)
            raise
        self._folder.sync_directory(f"{CARRIED}/{path}".rpartition("/")[0])

    def ready(self, ways: Iterable[Transfer]) -> tuple[Transfer, ...]:
        """Those of ``ways`` whose stream and index are both here, each stream once: one from a base that nothing of
        is used is the same as the one from scratch. Raises OSError."""
        streams, indexes = self._names(STREAMS), self._names(INDEXES)
        found = {way.stream: way for way in ways if way.stream in streams and way.index in indexes}
        return tuple(found.values())

    def hand_over(self, ways: Collection[Transfer]) -> int:
        """Put what is ``ready`` into the spool, and remove what no way asks for. Called by the agent while it fetches
        none of them. Gives how many streams there were. Raises OSError."""
        ready = self.ready(ways)
        for way in ready:
            ensure_directory(self._folder, SPOOL)
            self._folder.rename(_stream(way), f"{SPOOL}/{way.stream}.stream")
            self._folder.rename(_index(way), f"{SPOOL}/{way.stream}.index")
            self._folder.sync_directory(SPOOL)
        asked = {each.stream for each in ways} | {each.index for each in ways}
        for place in (STREAMS, INDEXES):
            for name in self._names(place) - asked:
                self._folder.unlink(f"{CARRIED}/{place}/{name}")
        return len(ready)

    def _names(self, place: str) -> set[str]:
        path = f"{CARRIED}/{place}"
        return set(self._folder.names(path)) if self._folder.status(path) is not None else set()


def _stream(way: Transfer) -> str:
    return f"{CARRIED}/{STREAMS}/{way.stream}"


def _index(way: Transfer) -> str:
    return f"{CARRIED}/{INDEXES}/{way.index}"
