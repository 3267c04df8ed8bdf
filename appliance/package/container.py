"""How a package lies in its file: an uncompressed tar of which every byte but the contents is determined.

Members in order: ``manifest.json``; ``signature.json`` where there is one; then ``blobs/DIGEST``, each content once, in
the order of the manifest; then two blocks of zeros and nothing after them. The headers are POSIX ones (PAX above
8 GiB) of regular files, mode 0444, owner 0, time 0. So a reader need not judge headers: they are what is written
here, or the file is refused. Pure.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from appliance.domain.manifest import Manifest
from appliance.domain.manifest_codec import MANIFEST_BYTES_MAX

BLOCK_BYTES: Final = 512
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
