"""Files of one model: found, confined to the model's own directory, and only regular ones are opened.

Rules kept here: a symbolic link counts as what it leads to, and that must lie inside the directory of the
same model; a path may not climb out of where it starts; directories, pipes, sockets and devices are told
apart before anything is opened, so that a pipe cannot make the start hang. Errors name what is wrong with the
file, not the file: the caller knows how it was named.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from appliance.domain.errors import ArtefactError


class FileAbsent(ArtefactError):
    """Nothing is at the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A regular file as it was when it was found. ``path`` is where it was looked for, absolute."""

    path: str
    size: int
    inode: int
    mtime_ns: int

    @contextmanager
    def open(self) -> Iterator[int]:
        """A read-only descriptor; raises ArtefactError when the file is not that regular file any more."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise ArtefactError(f"cannot be opened: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ArtefactError("was replaced by something that is not a file")
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, limit: int) -> bytes:
        """The contents; raises ArtefactError above ``limit`` bytes."""
        with self.open() as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise ArtefactError(f"has {size} bytes; the limit for it is {limit}")
            try:
                data = os.pread(descriptor, size + 1, 0)
            except OSError as error:
                raise ArtefactError(f"cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise ArtefactError("changed while it was read; put files in place by renaming them")
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHome:
    """The directory of one model; ``path`` is absolute and free of links."""

    path: str

    def file(
        self, relative: PurePosixPath, *, start: PurePosixPath | None = None, links: bool = True
    ) -> ModelFile:
        """The regular file at ``relative``, looked for from ``start`` inside this directory (default: the
        directory itself) and not above it; without ``links``, none may be on the way from there. Raises ArtefactError
        saying what is wrong with it."""
        if relative.is_absolute() or ".." in relative.parts or "\0" in str(relative):
            raise ArtefactError("is not a path inside the model's directory")
        begin = start.parts if start else ()
        steps = (*begin, *relative.parts)
        found = self._status(steps)
        if not links:
            self._check_no_link(steps, len(begin))
        if not stat.S_ISREG(found.st_mode):
            raise ArtefactError(f"is {_kind(found.st_mode)}, not a file")
        return ModelFile(
            path=os.path.join(self.path, *steps),
            size=found.st_size,
            inode=found.st_ino,
            mtime_ns=found.st_mtime_ns,
        )

    def _check_no_link(self, steps: Sequence[str], begin: int) -> None:
        """Raise ArtefactError when one of the ``steps`` after ``begin`` is a link."""
        for end in range(begin + 1, len(steps) + 1):
            if os.path.islink(os.path.join(self.path, *steps[:end])):
                raise ArtefactError("is, or is behind, a symbolic link; put the file itself there")

    def check_directory(self, name: str) -> None:
        """Raise ArtefactError unless ``name`` is a directory inside this one, or a link to one."""
        found = self._status((name,))
        if not stat.S_ISDIR(found.st_mode):
            raise ArtefactError(f"is {_kind(found.st_mode)}, not a directory")

    def _status(self, steps: Sequence[str]) -> os.stat_result:
        """What is at the end of ``steps`` from here, links followed as far as they stay in this directory."""
        path = self.path
        try:
            found = os.lstat(path)
            for step in steps:
                path = f"{path}/{step}"
                found = os.lstat(path)
                if stat.S_ISLNK(found.st_mode):
                    return self._followed(os.path.join(self.path, *steps))
        except FileNotFoundError:
            raise FileAbsent("is missing") from None
        except OSError as error:
            raise ArtefactError(f"cannot be read: {error.strerror}") from error
        return found

    def _followed(self, path: str) -> os.stat_result:
        try:
            real = os.path.realpath(path, strict=True)
            found = os.stat(real)
        except FileNotFoundError:
            raise ArtefactError("is, or is behind, a symbolic link to nothing") from None
        if not real.startswith(self.path + os.sep):
            raise ArtefactError(
                f"is a symbolic link to {real}, outside the model's directory; put the file itself there"
            )
        return found


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "something unknown")
