"""Blobs around 2 GiB and 4 GiB, where counts of 32 bits end: stored, named, measured and read whole.

Their files are sparse: pieces of zeros become holes, so that neither time nor disk goes into writing them. All sizes
with ``STORE_SWEEP=full``; hashing them is what takes the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from appliance.config.store import StoreConfig
from appliance.domain.digest import PIECE_BYTES, Digester, digest_of
from appliance.domain.errors import BlobMismatch
from appliance.domain.manifest import FileEntry, Manifest
from appliance.domain.manifest_codec import encode
from appliance.durable import READ_ONLY, Bytes, NewFile, RealFolder
from appliance.store.incoming import IncomingPackage
from appliance.store.layout import blob_path, view_path
from appliance.store.scrub import inspect
from appliance.store.writer import StoreWriter
from tests.domain.manifests import manifest_of
from tests.store.arrivals import contents_of
from tests.store.stores import install

GIB = 1 << 30
EVERY = (2 * GIB - 1, 2 * GIB, 2 * GIB + 1, 4 * GIB - 1, 4 * GIB, 4 * GIB + 1)
SIZES = EVERY if os.environ.get("STORE_SWEEP") == "full" else (2 * GIB + 1, 4 * GIB + 1)
ZEROS = bytes(1 << 20)
PIECE = bytes(PIECE_BYTES)


class SparseFile:
    """A file whose pieces of zeros are holes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Bytes) -> None:
        """See NewFile."""
        end = self.size()
        os.ftruncate(self._descriptor, end + len(data))
        if data is not ZEROS:
            os.pwrite(self._descriptor, data, end)

    def sync(self) -> None:
        """See NewFile."""
        os.fsync(self._descriptor)

    def size(self) -> int:
        """See NewFile."""
        return os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


class SparseFolder(RealFolder):
    """The kernel's, but for new files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._place = path

    def create(self, path: str, mode: int = READ_ONLY) -> NewFile:
        """See Folder."""
        return SparseFile(os.open(self._place / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))


class Zeros:
    """``size`` bytes from front to back."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int, /) -> bytes:
        """See Stream."""
        taken = min(size, self._left, len(ZEROS))
        self._left -= taken
        return ZEROS[:taken]  # the same object when it is all of it


@cache
def entry_of(size: int) -> FileEntry:
    """A file of ``size`` zeros."""
    whole, left = Digester(pieces=False), size
    while left:
        whole.update(memoryview(PIECE)[: min(left, PIECE_BYTES)])
        left -= min(left, PIECE_BYTES)
    pieces = (digest_of(PIECE),) * (size // PIECE_BYTES)
    rest = (digest_of(PIECE[: size % PIECE_BYTES]),) if size % PIECE_BYTES else ()
    return FileEntry(path="1/weights.bin", size=size, digest=whole.finish().digest, pieces=(*pieces, *rest))


def package(entry: FileEntry, brought: int) -> IncomingPackage:
    """A package with one file, which brings ``brought`` zeros for it."""
    base = manifest_of({"1/weights.bin": contents_of(1)["1/weights.bin"]}, name="digits", version=1)
    manifest = Manifest(
        **{name: getattr(base, name) for name in ("name", "version", "runtime", "inputs", "outputs")},
        files=(entry,),
    )
    return IncomingPackage(
        manifest=manifest,
        manifest_bytes=encode(manifest),
        signatures=None,
        trust="unsigned",
        contents=[(entry.digest, entry.size, Zeros(brought))],
    )


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in (tmp_path / "blobs").glob("*/*"):
        path.unlink()


@pytest.fixture
def store(state: Path) -> Iterator[StoreWriter]:
    folder = SparseFolder(state)
    yield StoreWriter(folder, StoreConfig(free_floor_bytes=0), tuple)
    folder.close()


@pytest.mark.parametrize("size", SIZES)
def test_a_blob_of_that_size_is_stored_whole(store: StoreWriter, state: Path, size: int) -> None:
    told: list[int] = []
    entry = entry_of(size)
    installed = install(store, package(entry, size), want=True, now_ms=1, progress=told.append)
    assert sum(told) == installed.written_bytes > size
    assert (state / blob_path(entry.digest)).stat().st_size == size
    assert (state / view_path(installed.digest) / "digits" / "1" / "weights.bin").stat().st_size == size
    assert size in {file.size for file in store.catalog.models[0].versions[0].files}
    assert_the_last_bit_counts(store, state, entry)


def assert_the_last_bit_counts(store: StoreWriter, state: Path, entry: FileEntry) -> None:
    """A check reads to the very end."""
    blob = state / blob_path(entry.digest)
    os.chmod(blob, 0o644)
    with blob.open("r+b") as file:
        file.seek(entry.size - 1)
        file.write(b"\1")
    folder = RealFolder(state)
    (found,) = inspect(folder, lambda: store.catalog).findings
    folder.close()
    assert (found.place, found.text) == (blob.name, "has other bytes than its name says")


@pytest.mark.parametrize(
    ("claimed", "brought"),
    [
        (4 * GIB + 1, 1), (4 * GIB + 1, 0), (2 * GIB + 1, GIB // 4), (1, 4 * GIB + 1), (0, 4 * GIB), (1, 2 * GIB + 1),
    ],
)  # fmt: skip
def test_a_size_that_is_right_only_in_32_bits_is_a_lie(
    store: StoreWriter, state: Path, claimed: int, brought: int
) -> None:
    entry = entry_of(min(claimed, 1))
    pieces = (entry.digest,) * -(-claimed // PIECE_BYTES)
    lie = FileEntry(
        path=entry.path,
        size=claimed,
        digest=entry_of(brought % (1 << 32) if brought < GIB else 1).digest,
        pieces=pieces,
    )
    with pytest.raises(BlobMismatch):
        install(store, package(lie, brought), want=True, now_ms=1)
    assert not store.catalog.models
    assert os.listdir(state / "incoming") == []
