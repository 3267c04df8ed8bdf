"""Files that survive a power cut: a folder held by a descriptor, files that appear whole or not at all, one writer.

``Folder`` is the port, so that tests can put a disk below it that loses what was not synced; ``RealFolder`` is the
kernel's. Paths are relative, steps joined by "/"; no step is followed when it is a symbolic link, so nothing outside
the folder is ever touched. Rules kept here: bytes are synced before a name leads to them; a name is there for good
only after its directory was synced; nothing that has a name is written to; what is made is its owner's alone, and is
read by a group only in a folder of the mode SHARED, which an operator gave to that group.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from appliance.domain.errors import StoreBusy

Bytes = bytes | bytearray | memoryview

READ_BYTES: Final = 4 << 20
READ_ONLY: Final = 0o440
REPLACED: Final = 0o640
SHARED: Final = 0o2750
"""The mode of a directory whose group may read what is in it: what is made there belongs to the same group. Any other
directory is its owner's alone."""
LOCK_TRIES: Final = 8
LOCK_PAUSE_S: Final = 0.005
"""Between tries to take a lock: whoever asks whether it is held has it for some microseconds."""
_ODD: Final = frozenset({"", ".", ".."})
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANONYMOUS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What stands at a path. ``identity`` is equal for two names of one file."""

    is_directory: bool
    is_file: bool
    size: int
    identity: tuple[int, int]


class NewFile(Protocol):
    """A file that is being written; leaving the context closes it."""

    def write(self, data: Bytes) -> None:
        """All of ``data`` at the end of the file."""

    def sync(self) -> None:
        """Return when its bytes are on the disk."""

    def size(self) -> int:
        """The bytes that the file system says it has."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Folder(Protocol):
    """The file operations of the store. All raise OSError; what is not synced may be lost or come in any order."""

    def create(self, path: str, mode: int = READ_ONLY) -> NewFile:
        """A new, empty file; nothing may be at ``path``."""

    def make_directory(self, path: str) -> None:
        """A new, empty directory."""

    def rename(self, old: str, new: str) -> None:
        """Move a file, over another if need be, or a directory to where none is."""

    def link(self, old: str, new: str) -> None:
        """A second name for the file ``old``."""

    def unlink(self, path: str) -> None:
        """Take a file's name away."""

    def remove_directory(self, path: str) -> None:
        """Take an empty directory away."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory (``""``: the folder itself) are on the disk."""

    def status(self, path: str) -> Status | None:
        """What is at ``path``; None: nothing, as where a step on the way is no directory. Links are not followed."""

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def chunks(self, path: str) -> Iterator[Bytes]:
        """The bytes of a regular file, in pieces that are good until the next is asked for."""

    def free_bytes(self) -> int:
        """What may still be written."""

    def is_in_place(self) -> bool:
        """Whether the folder still is what its path leads to."""


def read_whole(folder: Folder, path: str, limit: int) -> bytes | None:
    """The file's bytes; None when it is not there. Raises OSError, also for more than ``limit`` bytes."""
    found = folder.status(path)
    if found is None:
        return None
    if found.size > limit:
        raise OSError(f"'{path}' has {found.size} bytes; the limit is {limit}")
    return b"".join(bytes(chunk) for chunk in folder.chunks(path))


def replace_file(folder: Folder, path: str, temporary: str, data: bytes) -> None:
    """Put ``data`` in the place of what is at ``path``, whole or not at all and for good, by way of ``temporary``."""
    remove_file(folder, temporary)
    try:
        with folder.create(temporary, REPLACED) as file:
            file.write(data)
            file.sync()
            if file.size() != len(data):
                raise OSError(errno.EIO, f"the file system kept {file.size()} of {len(data)} bytes")
        folder.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            remove_file(folder, temporary)
        raise
    folder.sync_directory(path.rpartition("/")[0])


def ensure_directory(folder: Folder, path: str) -> None:
    """Have a directory at ``path``, for good; its parent is there."""
    if folder.status(path) is None:
        folder.make_directory(path)
    folder.sync_directory(path.rpartition("/")[0])


def make_own_directory(path: Path) -> None:
    """Have a directory at ``path``, as private as the one that it is in. Raises OSError."""
    above = RealFolder(path.parent)
    try:
        with suppress(FileExistsError):
            above.make_directory(path.name)
    finally:
        above.close()


def gives_away(owner: os.stat_result) -> bool:
    """Whether what this process makes has to be given to the ``owner`` of the directory that it is in: what root makes
    in somebody's directory, as an operator does, would be read by nobody else."""
    return os.geteuid() == 0 and owner.st_uid != 0


def give_to_owner(descriptor: int, owner: os.stat_result) -> None:
    """Give what is open, and was made by this process, to the ``owner`` of its directory, where that is to be done."""
    if gives_away(owner) and os.fstat(descriptor).st_uid == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def sync_name(path: Path) -> None:
    """Have the name of the directory ``path`` there for good. Raises OSError, but not where the directory above cannot
    be opened by who may only go through it: then it is there when the system writes it."""
    try:
        above = RealFolder(path.resolve().parent)
    except PermissionError:
        return
    try:
        above.sync_directory("")
    finally:
        above.close()


def remove_file(folder: Folder, path: str) -> None:
    """Take the name away if it is there."""
    with suppress(FileNotFoundError):
        folder.unlink(path)


def remove_tree(folder: Folder, path: str) -> None:
    """Take away whatever is at ``path``, as far down as it goes; nothing is synced."""
    found = folder.status(path)
    if found is None:
        return
    if not found.is_directory:
        folder.unlink(path)
        return
    for name in folder.names(path):
        remove_tree(folder, f"{path}/{name}")
    folder.remove_directory(path)


class RealFolder:
    """A directory of this machine, held by a descriptor until ``close``, or until nobody has the object any more."""

    _root = -1

    def __init__(self, path: Path) -> None:
        """Raise OSError when ``path`` is no directory that can be read. It may itself be a link."""
        self._path = path
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._owner = os.fstat(self._root)
        self._shared = stat.S_IMODE(self._owner.st_mode) == SHARED

    def close(self) -> None:
        """Let go of the directory, once."""
        if self._root >= 0:
            root, self._root = self._root, -1
            os.close(root)

    def __del__(self) -> None:
        self.close()

    def create(self, path: str, mode: int = READ_ONLY) -> NewFile:
        """See Folder."""
        return _RealFile(self.open(path, _CREATE, mode))

    def make_directory(self, path: str) -> None:
        """See Folder."""
        with self._parent(path) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)
            if self._shared or gives_away(self._owner):
                descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
                try:
                    self._settle(descriptor, SHARED)
                finally:
                    os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """See Folder."""
        with self._parent(old) as (source, before), self._parent(new) as (target, after):
            os.rename(before, after, src_dir_fd=source, dst_dir_fd=target)

    def link(self, old: str, new: str) -> None:
        """See Folder."""
        with self._parent(old) as (source, before), self._parent(new) as (target, after):
            os.link(before, after, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        """See Folder."""
        with self._parent(path) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def remove_directory(self, path: str) -> None:
        """See Folder."""
        with self._parent(path) as (parent, name):
            os.rmdir(name, dir_fd=parent)

    def sync_directory(self, path: str) -> None:
        """See Folder."""
        with self._directory(path) as descriptor:
            os.fsync(descriptor)

    def status(self, path: str) -> Status | None:
        """See Folder."""
        try:
            with self._parent(path) as (parent, name):
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Status(
            is_directory=stat.S_ISDIR(found.st_mode),
            is_file=stat.S_ISREG(found.st_mode),
            size=found.st_size,
            identity=(found.st_dev, found.st_ino),
        )

    def names(self, path: str) -> list[str]:
        """See Folder."""
        with self._directory(path) as descriptor:
            return sorted(os.listdir(descriptor))

    def chunks(self, path: str) -> Iterator[Bytes]:
        """See Folder."""
        with self._parent(path) as (parent, name):
            descriptor = os.open(name, _READ, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"'{path}' is not a regular file")
            buffer = memoryview(bytearray(READ_BYTES))
            while count := os.readv(descriptor, [buffer]):
                yield buffer[:count]
        finally:
            os.close(descriptor)

    def uncached_chunks(self, path: str) -> Iterator[Bytes]:
        """Like ``chunks``, but what the disk holds and not what memory remembers of it, and without pushing anything
        out of memory; on a file system that cannot do that, like ``chunks``."""
        with self._parent(path) as (parent, name):
            try:
                descriptor = os.open(name, _READ | os.O_DIRECT, dir_fd=parent)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                descriptor = os.open(name, _READ, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"'{path}' is not a regular file")
            with mmap.mmap(-1, READ_BYTES, flags=_ANONYMOUS) as pages, memoryview(pages) as buffer:
                while count := os.readv(descriptor, [buffer]):
                    with buffer[:count] as piece:
                        yield piece
        finally:
            os.close(descriptor)

    def open(self, path: str, flags: int, mode: int = REPLACED) -> int:
        """A descriptor of the file at ``path``, not followed if it is a link; the caller closes it. Of ``mode`` a file
        that is made has what the folder's own lets others have."""
        with self._parent(path) as (parent, name):
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode & 0o700, dir_fd=parent)
        if flags & os.O_CREAT:
            self._settle(descriptor, mode)
        return descriptor

    def _settle(self, descriptor: int, mode: int) -> None:
        """Have what was made belong to whom the folder does, and be read by its group where it is SHARED."""
        give_to_owner(descriptor, self._owner)
        if self._shared:
            os.fchmod(descriptor, mode)

    def free_bytes(self) -> int:
        """See Folder."""
        found = os.fstatvfs(self._root)
        return found.f_bavail * found.f_frsize

    def is_in_place(self) -> bool:
        """See Folder."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._root))
        except OSError:
            return False

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that holds the last step of ``path``, and that step."""
        assert not _ODD.intersection(path.split("/")), path
        above, _, name = path.rpartition("/")
        with self._directory(above) as descriptor:
            yield descriptor, name

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        """A descriptor of the directory at ``path``; each step is opened without following links."""
        descriptor = self._root
        try:
            for step in path.split("/") if path else ():
                assert step not in _ODD, path
                below = os.open(step, _DIRECTORY, dir_fd=descriptor)
                if descriptor != self._root:
                    os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            if descriptor != self._root:
                os.close(descriptor)


class _RealFile:
    """A file of the kernel that is being written."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Bytes) -> None:
        """See NewFile; the kernel may take less than it is given."""
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

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


class WriterLock:
    """Held by the one process that may write: the kernel gives it back whenever and however that process ends.

    The file names the holder for people; that it is there, or names a process that has gone, means nothing.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path, pause: Callable[[float], None] = time.sleep) -> None:
        """Raises StoreBusy with the holder's pid, and OSError. ``pause`` waits so many seconds for one who only asks
        whether the lock is held."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)  # who cannot open it cannot hold it either
        try:
            give_to_owner(self._descriptor, os.stat(path.parent))
            self._take(pause)
        except BlockingIOError:
            pid = _number(os.pread(self._descriptor, 32, 0))
            os.close(self._descriptor)
            who = f"process {pid}" if pid else "another process"
            raise StoreBusy(f"{who} is writing to '{path.parent}'; wait until it has ended", pid) from None
        except OSError:
            os.close(self._descriptor)
            raise
        with suppress(OSError):  # a full disk keeps nobody from making room on it
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _take(self, pause: Callable[[float], None]) -> None:
        for left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not left:
                    raise
                pause(LOCK_PAUSE_S)
            else:
                return

    def release(self) -> None:
        """Let another process write."""
        os.close(self._descriptor)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock at ``path``; asking takes it for no longer than an instant, and shared."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _number(text: bytes) -> int:
    return int(text) if text.strip().isdigit() else 0
