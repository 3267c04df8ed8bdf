"""Blobs: files named by the digest of their bytes. They come in whole, or not at all, and are never written to again.

A blob is written beside its place, compared with its size and its digest, synced, renamed and its directory synced. One
whose bytes are not what its name says is replaced by a new file; a process that has the old one open keeps that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from appliance.domain.digest import Digester, is_digest
from appliance.domain.errors import BlobMismatch
from appliance.durable import Bytes, Folder, NewFile, Status, ensure_directory, remove_file
from appliance.store.layout import BLOBS, INCOMING, blob_path

Progress = Callable[[int], None]
"""Told the bytes that were dealt with since it was told last."""

Chunks = Callable[[str], Iterator[Bytes]]


def unnoticed(_: int) -> None:
    """Progress that is not watched."""


class Found(NamedTuple):
    """A blob as the directory lists it."""

    size: int
    identity: tuple[int, int]


class BlobShelf:
    """The blobs of a store; one writer."""

    __slots__ = ("_folder",)

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def put(self, digest: str, size: int, pieces: Iterable[Bytes], progress: Progress = unnoticed) -> None:
        """Take in the blob ``digest``. Raises BlobMismatch when ``pieces`` are not it, and OSError; then nothing has
        changed."""
        temporary = f"{INCOMING}/{digest}"
        remove_file(self._folder, temporary)
        try:
            with self._folder.create(temporary) as file:
                _fill(file, digest, size, pieces, progress)
                file.sync()
            self._settle(temporary, digest)
        except BaseException:
            with suppress(OSError):
                remove_file(self._folder, temporary)
            raise

    def _settle(self, temporary: str, digest: str) -> None:
        home = blob_path(digest).rpartition("/")[0]
        found = self._folder.status(home)
        if found is not None and found.is_file:
            remove_file(self._folder, home)
        ensure_directory(self._folder, home)
        self._folder.rename(temporary, blob_path(digest))
        self._folder.sync_directory(home)

    def keep(self, digest: str) -> None:
        """Have the blob, which is there, there for good: the writer that renamed it may have been killed before the
        sync. The directory that it is in was synced before it came."""
        self._folder.sync_directory(blob_path(digest).rpartition("/")[0])

    def status(self, digest: str) -> Status | None:
        """What is in the blob's place."""
        return self._folder.status(blob_path(digest))

    def misfit(self, digest: str, size: int) -> str:
        """What can be seen to be wrong with a blob without reading it; "" when nothing can."""
        found = self.status(digest)
        if found is None:
            return "is missing"
        if not found.is_file:
            return "is not a file"
        return "" if found.size == size else f"has {found.size} bytes and not {size}"

    def damage(
        self, digest: str, size: int, progress: Progress = unnoticed, chunks: Chunks | None = None
    ) -> str:
        """What is wrong with a blob, all of it read; "" when nothing is. ``chunks``: another way to read a file."""
        try:
            if misfit := self.misfit(digest, size):
                return misfit
            found = Digester(pieces=False)
            for chunk in (chunks or self._folder.chunks)(blob_path(digest)):
                found.update(chunk)
                progress(len(chunk))
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"
        return "" if found.finish().digest == digest else "has other bytes than its name says"

    def listing(self) -> Mapping[str, Found]:
        """Every blob by its digest. What else lies there is left alone."""
        found: dict[str, Found] = {}
        for group in self._folder.names(BLOBS):
            home = f"{BLOBS}/{group}"
            above = self._folder.status(home)
            names = self._folder.names(home) if above is not None and above.is_directory else ()
            for name in names:
                status = self._folder.status(f"{home}/{name}")
                if status is not None and is_digest(name) and name.startswith(group) and len(group) == 2:
                    found[name] = Found(status.size, status.identity)
        return MappingProxyType(found)

    def remove(self, digest: str) -> None:
        """Take the blob's name away; not synced: a blob that comes back is garbage again."""
        remove_file(self._folder, blob_path(digest))


def _fill(file: NewFile, digest: str, size: int, pieces: Iterable[Bytes], progress: Progress) -> None:
    """Write ``pieces`` and hold them to what was announced; never more than that is written."""
    found = Digester(pieces=False)
    for piece in pieces:
        if found.size + len(piece) > size:
            raise BlobMismatch(f"blob {digest} has more than the {size} bytes that were announced")
        file.write(piece)
        found.update(piece)
        progress(len(piece))
    summed = found.finish()
    if summed.size != size:
        raise BlobMismatch(f"blob {digest} has {summed.size} bytes and not the {size} that were announced")
    if summed.digest != digest:
        raise BlobMismatch(f"blob {digest} has bytes whose digest is {summed.digest}")
    if file.size() != size:
        raise OSError(f"the file system kept {file.size()} of {size} bytes of blob {digest}")
