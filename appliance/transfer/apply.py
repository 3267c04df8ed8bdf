"""Make a package of a stream and of what is installed: ``python -m appliance.transfer.apply STREAM PACKAGE BLOBS``.

A process of its own, so that the agent need not load what it takes, and so that a stream that breaks it costs nothing.
One section is in memory at a time, and nothing is written where the disk has no room for all: a stream of a few bytes
may come to any number of them. The package is as it was before the stream was made of it, byte for byte; what is
wrong with its contents is found here by their digests, and again when it is installed.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from appliance.domain.digest import is_digest
from appliance.domain.errors import PackageInvalid
from appliance.domain.manifest import FileEntry
from appliance.package.container import container_bytes, replacing, write_package
from appliance.transfer.planes import add, from_planes
from appliance.transfer.stream import (
    REFUSED,
    SECTION_BYTES_MAX,
    Content,
    Kind,
    Section,
    invalid,
    read_header,
    unpacked,
)

OpenBase = Callable[[str], AbstractContextManager[BinaryIO]]


def free_bytes(folder: Path) -> int:
    """What may still be written there. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def apply(stream: Path, package: Path, open_base: OpenBase, free: Callable[[Path], int] = free_bytes) -> None:
    """Write ``package``, whole or not at all, as ``stream`` says; ``open_base`` opens a content that is installed, by
    its digest, ``free`` tells the room in a folder. Raises StreamInvalid, PackageInvalid and OSError."""
    with stream.open("rb") as file, ExitStack() as stack:
        header, manifest = read_header(file, os.fstat(file.fileno()).st_size)
        needed = container_bytes(manifest, len(header.manifest), len(header.signatures) or None)
        if needed > (room := free(package.parent)):
            text = f"the package takes {needed} bytes while it is made, and {room} are free"
            raise OSError(errno.ENOSPC, text)
        sources = [stack.enter_context(_opened(base, open_base)) for base in header.bases]
        contents = {content.digest: content for content in header.contents}

        @contextmanager
        def opened(entry: FileEntry) -> Iterator[_Made]:
            yield _Made(contents[entry.digest], file, sources)

        with replacing(package) as out:
            try:
                write_package(out, manifest, header.signatures or None, opened)
            except PackageInvalid as error:
                raise invalid("does not come to what its manifest says") from error


@contextmanager
def _opened(base: Content, open_base: OpenBase) -> Iterator[BinaryIO]:
    with open_base(base.digest) as file:
        if os.fstat(file.fileno()).st_size != base.size:
            raise invalid("is for a base of another size")
        yield file


class _Made:
    """The bytes of one content, made as they are read, section by section."""

    def __init__(self, content: Content, payload: BinaryIO, sources: list[BinaryIO]) -> None:
        self._pieces = _pieces(content, payload, sources)
        self._rest: memoryview = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes, none at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        found, self._rest = self._rest[:size], self._rest[size:]
        return bytes(found)


def _pieces(content: Content, payload: BinaryIO, sources: list[BinaryIO]) -> Iterator[bytes]:
    for section in content.sections:
        if section.kind is Kind.COPY:
            for at in range(0, section.length, SECTION_BYTES_MAX):
                length = min(SECTION_BYTES_MAX, section.length - at)
                yield _exactly(sources[section.base], section.offset + at, length)
        elif section.length:
            yield _made(section, _next(payload, section.stored), sources)


def _made(section: Section, data: bytes, sources: list[BinaryIO]) -> bytes:
    if section.kind is Kind.RAW:
        return data
    plain = unpacked(data, section.length)
    if section.kind is Kind.ZSTD:
        return plain
    elements = from_planes(plain, section.width)
    if section.kind is Kind.PLANES:
        return elements
    return add(elements, _exactly(sources[section.base], section.offset, section.length), section.width)


def _next(payload: BinaryIO, length: int) -> bytes:
    data = payload.read(length)
    if len(data) != length:
        raise invalid("ends too early")
    return data


def _exactly(source: BinaryIO, offset: int, length: int) -> bytes:
    data = os.pread(source.fileno(), length, offset)
    if len(data) != length:
        raise invalid("takes bytes from beyond the end of its base")
    return data


def blobs_in(folder: Path) -> OpenBase:
    """The contents that lie in a store's folder of blobs."""

    @contextmanager
    def opened(digest: str) -> Iterator[BinaryIO]:
        assert is_digest(digest)
        descriptor = os.open(folder / digest[:2] / digest, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            yield file

    return opened


def main(words: list[str]) -> int:
    """Do it for a parent process."""
    stream, package, blobs = map(Path, words)
    try:
        apply(stream, package, blobs_in(blobs))
    except PackageInvalid as error:
        print(error)
        return REFUSED
    except OSError as error:
        print(error.strerror or error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
