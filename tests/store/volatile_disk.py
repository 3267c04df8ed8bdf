"""A disk that keeps only what was synced: the store's file operations in memory, and what a power cut may leave.

Bytes of a file are on the disk when the file was synced; before that a power cut leaves any part of them, or zeros.
Names of a directory are when the directory was synced; before that each single change of a name may have come to the
disk or not, whatever came before or after it. So a rename of a file between directories may leave both names, or none;
one of a directory is one change, and syncing either end of it is enough, because no directory is ever in two places.
Replacing what a name stands for is one change: the name is never missing because of it. This is harsher than any file
system that has a journal.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Self

from appliance.durable import READ_ONLY, Bytes, NewFile, Status

ROOT = 0


@dataclass(slots=True)
class Inode:
    """A file (``names`` is None) or a directory. ``kept`` and ``kept_names`` are on the disk; ``changes`` of names are
    not, in the order in which they were made; the third of each is the move of a directory that it is part of, or 0."""

    data: bytes = b""
    kept: bytes = b""
    names: dict[str, int] | None = None
    kept_names: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[str, int | None, int]] = field(default_factory=list)

    def copy(self) -> Inode:
        """Another one that is equal."""
        names = None if self.names is None else dict(self.names)
        return Inode(self.data, self.kept, names, dict(self.kept_names), list(self.changes))


class VolatileDisk:
    """See the module. ``before`` is called with the operation's name and path before each operation, and may raise."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {ROOT: Inode(names={})}
        self.next = 1
        self._move = 0
        self.before: Callable[[str, str], None] = lambda operation, path: None

    def copy(self) -> VolatileDisk:
        """The disk as it is, with what is not synced; without ``before``."""
        twin = VolatileDisk()
        twin.inodes = {number: inode.copy() for number, inode in self.inodes.items()}
        twin.next = self.next
        return twin

    def unsynced(self) -> int:
        """Changes that a power cut may lose, each by itself."""
        return sum(len(inode.changes) + (inode.data != inode.kept) for inode in self.inodes.values())

    def after_power_cut(self, keeps: Callable[[], bool], random: Random) -> VolatileDisk:
        """The disk when power is back: ``keeps`` decides for each change of a name, ``random`` for bytes of files."""
        twin = VolatileDisk()
        twin.next = self.next
        moves: dict[int, bool] = {}
        for number, inode in self.inodes.items():
            if inode.names is None:
                data = inode.kept if inode.data == inode.kept else _torn(inode, keeps(), random)
                twin.inodes[number] = Inode(data, data)
            else:
                names = dict(inode.kept_names)
                for name, target, move in inode.changes:
                    if not (moves.setdefault(move, keeps()) if move else keeps()):
                        continue
                    if target is None:
                        names.pop(name, None)
                    else:
                        names[name] = target
                twin.inodes[number] = Inode(names=names, kept_names=dict(names))
        return twin

    def tree(self) -> dict[str, bytes | None]:
        """Everything by its path; directories have no bytes."""
        found: dict[str, bytes | None] = {}

        def walk(number: int, path: str) -> None:
            inode = self.inodes[number]
            if inode.names is None:
                found[path] = inode.data
                return
            found[path] = None
            for name, inner in inode.names.items():
                walk(inner, f"{path}/{name}" if path else name)

        walk(ROOT, "")
        return found

    # --- the port

    def create(self, path: str, mode: int = READ_ONLY) -> NewFile:
        """See Folder."""
        self.before("create", path)
        names, name, change = self._parent(path)
        if name in names:
            raise _error(errno.EEXIST)
        change(name, self._new(Inode()))
        return _VolatileFile(self, names[name], path)

    def make_directory(self, path: str) -> None:
        """See Folder."""
        self.before("make_directory", path)
        names, name, change = self._parent(path)
        if name in names:
            raise _error(errno.EEXIST)
        change(name, self._new(Inode(names={})))

    def rename(self, old: str, new: str) -> None:
        """See Folder."""
        self.before("rename", new)
        source, before, take = self._parent(old)
        target, after, put = self._parent(new)
        moved = source.get(before)
        if moved is None:
            raise _error(errno.ENOENT)
        there = target.get(after)
        if there == moved:
            return
        if there is not None and (self.inodes[there].names is None) != (self.inodes[moved].names is None):
            raise _error(errno.EISDIR if self.inodes[there].names is not None else errno.ENOTDIR)
        if there is not None and self.inodes[there].names:
            raise _error(errno.ENOTEMPTY)
        self._move = self.next = self.next + 1
        if self.inodes[moved].names is None:
            self._move = 0
        put(after, moved)
        take(before, None)
        self._move = 0

    def link(self, old: str, new: str) -> None:
        """See Folder."""
        self.before("link", new)
        source, before, _ = self._parent(old)
        target, after, put = self._parent(new)
        if before not in source:
            raise _error(errno.ENOENT)
        if after in target:
            raise _error(errno.EEXIST)
        put(after, source[before])

    def unlink(self, path: str) -> None:
        """See Folder."""
        self.before("unlink", path)
        names, name, change = self._parent(path)
        if name not in names:
            raise _error(errno.ENOENT)
        if self.inodes[names[name]].names is not None:
            raise _error(errno.EISDIR)
        change(name, None)

    def remove_directory(self, path: str) -> None:
        """See Folder."""
        self.before("remove_directory", path)
        _, name, change = self._parent(path)
        if self._names(path):
            raise _error(errno.ENOTEMPTY)
        change(name, None)

    def sync_directory(self, path: str) -> None:
        """See Folder."""
        self.before("sync_directory", path)
        inode = self.inodes[self._find(path)]
        moves = {move for _, _, move in inode.changes if move}
        inode.kept_names = dict(self._names(path))
        inode.changes.clear()
        for other in self.inodes.values() if moves else ():
            _settle(other, moves)

    def status(self, path: str) -> Status | None:
        """See Folder."""
        self.before("status", path)
        try:
            number = self._find(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        inode = self.inodes[number]
        return Status(
            is_directory=inode.names is not None,
            is_file=inode.names is None,
            size=len(inode.data),
            identity=(0, number),
        )

    def names(self, path: str) -> list[str]:
        """See Folder."""
        self.before("names", path)
        return sorted(self._names(path))

    def chunks(self, path: str) -> Iterator[Bytes]:
        """See Folder."""
        self.before("chunks", path)
        inode = self.inodes[self._find(path)]
        if inode.names is not None:
            raise _error(errno.EISDIR)
        yield inode.data

    def free_bytes(self) -> int:
        """See Folder."""
        self.before("free_bytes", "")
        return 1 << 40

    def is_in_place(self) -> bool:
        """See Folder."""
        return True

    # --- inside

    def _new(self, inode: Inode) -> int:
        self.next += 1
        self.inodes[self.next] = inode
        return self.next

    def _names(self, path: str) -> dict[str, int]:
        names = self.inodes[self._find(path)].names
        if names is None:
            raise _error(errno.ENOTDIR)
        return names

    def _find(self, path: str) -> int:
        number = ROOT
        for step in path.split("/") if path else ():
            names = self.inodes[number].names
            if names is None:
                raise _error(errno.ENOTDIR)
            if step not in names:
                raise _error(errno.ENOENT)
            number = names[step]
        return number

    def _parent(self, path: str) -> tuple[dict[str, int], str, Callable[[str, int | None], None]]:
        """The names beside ``path``, its last step, and what changes one of those names."""
        above, _, name = path.rpartition("/")
        names = self._names(above)
        inode = self.inodes[self._find(above)]

        def change(which: str, target: int | None) -> None:
            inode.changes.append((which, target, self._move))
            if target is None:
                del names[which]
            else:
                names[which] = target

        return names, name, change


class _VolatileFile:
    """A file of the disk that is being written."""

    def __init__(self, disk: VolatileDisk, number: int, path: str) -> None:
        self._disk = disk
        self._number = number
        self._path = path

    def write(self, data: Bytes) -> None:
        """See NewFile."""
        self._disk.before("write", self._path)
        self._disk.inodes[self._number].data += bytes(data)

    def sync(self) -> None:
        """See NewFile."""
        self._disk.before("sync", self._path)
        inode = self._disk.inodes[self._number]
        inode.kept = inode.data

    def size(self) -> int:
        """See NewFile."""
        return len(self._disk.inodes[self._number].data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _settle(inode: Inode, moves: set[int]) -> None:
    """Have ``moves`` on the disk in a directory that has an end of one; what was done to that name before is, too."""
    for place in reversed(range(len(inode.changes))):
        which, target, move = inode.changes[place]
        if move not in moves:
            continue
        inode.kept_names.pop(which, None)
        if target is not None:
            inode.kept_names[which] = target
        earlier = [change for change in inode.changes[:place] if change[0] != which]
        inode.changes = [*earlier, *inode.changes[place + 1 :]]
        return


def _torn(inode: Inode, whole: bool, random: Random) -> bytes:
    """What may be left of bytes that were not synced; those before them that were are there."""
    if whole:
        return inode.data
    assert inode.data.startswith(inode.kept), "files only grow"
    rest = inode.data[len(inode.kept) :]
    length = random.randrange(len(rest) + 1)
    return inode.kept + random.choice((b"", rest[:length], bytes(len(rest))))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
