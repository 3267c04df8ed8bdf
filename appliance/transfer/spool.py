"""Streams that came, whole or in part, as files: what is here survives kills and reboots, what is verified is counted.

A file grows from front to back. Bytes are written as they come, those of a piece that is not whole as well, so a kill
costs what was on its way. Each piece is verified when it is whole; a wrong one is cut off. After a restart all of them
are verified again by reading: the disk is believed no more than a source. One owner: the agent, which holds its lock.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from appliance.domain.digest import is_digest
from appliance.durable import make_own_directory, sync_name
from appliance.fleet.documents import Transfer
from appliance.transfer.pieces import PIECE_BYTES, Index, index_bytes

_STREAM: Final = ".stream"
_INDEX: Final = ".index"


class Spool:
    """See the module. ``folder`` is made if need be. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_own_directory(folder)
        self._verified: dict[str, int] = {}
        """Bytes in whole, right pieces, by stream, of those that were looked at."""

    def index(self, way: Transfer) -> bytes | None:
        """The index of the stream, if it came; who asks compares its digest. A file of another length is none, and is
        not read."""
        length = index_bytes(way.size)
        try:
            with self._path(way.stream, _INDEX).open("rb") as file:
                return file.read(length) if os.fstat(file.fileno()).st_size == length else None
        except FileNotFoundError:
            return None

    def keep_index(self, way: Transfer, data: bytes) -> None:
        """Keep the index, which was verified."""
        path = self._path(way.stream, _INDEX)
        draft = path.with_suffix(".new")
        draft.write_bytes(data)
        draft.replace(path)

    def open(self, way: Transfer, index: Index) -> Arrival:
        """The stream as far as it is here, to go on with."""
        arrival = Arrival(self._path(way.stream, _STREAM), index, self._verified.get(way.stream, 0))
        self._verified[way.stream] = arrival.verified
        return arrival

    def note(self, way: Transfer, arrival: Arrival) -> None:
        """Remember how far it came."""
        self._verified[way.stream] = arrival.verified

    def bytes(self) -> dict[str, int]:
        """How much of each stream is here, by its digest."""
        return {stream: self._verified.get(stream, size) for stream, size in bytes_in(self._folder).items()}

    def size(self, way: Transfer) -> int:
        """How much of the stream is here, right or not."""
        try:
            return self.path(way).stat().st_size
        except FileNotFoundError:
            return 0

    def path(self, way: Transfer) -> Path:
        """The file of the stream."""
        return self._path(way.stream, _STREAM)

    def stream_files(self, stream: str) -> tuple[Path, Path]:
        """Where the stream of that digest lies, and its index; neither need be there."""
        return self._path(stream, _STREAM), self._path(stream, _INDEX)

    def keep_only(self, streams: Collection[str]) -> None:
        """Remove all but the streams of these digests, and what a kill left of others."""
        for path in list(self._folder.iterdir()):
            if path.stem not in streams or path.suffix not in (_STREAM, _INDEX):
                path.unlink(missing_ok=True)
                self._verified.pop(path.stem, None)

    def whole(self) -> Iterator[str]:
        """The digests of streams whose index is here: what neighbours may be given of."""
        return (
            path.stem for path in self._folder.iterdir() if path.suffix == _INDEX and is_digest(path.stem)
        )

    def _path(self, stream: str, suffix: str) -> Path:
        assert is_digest(stream)
        return self._folder / f"{stream}{suffix}"


def bytes_in(folder: Path) -> dict[str, int]:
    """How much of each stream lies in that folder, right or not, by its digest. Raises OSError."""
    if not folder.is_dir():
        return {}
    return {
        path.stem: path.stat().st_size
        for path in folder.iterdir()
        if path.suffix == _STREAM and is_digest(path.stem)
    }


class Arrival:
    """A stream that is coming: ``verified`` bytes are in whole, right pieces from its beginning, and perhaps a part of
    the next one follows (``size``)."""

    def __init__(self, path: Path, index: Index, verified: int = 0) -> None:
        """``verified``: what was found right since the process began. Raises OSError."""
        self._index = index
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._path = path
        self.size = os.fstat(self._descriptor).st_size
        if self.size > index.size:
            os.ftruncate(self._descriptor, index.size)
            self.size = index.size
        self.verified = 0
        self._verify(min(verified, self.size) // PIECE_BYTES)

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here and right."""
        return self.verified == self._index.size

    def add(self, data: bytes) -> bool:
        """Take the next bytes, no more than the stream has; False where the piece that they end is wrong: then it is
        cut off, and comes again. Raises OSError."""
        data = data[: self._index.size - self.size]
        end = self.size + len(data)
        while self.size < end:  # a disk that is nearly full takes a part
            self.size += os.pwrite(self._descriptor, data[self.size - end :], self.size)
        self._verify(self.verified // PIECE_BYTES)
        return self.size == end

    def lift(self) -> bytes:
        """Take off what follows the whole, right pieces, and give it. Raises OSError."""
        tail = os.pread(self._descriptor, self.size - self.verified, self.verified)
        os.ftruncate(self._descriptor, self.verified)
        self.size = self.verified
        return tail

    def finish(self) -> None:
        """Have it on the disk for good. Raises OSError."""
        os.fsync(self._descriptor)
        sync_name(self._path)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _verify(self, first: int) -> None:
        """Look at whole pieces from number ``first`` on, and cut off what begins with a wrong one."""
        self.verified = first * PIECE_BYTES
        while self.verified < self._index.size:
            piece = self.verified // PIECE_BYTES
            length = self._index.length(piece)
            if self.verified + length > self.size:
                return
            if not self._index.is_right(piece, os.pread(self._descriptor, length, self.verified)):
                os.ftruncate(self._descriptor, self.verified)
                self.size = self.verified
                return
            self.verified += length
