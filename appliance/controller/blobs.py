"""Bytes by their digests: packages, streams, indexes. ``BlobStore`` is a port; here they lie in a directory.

Who takes blobs has them before a row of the database names them, and who reads them found their names there: both do so
within ``kept``, and nothing is removed meanwhile. That is a lock of the kernel on the directory, shared by as many as
like, also by other processes, and given back by it however they end; who removes has it alone, or does not begin.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from appliance.domain.digest import Digester, is_digest
from appliance.durable import Bytes, make_own_directory, sync_name

CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """Blobs that were removed, and their bytes together; ``error``: what kept more of them from it, "" for nothing."""

    blobs: int = 0
    bytes: int = 0
    error: str = ""


class BlobStore(Protocol):
    """See the module. All raise OSError."""

    def draft(self) -> Path:
        """The path of a new file, for bytes that are to become a blob; forgotten at the next start."""

    def take(self, draft: Path) -> str:
        """Have the file's bytes as a blob, for good; gives its digest. The draft is gone then."""

    def size(self, digest: str) -> int | None:
        """Its bytes; None: it is not there."""

    def chunks(self, digest: str) -> Iterable[Bytes]:
        """Its contents."""

    def path(self, digest: str) -> Path:
        """A file with its contents, to read."""

    def kept(self) -> AbstractContextManager[None]:
        """Within it no blob is removed, by any process; what waits for a removal to end waits here."""

    def reclaim(self, unneeded: Callable[[frozenset[str]], Iterable[str]]) -> Reclaimed | None:
        """Remove those of which ``unneeded`` says so, given all that there are; None: they are kept now, and it was not
        asked. Who reads one that is open gets the rest of it. A kill leaves each there whole, or not at all."""


class DirectoryBlobs:
    """Implements BlobStore in ``folder``, which is made if need be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for each in (folder, folder / "drafts"):
            make_own_directory(each)

    def forget_drafts(self) -> None:
        """Remove what a controller that ended left half written: for the one that begins, and holds the lock."""
        shutil.rmtree(self._folder / "drafts")
        make_own_directory(self._folder / "drafts")

    def draft(self) -> Path:
        """See BlobStore."""
        return self._folder / "drafts" / secrets.token_hex(16)

    def take(self, draft: Path) -> str:
        """See BlobStore."""
        digester = Digester(pieces=False)
        with draft.open("rb", buffering=0) as file:
            while data := file.read(CHUNK_BYTES):
                digester.update(data)
            os.fsync(file.fileno())
        digest = digester.finish().digest
        target = self.path(digest)
        make_own_directory(target.parent)
        draft.rename(target)
        sync_name(target)
        sync_name(target.parent)
        return digest

    def size(self, digest: str) -> int | None:
        """See BlobStore."""
        with suppress(FileNotFoundError):
            return self.path(digest).stat().st_size
        return None

    def chunks(self, digest: str) -> Iterable[Bytes]:
        """See BlobStore."""
        with self.path(digest).open("rb", buffering=0) as file:
            while data := file.read(CHUNK_BYTES):
                yield data

    def path(self, digest: str) -> Path:
        """See BlobStore."""
        if not is_digest(digest):
            raise FileNotFoundError(f"'{digest[:80]}' is no digest")
        return self._folder / digest[:2] / digest

    @contextmanager
    def kept(self) -> Iterator[None]:
        """See BlobStore."""
        with self._locked(fcntl.LOCK_SH):
            yield

    def reclaim(self, unneeded: Callable[[frozenset[str]], Iterable[str]]) -> Reclaimed | None:
        """See BlobStore."""
        try:
            with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                return self._remove(unneeded(frozenset(self._digests())))
        except BlockingIOError:
            return None

    def _remove(self, digests: Iterable[str]) -> Reclaimed:
        """What cannot be removed is passed over: it keeps no room taken that the others can give."""
        blobs, count, problem = 0, 0, ""
        for digest in digests:
            path = self.path(digest)
            try:
                size = path.stat().st_size
                path.unlink()
            except OSError as error:
                problem = f"'{path}': {error.strerror or error}"
            else:
                blobs, count = blobs + 1, count + size
        return Reclaimed(blobs=blobs, bytes=count, error=problem)

    def _digests(self) -> Iterator[str]:
        """All blobs; what somebody else put into the directory is none."""
        for above in self._folder.iterdir():
            if len(above.name) == 2 and above.is_dir() and not above.is_symlink():
                with os.scandir(above) as entries:
                    names = [each.name for each in entries if each.is_file(follow_symlinks=False)]
                yield from (name for name in names if name[:2] == above.name and is_digest(name))

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """The directory itself is what is locked: there is no file that could belong to somebody else."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, how)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} (flock)", str(self._folder)) from error
            yield
        finally:
            os.close(descriptor)


def is_intact(store: BlobStore, digest: str) -> bool:
    """Whether the blob is there and its bytes are those that its name says. Reads all of it."""
    digester = Digester(pieces=False)
    with suppress(OSError):
        for chunk in store.chunks(digest):
            digester.update(chunk)
        return digester.finish().digest == digest
    return False


def write_blob(store: BlobStore, write: Callable[[Path], object]) -> str:
    """Have what ``write`` writes to the path that it is given as a blob. Raises what it raises, and OSError."""
    draft = store.draft()
    try:
        write(draft)
        return store.take(draft)
    finally:
        draft.unlink(missing_ok=True)
