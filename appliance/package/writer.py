"""Write a package: the same bytes for the same contents, wherever and whenever they are written.

The file appears under its name when it is complete and on the disk, never before. Contents are summed while they are
copied, so that a file that changed after its digest was taken fails the writing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from appliance.domain.digest import Digester
from appliance.domain.errors import PackageInvalid, Problem
from appliance.domain.manifest import FileEntry, Manifest
from appliance.domain.manifest_codec import encode
from appliance.package.container import END, MANIFEST_NAME, SIGNATURE_NAME, blob_name, header, padding
from appliance.package.reader import Stream

CHUNK_BYTES: Final = 4 << 20

OpenBlob = Callable[[FileEntry], AbstractContextManager[Stream]]
Progress = Callable[[int], None]


def write_package(
    out: BinaryIO,
    manifest: Manifest,
    signatures: bytes | None,
    open_blob: OpenBlob,
    progress: Progress = lambda count: None,
) -> None:
    """Write the package to ``out``. ``open_blob`` opens the content of an entry; ``progress`` is told how many bytes
    of contents were written since it was told last. Raises PackageInvalid and OSError."""
    _member(out, MANIFEST_NAME, encode(manifest))
    if signatures is not None:
        _member(out, SIGNATURE_NAME, signatures)
    for entry in manifest.blobs:
        out.write(header(blob_name(entry.digest), entry.size))
        with open_blob(entry) as blob:
            _copy(entry, blob, out, progress)
        out.write(bytes(padding(entry.size)))
    out.write(END)


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``target`` when the block ends well, and is gone when it does not."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        os.replace(draft, target)
        draft = ""
        _sync_directory(target.parent)
    except BaseException:
        if draft:
            os.unlink(draft)
        raise


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _member(out: BinaryIO, name: str, content: bytes) -> None:
    out.write(header(name, len(content)))
    out.write(content)
    out.write(bytes(padding(len(content))))


def _copy(entry: FileEntry, blob: Stream, out: BinaryIO, progress: Progress) -> None:
    digester = Digester(pieces=False)
    while digester.size <= entry.size and (data := blob.read(CHUNK_BYTES)):
        digester.update(data)
        out.write(data)
        progress(len(data))
    if digester.size != entry.size or digester.finish().digest != entry.digest:
        text = "changed while it was packed; put files in place by renaming them"
        raise PackageInvalid([Problem(file=entry.path, key="", text=text)])
