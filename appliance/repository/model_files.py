"""Files of one model: found, confined to the model's own directory, and only regular ones are opened.

Rules kept here: a symbolic link counts as what it leads to, and that must lie inside the directory of the
same model; a path may not climb out of where it starts; directories, pipes, sockets and devices are told
apart before anything is opened, so that a pipe cannot make the start hang. Errors name what is wrong with the
file, not the file: the caller knows how it was named.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from appliance.domain.errors import ArtefactError
from appliance.domain.manifest import FileEntry
from appliance.domain.regular_file import check_digest, opened, read_file


class FileAbsent(ArtefactError):
    """Nothing is at the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A regular file as it was when it was found. ``path`` is where it was looked for, absolute; ``entry`` what its
    package says of it, None where it came in none."""

    path: str
    size: int
    inode: int
    mtime_ns: int
    entry: FileEntry | None = None

    @property
    def digest(self) -> str:
        """What its bytes must come to; "" where that is not known."""
        return "" if self.entry is None else self.entry.digest

    @contextmanager
    def open(self) -> Iterator[int]:
        """A read-only descriptor of the bytes that the package brought; raises ArtefactError where there are others, or
        no regular file any more."""
        with opened(self.path) as descriptor:
            if self.digest:
                check_digest(descriptor, self.digest)
            yield descriptor

    def read(self, limit: int) -> bytes:
        """The contents, held against the package; raises ArtefactError, also above ``limit`` bytes."""
        return read_file(self.path, limit, self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHome:
    """The directory of one model; ``path`` is absolute and free of links. ``stored`` is what its package says of its
    files, by their paths: there are no others for it; None where it came in none."""

    path: str
    stored: Mapping[str, FileEntry] | None = None

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
        entry = None if self.stored is None else self.stored.get("/".join(steps))
        if self.stored is not None and (entry is None or entry.size != found.st_size):
            size = "none such" if entry is None else f"it with {entry.size} bytes"
            raise ArtefactError(f"has {found.st_size} bytes; its package has {size}; install that again")
        return ModelFile(
            path=os.path.join(self.path, *steps),
            size=found.st_size,
            inode=found.st_ino,
            mtime_ns=found.st_mtime_ns,
            entry=entry,
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
