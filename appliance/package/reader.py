"""Read a package strictly, once, from front to back, wherever it came from.

Rules kept here: nothing is taken on trust - the manifest is bounded and judged before anything else is read, each
header must be the one that the manifest demands there, contents are given out as they come and their digests are
compared before the last byte is given, those of single tensors as well; nothing may follow the end. No name from the
file ever becomes a path, no more than one buffer is held, the file need not be seekable. Raises PackageInvalid and
OSError only.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from appliance.domain.digest import PIECE_BYTES, Digester, digest_of
from appliance.domain.errors import PackageInvalid, Problem
from appliance.domain.manifest import FileEntry, Manifest, TensorEntry
from appliance.domain.manifest_codec import FILE as MANIFEST_FILE
from appliance.domain.manifest_codec import MANIFEST_BYTES_MAX, decode
from appliance.package.container import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    END,
    MANIFEST_NAME,
    SIGNATURE_BYTES_MAX,
    SIGNATURE_NAME,
    Stream,
    announced_size,
    blob_name,
    container_bytes,
    described,
    header,
    padding,
)
from appliance.repository.onnx.foreign import HEAD_BYTES, foreign_format


class Blob(NamedTuple):
    """One content: its digest, its size, and its bytes, which are checked while they are read."""

    digest: str
    size: int
    stream: BlobStream


class PackageReader:
    """A package that is being read. ``blobs`` may be gone through once. ``name`` is the file in problems. One
    owner: its reader."""

    def __init__(self, stream: Stream, name: str = "package") -> None:
        self._stream = stream
        self._name = name
        self._position = 0
        self._begun = False
        block = self._block()
        size = announced_size(block, MANIFEST_NAME, MANIFEST_BYTES_MAX)
        if size is None:
            raise self.invalid(_no_package(block))
        self.manifest_bytes = self._content(size)
        self.manifest: Manifest = decode(self.manifest_bytes)
        self._next = self._block()
        signature_size = announced_size(self._next, SIGNATURE_NAME, SIGNATURE_BYTES_MAX)
        self.signatures: bytes | None = None
        if signature_size is not None:
            self.signatures = self._content(signature_size)
            self._next = self._block()

    @property
    def digest(self) -> str:
        """The digest of the manifest, which names the package."""
        return digest_of(self.manifest_bytes)

    @property
    def total_bytes(self) -> int:
        """The size that the file must have."""
        signature_size = None if self.signatures is None else len(self.signatures)
        return container_bytes(self.manifest, len(self.manifest_bytes), signature_size)

    def blobs(self) -> Iterator[Blob]:
        """All contents in order. What is not read of one is read and checked before the next is given."""
        assert not self._begun, "a package is read once"
        self._begun = True
        for entry in self.manifest.blobs:
            self._expect(entry)
            stream = BlobStream(self, entry)
            yield Blob(entry.digest, entry.size, stream)
            stream.drain()
            self._zeros(padding(entry.size))
        self._end()

    def take(self, size: int) -> bytes:
        """Between 1 and ``size`` bytes of the file."""
        data = self._stream.read(size)
        if not data:
            raise self.invalid(f"ends at byte {self._position}, in the middle of a content")
        self._position += len(data)
        return data

    def invalid(self, text: str, key: str = "") -> PackageInvalid:
        """The failure that ``text`` describes."""
        return PackageInvalid([Problem(file=self._name, key=key, text=text)])

    def _expect(self, entry: FileEntry) -> None:
        """The next header must be that of the content of ``entry``; it may span several blocks."""
        wanted = header(blob_name(entry.digest), entry.size)
        found = self._next or self._block()
        self._next = b""
        while len(found) < len(wanted) and wanted.startswith(found):
            more = self._block()
            if not more:
                break
            found += more
        if found != wanted:
            at = len(found) // BLOCK_BYTES * BLOCK_BYTES - BLOCK_BYTES
            raise self.invalid(
                f"has {described(found[max(at, 0) :])} where the manifest demands a plain file "
                f"'{blob_name(entry.digest)}' of {entry.size} bytes ({entry.path})"
            )

    def _end(self) -> None:
        found = self._next or self._block()
        found += self._block()
        if found != END:
            raise self.invalid(f"has {described(found[:BLOCK_BYTES])} after all that the manifest names")
        if self._stream.read(1):
            raise self.invalid(f"goes on after its end at byte {self._position}")

    def _content(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            parts.append(self.take(min(size, CHUNK_BYTES)))
            size -= len(parts[-1])
        data = b"".join(parts)
        self._zeros(padding(len(data)))
        return data

    def _zeros(self, count: int) -> None:
        while count > 0:
            data = self.take(count)
            if any(data):
                raise self.invalid(
                    f"has something else than zeros in the padding before byte {self._position}"
                )
            count -= len(data)

    def _block(self) -> bytes:
        """A block, or less where the file ends."""
        data = b""
        while len(data) < BLOCK_BYTES:
            more = self._stream.read(BLOCK_BYTES - len(data))
            if not more:
                break
            data += more
        self._position += len(data)
        return data


def _no_package(block: bytes) -> str:
    """What a file is that begins with ``block``, where it is known, or that it is no package."""
    if foreign := foreign_format(block[:HEAD_BYTES]):
        return f"is {foreign}; then 'appliance model pack' makes a package of it"
    if len(block) > 1 and block[0] == 0x08 and 0 < block[1] < 0x20:
        return "is an ONNX model, if it is one; 'appliance model pack' makes a package of it"
    return f"does not begin with {MANIFEST_NAME}: there is {described(block)}"


class BlobStream:
    """The bytes of one content. The last of them are given only if all of them were right, else PackageInvalid is
    raised; a wrong piece is found as soon as it is complete. After that no more are given."""

    def __init__(self, reader: PackageReader, entry: FileEntry) -> None:
        self._reader = reader
        self._entry = entry
        self._left = entry.size
        self._whole = Digester(pieces=False)
        self._piece = Digester(pieces=False)
        self._pieces = iter(entry.pieces)
        self._index = 0
        self._failed = False
        if not entry.size:
            self._check_whole()

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes (-1: all that is left), none at the end. Raises PackageInvalid."""
        if size < 0:
            return b"".join(iter(lambda: self.read(CHUNK_BYTES), b""))
        if self._failed:
            raise self._wrong("was found to be damaged")
        if not self._left or not size:
            return b""
        data = self._take(size)
        self._sum(memoryview(data))
        return data

    @property
    def cut_off(self) -> bool:
        """Whether the file ended in the middle of this content."""
        return bool(self._left) and not self._failed

    def drain(self) -> None:
        """Read what is left. Raises PackageInvalid when it is wrong and that was not said before."""
        while self._left and not self._failed:
            self.read(CHUNK_BYTES)
        while self._left:
            self._take(CHUNK_BYTES)

    def _take(self, size: int) -> bytes:
        data = self._reader.take(min(size, self._left, CHUNK_BYTES))
        self._left -= len(data)
        return data

    def _sum(self, data: memoryview) -> None:
        self._whole.update(data)
        while len(data):
            part = data[: PIECE_BYTES - self._piece.size]
            self._piece.update(part)
            data = data[len(part) :]
            if self._piece.size == PIECE_BYTES:
                self._end_piece()
        if not self._left:
            if self._piece.size:
                self._end_piece()
            self._check_whole()

    def _end_piece(self) -> None:
        found = self._piece.finish().digest
        if found != next(self._pieces):
            start = self._index * PIECE_BYTES
            raise self._wrong(f"is damaged between bytes {start} and {start + self._piece.size}")
        self._index += 1
        self._piece = Digester(pieces=False)

    def _check_whole(self) -> None:
        if self._whole.finish().digest != self._entry.digest:
            raise self._wrong("is not what its digest says")

    def _wrong(self, text: str) -> PackageInvalid:
        self._failed = True
        return self._reader.invalid(text, self._entry.path)


@contextmanager
def opened(path: Path) -> Iterator[io.FileIO]:
    """The file, if it is a regular one; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        yield file


@contextmanager
def open_package(path: Path) -> Iterator[PackageReader]:
    """The package in the file ``path``, whose size is compared with what its manifest demands before any content is
    read. Raises PackageInvalid, or OSError when it cannot be opened."""
    with opened(path) as file:
        reader = PackageReader(file, path.name)
        found = os.fstat(file.fileno()).st_size
        if reader.total_bytes != found:
            raise reader.invalid(f"has {found} bytes; its manifest demands {reader.total_bytes}")
        yield reader


def tensors_in(manifest: Manifest, digest: str) -> Sequence[TensorEntry]:
    """The tensors that lie in files with this content."""
    places = {entry.path for entry in manifest.files if entry.digest == digest}
    return [entry for entry in manifest.tensors if entry.file in places]


class _Place(NamedTuple):
    """Where tensors lie, and what they must come to. Many may share it."""

    offset: int
    length: int
    digest: str


class TensorSums:
    """Sums the tensors of one file while its bytes go by, each byte once: they are apart, but for those with equal
    places."""

    def __init__(self, entries: Sequence[TensorEntry]) -> None:
        self._entries: dict[_Place, list[TensorEntry]] = {}
        for entry in entries:
            place = _Place(entry.offset, entry.length, entry.digest)
            self._entries.setdefault(place, []).append(entry)
        self._waiting = sorted(self._entries, reverse=True)
        self._open: list[tuple[_Place, Digester]] = []
        self._position = 0
        self._wrong: list[_Place] = []

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        end = self._position + len(data)
        while self._waiting and self._waiting[-1].offset < end:
            self._open.append((self._waiting.pop(), Digester(pieces=False)))
        view = memoryview(data)
        still: list[tuple[_Place, Digester]] = []
        for place, digester in self._open:
            start = max(place.offset - self._position, 0)
            digester.update(view[start : place.offset + place.length - self._position])
            if place.offset + place.length > end:
                still.append((place, digester))
            elif digester.finish().digest != place.digest:
                self._wrong.append(place)
        self._open = still
        self._position = end

    def problems(self) -> Iterator[Problem]:
        """The tensors whose digests are others; call it at the end of the file."""
        empty = digest_of(b"")
        for place in (*self._wrong, *(place for place in self._waiting if place.digest != empty)):
            for entry in self._entries[place]:
                text = f"the bytes of '{entry.name}' in {entry.file} have another digest"
                yield Problem(file=MANIFEST_FILE, key="tensors", text=text)


class SummedStream:
    """The bytes of one content, of which the last are given only if those of each tensor were right; else
    PackageInvalid is raised."""

    def __init__(self, blob: Blob, tensors: Sequence[TensorEntry]) -> None:
        self._stream: Stream = blob.stream
        self._left = blob.size
        self._sums = TensorSums(tensors)

    def read(self, size: int, /) -> bytes:
        """See Stream. Raises PackageInvalid."""
        data = self._stream.read(size)
        if data:
            self._sums.update(data)
            self._left -= len(data)
            if not self._left and (wrong := list(self._sums.problems())):
                raise PackageInvalid(wrong)
        return data
