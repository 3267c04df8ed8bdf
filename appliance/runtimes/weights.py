"""Weights of a model as mapped pages of one file: read ahead, verified, let go, brought back.

A session whose tensors are mapped from a file can be without its weights: the session stays, its pages go, and one
sequential read brings them back at the speed of the disk, because large requests go to the disk and nothing is copied.
One mapping of the file is populated (``MADV_POPULATE_READ``), step by step, and in each step those of the session that
show it: the kernel keeps what it knows of reading ahead per mapping that was opened, and begins with small pages in
each anew. A kernel before 5.14 has the pages touched instead. The digests of the pieces are computed in a second
thread, one step behind the reading, and the last of them in both.

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
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from appliance.domain.digest import PIECE_BYTES, digest_of
from appliance.domain.errors import FileDiffers, LoadFailed
from appliance.domain.model import WeightsFile

STEP_BYTES: Final = 8 << 20
"""Of reading: the digests are so much behind at least."""

GAP_BYTES_MAX: Final = 128 << 10
"""Unused bytes between two mappings whose pieces are verified all the same: the kernel has read them ahead."""

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
    return libc


_LIBC: Final = _typed_libc()


class Mapping(NamedTuple):
    """Memory of this process that shows the file from ``offset``."""

    address: int
    nbytes: int
    offset: int


class MappedWeights:
    """The mappings that a session has made of one file of weights. Its methods are called by one thread at a time."""

    def __init__(self, file: WeightsFile, descriptor: int, mappings: Sequence[Mapping]) -> None:
        self._file = file
        self._descriptor = descriptor
        self._mappings = tuple(sorted(mappings, key=lambda mapping: mapping.offset))
        for mapping in mappings:
            _want_large_pages(mapping.address, mapping.nbytes)
        self.nbytes = sum(mapping.nbytes for mapping in mappings)

    def evict_weights(self) -> None:
        """Let all pages go. The next run brings those back that it touches, slowly."""
        for mapping in self._mappings:
            _LIBC.madvise(mapping.address, mapping.nbytes, mmap.MADV_DONTNEED)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def page_in(self, *, verify: bool) -> None:
        """Bring all pages back. Raises LoadFailed when the file is not what it was, as far as that was verified."""
        _check_size(self._file, self._descriptor)
        if not self._file.size:
            return
        with _SharedMapping(self._descriptor, self._file.size) as shared:
            _want_large_pages(shared.address, self._file.size)
            _read(self._file, shared, self._mappings, verify=verify)

    def close(self) -> None:
        """Let go of the file; the mappings are their session's."""
        os.close(self._descriptor)


def mapped_now(file: WeightsFile) -> Sequence[Mapping]:
    """What other sessions of this process have mapped of ``file``. Raises LoadFailed."""
    try:
        status = os.stat(file.path)
    except OSError as problem:
        raise _unreadable(file, problem) from problem
    return _mappings(status)


def find_mapped(file: WeightsFile, others: Sequence[Mapping] = ()) -> MappedWeights | None:
    """The mappings of ``file`` in this process, by device and inode, but for those of ``others``, which go when the
    others go; None when there are none."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise _unreadable(file, problem) from problem
    found = _mappings(os.fstat(descriptor))
    mappings = [part for mapping in found for part in _beside(mapping, others)]
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
    thread that this starts, ``progress`` with the bytes read so far. Raises LoadFailed as ``MappedWeights.page_in``
    does."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise _unreadable(file, problem) from problem
    try:
        _check_size(file, descriptor)
        if file.size:
            with _SharedMapping(descriptor, file.size) as shared:
                whole = Mapping(shared.address, file.size, 0)
                _read(file, shared, [whole], verify=verify, begin=begin, progress=progress)
    finally:
        os.close(descriptor)


def _check_size(file: WeightsFile, descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    if size != file.size:
        raise FileDiffers(
            f"{file.name} has {size} bytes where {file.size} were expected; it was changed in place"
        )


def _read(
    file: WeightsFile,
    shared: _SharedMapping,
    mappings: Sequence[Mapping],
    *,
    verify: bool,
    begin: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda done_bytes: None,
) -> None:
    """Bring what the mappings show, which are in the order of the file, into memory and into them, through ``shared``,
    which shows all of it; with ``verify``, hold the pieces that they show any of against their digests. ``progress`` is
    told after each step where in the file it ended."""
    if not mappings:
        return
    if not (verify and file.pieces):
        _populate_all(file, shared, mappings, progress)
        return
    check = _PieceCheck(file, shared, _pieces_of(mappings, file.size), begin)

    def reached(end: int) -> None:
        check.reached(end)
        progress(end)

    try:
        _populate_all(file, shared, mappings, reached)
    finally:
        wrong = check.finish()
    if wrong:
        raise FileDiffers(wrong)


def _populate_all(
    file: WeightsFile, shared: _SharedMapping, mappings: Sequence[Mapping], reached: Callable[[int], None]
) -> None:
    """Step by step; ``reached`` is told how far."""
    waiting = deque(mapping for mapping in mappings if mapping.address != shared.address)
    for start, end in _steps(mappings, file.size):
        try:
            _populate(shared.address + start, end - start)
            for part in _shown(waiting, end):
                _populate(part.address, part.nbytes)
        except OSError as problem:
            raise _unreadable(file, problem) from problem
        reached(end)


def _steps(mappings: Sequence[Mapping], size: int) -> Iterator[tuple[int, int]]:
    """From where to where to read, in steps of STEP_BYTES at most, so that all is read that the mappings show, and each
    byte once; small gaps are read along."""
    position = 0
    for first, last in _spans(mappings, size):
        position = max(position, first)
        while position < last:
            end = min(position + STEP_BYTES, last)
            yield position, end
            position = end


def _spans(mappings: Sequence[Mapping], size: int) -> Iterator[tuple[int, int]]:
    """What the mappings show of the file, from where to where, ascending, with small gaps closed."""
    first, last = 0, 0
    for mapping in mappings:
        if mapping.offset > last + GAP_BYTES_MAX:
            yield first, last
            first = mapping.offset
        last = max(last, min(mapping.offset + mapping.nbytes, size))
    yield first, last


def _shown(waiting: deque[Mapping], end: int) -> Iterator[Mapping]:
    """The parts of the mappings that show the file below ``end``, but for those given before; ``waiting`` is left with
    the others."""
    later = []
    while waiting and waiting[0].offset < end:
        address, nbytes, offset = waiting.popleft()
        ready = min(nbytes, end - offset)
        yield Mapping(address, ready, offset)
        if ready < nbytes:
            later.append(Mapping(address + ready, nbytes - ready, offset + ready))
    waiting.extendleft(reversed(later))


def _pieces_of(mappings: Sequence[Mapping], size: int) -> list[int]:
    """The numbers of the pieces that are mapped in part at least, with small gaps closed, ascending."""
    numbers: list[int] = []
    for start, end in _spans(mappings, size):
        first = max(start // PIECE_BYTES, numbers[-1] + 1 if numbers else 0)
        numbers += range(first, -(-end // PIECE_BYTES))
    return numbers


class _PieceCheck:
    """Compares pieces with their digests in a thread of its own, as they come, and in the reader's once all have come.
    Stops at the first that is wrong. ``shared`` shows the whole file, ``numbers`` are the pieces, ascending. What the
    thread has not taken to its end is not verified, whatever ended it."""

    def __init__(
        self, file: WeightsFile, shared: _SharedMapping, numbers: Sequence[int], begin: Callable[[], None]
    ) -> None:
        self._file = file
        self._shared = shared
        self._changed = threading.Condition()
        self._waiting = deque(numbers)
        self._reached = 0
        self._wrong = ""
        self._unverified = (
            f"{file.name} could not be verified: the thread that did ended early, and said why on the worker's "
            f"standard error; is there memory enough? Load it again"
        )

        def run() -> None:
            begin()
            self._check_all()
            self._unverified = ""

        self._thread = threading.Thread(target=run, name="verify", daemon=True)
        self._thread.start()

    def reached(self, end: int) -> None:
        """What is mapped below ``end`` is in memory."""
        with self._changed:
            self._reached = max(self._reached, end)
            self._changed.notify()

    def finish(self) -> str:
        """Check what is left; gives what is wrong, for people, "" when nothing is. The thread is over then, even where
        this raises."""
        self.reached(self._file.size)
        try:
            self._check_all()
        finally:
            self._thread.join()
        return self._wrong or self._unverified

    def _check_all(self) -> None:
        """One piece after the other, until there are no more."""
        while True:
            with self._changed:
                self._changed.wait_for(self._can_go_on)
                if not self._waiting or self._wrong:
                    return
                number = self._waiting.popleft()
            self._check(number)

    def _can_go_on(self) -> bool:
        return not self._waiting or bool(self._wrong) or self._end_of(self._waiting[0]) <= self._reached

    def _end_of(self, number: int) -> int:
        return min((number + 1) * PIECE_BYTES, self._file.size)

    def _check(self, number: int) -> None:
        start, end = number * PIECE_BYTES, self._end_of(number)
        known = self._file.pieces[number] if number < len(self._file.pieces) else ""
        try:
            _populate(self._shared.address + start, end - start)
        except OSError as problem:
            self._wrong = str(_unreadable(self._file, problem))
            return
        if digest_of(self._shared.view[start:end]) != known:
            self._wrong = (
                f"{self._file.name}: piece {number} (bytes {start} to {end}) is not what it was when it was stored: "
                f"its digest differs; install its package again, or copy the file anew, and check the disk"
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


def _mappings(status: os.stat_result) -> Sequence[Mapping]:
    """Private ones of the file with that device and inode, by address, as the kernel lists them; shared ones are our
    own."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    wanted = (b"p", device.encode(), str(status.st_ino).encode())
    found = []
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if (fields[1][3:], fields[3], fields[4]) == wanted:
                begin, _, end = fields[0].partition(b"-")
                first = int(begin, 16)
                found.append(Mapping(first, int(end, 16) - first, int(fields[2], 16)))
    return found


def _beside(mapping: Mapping, others: Sequence[Mapping]) -> Iterator[Mapping]:
    """The parts of ``mapping`` that lie in none of ``others``, which are by address: the kernel may list as one what
    two sessions have mapped side by side."""
    address, offset, nbytes = mapping.address, mapping.offset, mapping.nbytes
    begin, end = address, address + nbytes
    for other in others:
        first, last = max(begin, other.address), min(end, other.address + other.nbytes)
        if first >= last:
            continue
        if begin < first:
            yield Mapping(begin, first - begin, offset + begin - address)
        begin = last
    if begin < end:
        yield Mapping(begin, end - begin, offset + begin - address)


def _want_large_pages(address: int, nbytes: int) -> None:
    """Have the kernel read what is mapped here in pages of 2 MiB, as far as the file system has such: fewer and larger
    requests to the disk, and an entry of the page tables in place of 512. A kernel that cannot reads as ever."""
    _LIBC.madvise(address, nbytes, mmap.MADV_HUGEPAGE)


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
        f"{file.name} cannot be read: {problem.strerror}; was it cut short, or is the disk failing?"
    )
