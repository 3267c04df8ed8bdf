"""Weights of a model as mapped pages of one file: read ahead, verified, let go, brought back.

A session whose tensors are mapped from a file can be *hollow*: the session stays, its pages go, and one sequential read
brings them back at the speed of the disk, because large requests go to the disk and nothing is copied. Measured: the
fastest way is one shared mapping that is populated in large steps (``MADV_POPULATE_READ``) and then, page tables only,
the session's own mappings. A kernel before 5.14 has the pages touched instead. The digests of the pieces are computed
in a second thread, one step behind the reading, and the last of them in both.

Nothing here knows a runtime. A file that is shorter than it was dies with SIGBUS when a page of it is touched; what is
found here before is an error instead.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from appliance.digest import PIECE_BYTES, digest_of
from appliance.errors import LoadFailed
from appliance.model import WeightsFile

STEP_BYTES: Final = 32 << 20
"""Smaller steps break the kernel's read-ahead, larger ones let the digests fall behind."""

GAP_BYTES_MAX: Final = 128 << 10
"""Unused bytes between two mappings that are read all the same, for the sake of one sequential read."""

_MADV_POPULATE_READ: Final = 22
_PAGE: Final = mmap.PAGESIZE


def _typed_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.malloc_trim.argtypes = (ctypes.c_size_t,)
    return libc


_LIBC: Final = _typed_libc()


class Extent(NamedTuple):
    """Bytes of a file from ``start`` to ``end``."""

    start: int
    end: int


class _Mapping(NamedTuple):
    """Memory of this process that shows the file from ``offset``."""

    address: int
    nbytes: int
    offset: int


class MappedWeights:
    """The mappings that a session has made of one file of weights. Its methods are called by one thread at a time."""

    def __init__(self, file: WeightsFile, descriptor: int, mappings: Sequence[_Mapping]) -> None:
        self._file = file
        self._descriptor = descriptor
        self._mappings = tuple(sorted(mappings, key=lambda mapping: mapping.offset))
        self.nbytes = sum(mapping.nbytes for mapping in mappings)

    def hollow(self) -> None:
        """Let all pages go. The next run brings those back that it touches, slowly."""
        for mapping in self._mappings:
            _LIBC.madvise(mapping.address, mapping.nbytes, mmap.MADV_DONTNEED)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def fill(self, *, verify: bool) -> None:
        """Bring all pages back. Raises LoadFailed when the file is not what it was, as far as that was verified."""
        read_extents(self._file, self._descriptor, self._extents(), verify=verify)
        for mapping in self._mappings:
            _populate(mapping.address, mapping.nbytes)

    def close(self) -> None:
        """Let go of the file; the mappings are their session's."""
        os.close(self._descriptor)

    def _extents(self) -> list[Extent]:
        """What is mapped, with small gaps closed, in file order."""
        extents: list[Extent] = []
        for mapping in self._mappings:
            end = min(mapping.offset + mapping.nbytes, self._file.size)
            if extents and mapping.offset <= extents[-1].end + GAP_BYTES_MAX:
                extents[-1] = Extent(extents[-1].start, max(end, extents[-1].end))
            else:
                extents.append(Extent(mapping.offset, end))
        return extents


def find_mapped(file: WeightsFile) -> MappedWeights | None:
    """The mappings of ``file`` in this process, by device and inode; None when there are none."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise _unreadable(file, problem) from problem
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    mappings = list(_mappings(device, str(status.st_ino)))
    if mappings:
        return MappedWeights(file, descriptor, mappings)
    os.close(descriptor)
    return None


def read_ahead(
    file: WeightsFile,
    *,
    verify: bool,
    begin: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda done_bytes: None,
) -> None:
    """Bring the whole file into memory, beside a session that is being made of it. ``begin`` is called first in each
    thread that this starts, ``progress`` with the bytes read so far. Raises LoadFailed as ``MappedWeights.fill``
    does."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise _unreadable(file, problem) from problem
    try:
        read_extents(file, descriptor, [Extent(0, file.size)], verify=verify, begin=begin, progress=progress)
    finally:
        os.close(descriptor)


def read_extents(
    file: WeightsFile,
    descriptor: int,
    extents: Sequence[Extent],
    *,
    verify: bool,
    begin: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda done_bytes: None,
) -> None:
    """Read parts of the file into the page cache through one shared mapping; with ``verify``, whole pieces of it.
    ``progress`` is told after each step where in the file it ended."""
    size = os.fstat(descriptor).st_size
    if size != file.size:
        raise LoadFailed(
            f"{file.path} has {size} bytes where {file.size} were expected; it was changed in place"
        )
    if not size or not extents:
        return
    if verify and file.pieces:
        extents = [_whole_pieces(extent, size) for extent in extents]
    with _SharedMapping(descriptor, size) as shared:
        check = _PieceCheck(file, shared, begin) if verify and file.pieces else None
        try:
            for extent in extents:
                for start in range(extent.start, extent.end, STEP_BYTES):
                    end = min(start + STEP_BYTES, extent.end)
                    _read_step(file, shared, start, end)
                    if check is not None:
                        check.submit(start, end)
                    progress(end)
        finally:
            wrong = check.finish() if check is not None else ""
    if wrong:
        raise LoadFailed(wrong)


def _read_step(file: WeightsFile, shared: _SharedMapping, start: int, end: int) -> None:
    try:
        _populate(shared.address + start, end - start)
    except OSError as problem:
        raise _unreadable(file, problem) from problem


def _whole_pieces(extent: Extent, size: int) -> Extent:
    end = -(-extent.end // PIECE_BYTES) * PIECE_BYTES
    return Extent(extent.start // PIECE_BYTES * PIECE_BYTES, min(end, size))


class _PieceCheck:
    """Compares pieces with their digests in a thread of its own, as they come, and in the reader's once all have come.
    Stops at the first that is wrong."""

    def __init__(self, file: WeightsFile, shared: _SharedMapping, begin: Callable[[], None]) -> None:
        self._file = file
        self._shared = shared
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._submitted = 0
        self._closed = False
        self._wrong = ""

        def run() -> None:
            begin()
            self._check_all()

        self._thread = threading.Thread(target=run, name="verify", daemon=True)
        self._thread.start()

    def submit(self, start: int, end: int) -> None:
        """These bytes, which begin with a piece, are in memory; they come in ascending order."""
        with self._changed:
            first = max(start // PIECE_BYTES, self._submitted)
            self._submitted = -(-end // PIECE_BYTES)
            self._waiting += range(first, self._submitted)
            self._changed.notify()

    def finish(self) -> str:
        """Check what is left; gives what is wrong, for people, "" when nothing is."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._check_all()
        self._thread.join()
        return self._wrong

    def _check_all(self) -> None:
        """One piece after the other, until there are no more to come."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting or self._wrong:
                    return
                number = self._waiting.popleft()
            self._check(number)

    def _check(self, number: int) -> None:
        start = number * PIECE_BYTES
        end = min(start + PIECE_BYTES, self._file.size)
        known = self._file.pieces[number] if number < len(self._file.pieces) else ""
        if digest_of(self._shared.view[start:end]) != known:
            self._wrong = (
                f"{self._file.path}: piece {number} (bytes {start} to {end}) is not what it was when it was stored: "
                f"its digest differs; fetch or copy the file again and check the disk"
            )


class _SharedMapping:
    """A file mapped to be read, for a while."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._size = size
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.address: int = address
        self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B").toreadonly()

    def __enter__(self) -> _SharedMapping:
        return self

    def __exit__(self, *problem: object) -> None:
        self.view.release()
        _LIBC.munmap(self.address, self._size)


def _mappings(device: str, inode: str) -> Sequence[_Mapping]:
    """Private ones of the file with that device and inode, as the kernel lists them; shared ones are our own."""
    found = []
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if (fields[1][3:], fields[3], fields[4]) == (b"p", device.encode(), inode.encode()):
                begin, _, end = fields[0].partition(b"-")
                first = int(begin, 16)
                found.append(_Mapping(first, int(end, 16) - first, int(fields[2], 16)))
    return found


def _populate(address: int, nbytes: int) -> None:
    """Have pages in memory and in the page tables. Raises OSError when some cannot be."""
    if _LIBC.madvise(address, nbytes, _MADV_POPULATE_READ) == 0:
        return
    number = ctypes.get_errno()
    if number != errno.EINVAL:
        raise OSError(number, os.strerror(number))
    touch(address, nbytes)


def touch(address: int, nbytes: int) -> None:
    """Read a byte of each page, where the kernel cannot be asked to."""
    memory = memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
    memory[::_PAGE].tobytes()


def _unreadable(file: WeightsFile, problem: OSError) -> LoadFailed:
    return LoadFailed(
        f"{file.path} cannot be read: {problem.strerror}; was it cut short, or is the disk failing?"
    )


def trim_heap() -> None:
    """Give memory back to the system that the allocator has but nobody uses."""
    _LIBC.malloc_trim(0)
