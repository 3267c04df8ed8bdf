"""Bytes by their digests: packages, streams, indexes. ``BlobStore`` is a port; here they lie in a directory."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from appliance.domain.digest import Digester, is_digest
from appliance.durable import Bytes, make_own_directory, sync_name

CHUNK_BYTES: Final = 1 << 20


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
