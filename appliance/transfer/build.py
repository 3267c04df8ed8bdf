"""Make the stream that brings a version to boxes, from scratch or from a version that they have. Runs where the
controller is; takes what time it needs, since it is done once for all boxes.

Tensors are matched by name. One with the same digest costs nothing; of another the smallest is taken of its difference
to the one before, its byte planes, its bytes compressed, its bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zstandard

from appliance.domain.digest import Digester, digest_of
from appliance.domain.manifest import ELEMENT_BITS, FileEntry, Manifest, TensorEntry
from appliance.package.container import blob_places, replacing
from appliance.package.reader import open_package
from appliance.transfer.pieces import PIECE_BYTES
from appliance.transfer.planes import WIDTHS, planes, subtract
from appliance.transfer.stream import SECTION_BYTES_MAX, Content, Header, Kind, Section, encode_header

LEVELS: Final = (1, 9)
"""Of zstd. The lower one searches less, and so finds fewer of the chance repetitions in a plane of noise, which cost
more than they save."""
Write = Callable[[bytes], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A stream that was made: its digest and size, its index (the digests of its pieces, one after another) and that
    one's digest; ``base`` is the digest of the base's manifest, "" for none."""

    stream: str
    size: int
    index: bytes
    index_digest: str
    base: str


class _Package:
    """A package file that was verified before: its manifest and its bytes, mapped."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        with open_package(path) as reader:
            self.manifest: Manifest = reader.manifest
            self.manifest_bytes = reader.manifest_bytes
            self.signatures = reader.signatures
            signature_bytes = None if reader.signatures is None else len(reader.signatures)
            self._places = blob_places(reader.manifest, len(reader.manifest_bytes), signature_bytes)
        file = stack.enter_context(path.open("rb"))
        mapped = stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        self._bytes = stack.enter_context(memoryview(mapped))

    def bytes_of(self, digest: str, offset: int, length: int) -> memoryview:
        """Bytes of a content."""
        place = self._places[digest] + offset
        return self._bytes[place : place + length]


def build(target: Path, base: Path | None, out: Path) -> Built:
    """Write the stream that makes the package ``target`` of the package ``base`` to ``out``. Both were verified. Raises
    PackageInvalid and OSError."""
    with ExitStack() as stack:
        new = _Package(target, stack)
        old = None if base is None else _Package(base, stack)
        bases = _Bases(old)
        draft = out.with_name(f"{out.name}.payload")
        try:
            with draft.open("wb") as payload:
                contents = tuple(
                    Content(
                        digest=entry.digest,
                        size=entry.size,
                        sections=tuple(_sections(new, entry, bases, payload.write)),
                    )
                    for entry in new.manifest.blobs
                )
            header = Header(
                manifest=new.manifest_bytes,
                signatures=new.signatures or b"",
                contents=contents,
                bases=tuple(Content(digest=entry.digest, size=entry.size) for entry in bases.used),
            )
            return _written(
                out, encode_header(header), draft, "" if old is None else digest_of(old.manifest_bytes)
            )
        finally:
            draft.unlink(missing_ok=True)


class _Bases:
    """What the base has: contents by digest, tensors by name, and which of its contents are used."""

    def __init__(self, package: _Package | None) -> None:
        self.package = package
        manifest = package.manifest if package else None
        self.contents = {entry.digest: entry for entry in manifest.blobs} if manifest else {}
        files = {entry.path: entry for entry in manifest.files} if manifest else {}
        self.tensors: dict[str, tuple[TensorEntry, FileEntry]] = {
            tensor.name: (tensor, files[tensor.file]) for tensor in (manifest.tensors if manifest else ())
        }
        self.used: list[FileEntry] = []

    def number(self, entry: FileEntry) -> int:
        """Its place among those that are used."""
        found = next((at for at, each in enumerate(self.used) if each.digest == entry.digest), None)
        if found is None:
            self.used.append(entry)
            return len(self.used) - 1
        return found


def _sections(new: _Package, entry: FileEntry, bases: _Bases, write: Write) -> Iterator[Section]:
    """How the content ``entry`` comes about; what has to be brought for it is written."""
    if entry.digest in bases.contents:
        if entry.size:
            yield Section(kind=Kind.COPY, length=entry.size, base=bases.number(bases.contents[entry.digest]))
        return
    at = 0
    for tensor in _tensors_of(new.manifest, entry):
        if tensor.offset > at:
            yield from _plain(new, entry, at, tensor.offset, 1, write)
        yield from _tensor(new, entry, tensor, bases, write)
        at = tensor.offset + tensor.length
    yield from _plain(new, entry, at, entry.size, 1, write)


def _tensors_of(manifest: Manifest, entry: FileEntry) -> list[TensorEntry]:
    """The tensors in a content, in order, each place once."""
    paths = {each.path for each in manifest.files if each.digest == entry.digest}
    found = sorted(
        (each for each in manifest.tensors if each.file in paths and each.length),
        key=lambda each: each.offset,
    )
    return [each for index, each in enumerate(found) if not index or each.offset != found[index - 1].offset]


def _tensor(
    new: _Package, entry: FileEntry, tensor: TensorEntry, bases: _Bases, write: Write
) -> Iterator[Section]:
    width = _width(tensor)
    before = bases.tensors.get(tensor.name)
    if before is None or bases.package is None or before[0].length != tensor.length:
        yield from _plain(new, entry, tensor.offset, tensor.offset + tensor.length, width, write)
        return
    old, file = before
    if old.digest == tensor.digest:
        yield Section(kind=Kind.COPY, length=tensor.length, base=bases.number(file), offset=old.offset)
        return
    for first, length in _cut(tensor.length):
        data = new.bytes_of(entry.digest, tensor.offset + first, length)
        choices = _choices(data, width)
        if old.datatype == tensor.datatype:
            there = bases.package.bytes_of(file.digest, old.offset + first, length)
            choices[Kind.SUBTRACT] = _packed(planes(subtract(data, there, width), width))
        kind, payload = min(choices.items(), key=lambda item: (len(item[1]), item[0]))
        write(payload)
        based = kind is Kind.SUBTRACT
        yield Section(
            kind=kind,
            length=length,
            stored=len(payload),
            base=bases.number(file) if based else 0,
            offset=old.offset + first if based else 0,
            width=width,
        )


def _plain(
    new: _Package, entry: FileEntry, first: int, end: int, width: int, write: Write
) -> Iterator[Section]:
    """Bytes that the box has nothing like."""
    for at, length in _cut(end - first):
        data = new.bytes_of(entry.digest, first + at, length)
        kind, payload = min(_choices(data, width).items(), key=lambda item: (len(item[1]), item[0]))
        write(payload)
        yield Section(kind=kind, length=length, stored=len(payload), width=width)


def _choices(data: memoryview, width: int) -> dict[Kind, bytes]:
    found = {Kind.RAW: bytes(data), Kind.ZSTD: _packed(data)}
    if width > 1:
        found[Kind.PLANES] = _packed(planes(data, width))
    return found


def _packed(data: bytes | memoryview) -> bytes:
    frames = (zstandard.ZstdCompressor(level=each, write_checksum=False).compress(data) for each in LEVELS)
    return min(frames, key=len)


def _width(tensor: TensorEntry) -> int:
    """Bytes of an element, as far as they have a meaning here."""
    width = ELEMENT_BITS[tensor.datatype] // 8
    return width if width in WIDTHS and tensor.length % width == 0 else 1


def _cut(length: int) -> Iterator[tuple[int, int]]:
    """Where each section begins, and its length."""
    return ((at, min(SECTION_BYTES_MAX, length - at)) for at in range(0, length, SECTION_BYTES_MAX))


def _written(out: Path, head: bytes, payload: Path, base: str) -> Built:
    """The whole stream in its place, for good, and its digests."""
    whole, index, rest = Digester(pieces=False), bytearray(), bytearray()
    with replacing(out) as file, payload.open("rb") as source:
        data = head
        while data:
            file.write(data)
            whole.update(data)
            rest += data
            while len(rest) >= PIECE_BYTES:
                index += bytes.fromhex(digest_of(rest[:PIECE_BYTES]))
                del rest[:PIECE_BYTES]
            data = source.read(PIECE_BYTES)
    if rest:
        index += bytes.fromhex(digest_of(rest))
    found = whole.finish()
    return Built(
        stream=found.digest, size=found.size, index=bytes(index), index_digest=digest_of(index), base=base
    )
