"""How a package lies in its file: an uncompressed tar of which every byte but the contents is determined.

Members in order: ``manifest.json``; ``signature.json`` where there is one; then ``blobs/DIGEST``, each content once, in
the order of the manifest; then two blocks of zeros and nothing after them. The headers are POSIX ones (PAX above
8 GiB) of regular files, mode 0444, owner 0, time 0. So a reader need not judge headers: they are what is written
here, or the file is refused.

The same contents give the same bytes, wherever and whenever they are written. A file appears under its name when it is
complete and on the disk; contents are summed while they are copied, so that one that changed after its digest was taken
fails the writing.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, Protocol

from appliance.domain.digest import Digester
from appliance.domain.errors import PackageInvalid, Problem
from appliance.domain.manifest import FileEntry, Manifest
from appliance.domain.manifest_codec import MANIFEST_BYTES_MAX, encode
from appliance.durable import sync_name

BLOCK_BYTES: Final = 512
CHUNK_BYTES: Final = 1 << 20
MANIFEST_NAME: Final = "manifest.json"
SIGNATURE_NAME: Final = "signature.json"
BLOB_DIRECTORY: Final = "blobs/"
END: Final = bytes(2 * BLOCK_BYTES)
SIGNATURE_BYTES_MAX: Final = MANIFEST_BYTES_MAX // 3 * 4 + (1 << 20)

_MODE: Final = 0o444
_KINDS: Final[Mapping[bytes, str]] = MappingProxyType(
    {
        b"0": "a file",
        b"\0": "a file",
        b"1": "a hard link",
        b"2": "a symbolic link",
        b"3": "a device",
        b"4": "a device",
        b"5": "a directory",
        b"6": "a named pipe",
        b"7": "a contiguous file",
        b"x": "an extended header",
        b"g": "a global header",
        b"L": "a long name",
        b"K": "a long link",
        b"S": "a sparse file",
    }
)


class Stream(Protocol):
    """Bytes from front to back."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes, none at the end."""


OpenBlob = Callable[[FileEntry], AbstractContextManager[Stream]]
Progress = Callable[[int], None]


def header(name: str, size: int) -> bytes:
    """The header blocks of a member."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = _MODE
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def padding(size: int) -> int:
    """Bytes of zeros after a content of ``size`` bytes."""
    return -size % BLOCK_BYTES


def blob_name(digest: str) -> str:
    """The member's name of a content."""
    return BLOB_DIRECTORY + digest


def member_bytes(name: str, size: int) -> int:
    """What a member takes in the file, with its header and padding."""
    return len(header(name, size)) + size + padding(size)


def container_bytes(manifest: Manifest, manifest_size: int, signature_size: int | None) -> int:
    """The size of the whole file; ``signature_size`` None: it has no signature."""
    sizes = [member_bytes(MANIFEST_NAME, manifest_size)]
    if signature_size is not None:
        sizes.append(member_bytes(SIGNATURE_NAME, signature_size))
    sizes += [member_bytes(blob_name(entry.digest), entry.size) for entry in manifest.blobs]
    return sum(sizes) + len(END)


def blob_places(manifest: Manifest, manifest_size: int, signature_size: int | None) -> Mapping[str, int]:
    """Where in the file each content begins, by digest."""
    position = member_bytes(MANIFEST_NAME, manifest_size)
    if signature_size is not None:
        position += member_bytes(SIGNATURE_NAME, signature_size)
    places: dict[str, int] = {}
    for entry in manifest.blobs:
        name = blob_name(entry.digest)
        places[entry.digest] = position + len(header(name, entry.size))
        position += member_bytes(name, entry.size)
    return places


def announced_size(block: bytes, name: str, limit: int) -> int | None:
    """The size in a header block, if that is the header of a member ``name`` of at most ``limit`` bytes."""
    digits = block[124:135]
    if not (len(block) == BLOCK_BYTES and digits.isdigit() and all(48 <= digit < 56 for digit in digits)):
        return None
    size = int(digits, 8)
    return size if size <= limit and block == header(name, size) else None


def described(block: bytes) -> str:
    """A header block in words, for the error that tells of it where another one should be."""
    if len(block) < BLOCK_BYTES:
        return "the end of the file"
    if not any(block):
        return "the end of the archive"
    if block[257:262] != b"ustar":
        return "something that is no tar header"
    name = block[:100].rstrip(b"\0").decode("utf-8", "backslashreplace")
    return f"{_KINDS.get(block[156:157], 'something unknown')} called {name!r}"


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
        sync_name(target)
    except BaseException:
        if draft:
            os.unlink(draft)
        raise


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
