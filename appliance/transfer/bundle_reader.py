"""Reading a bundle, a directory or one file, that somebody carried here: nothing is believed, nothing is unpacked.

A tar file is one that ``bundle_writer`` writes, byte for byte but for the contents, or it is refused; so it holds no
links, no devices and no names but those of the index. Links in a directory are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from appliance.domain.digest import Digester
from appliance.domain.errors import Problem
from appliance.durable import Bytes, RealFolder
from appliance.fleet.bundle import INDEX, INDEX_BYTES_MAX, BundleInvalid, Member, decode
from appliance.package.container import BLOCK_BYTES, END, announced_size, described, header, padding

CHUNK_BYTES: Final = 1 << 20

Progress = Callable[[int], None]


class _Files(Protocol):
    """The files of a bundle, wherever they are."""

    def index(self) -> bytes:
        """The index. Raises BundleInvalid, OSError."""

    def problems(self, members: Iterable[Member]) -> Iterator[Problem]:
        """What is wrong with all files together, contents aside; each of ``members`` can be read when it is nothing."""

    def chunks(self, member: Member) -> Iterator[Bytes]:
        """The contents, in pieces that are good until the next is asked for. Raises OSError."""

    def close(self) -> None:
        """Let go of them."""


class BundleReader:
    """An open bundle."""

    def __init__(self, path: Path) -> None:
        """Raises BundleInvalid with all that is wrong but for contents, and OSError."""
        self.path = path
        self._files: _Files = _Directory(path) if path.is_dir() else _File(path)
        try:
            self.signed, self.index = decode(self._files.index())
            if problems := list(self._files.problems(self.index.members)):
                raise BundleInvalid(problems)
        except BaseException:
            self._files.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self, members: Iterable[Member], progress: Progress = lambda count: None) -> None:
        """Read all of ``members``. Raises BundleInvalid with every one that is not what the index says."""
        problems: list[Problem] = []
        for each in members:
            try:
                for chunk in self.chunks(each):
                    progress(len(chunk))
            except BundleInvalid as error:
                problems += error.problems
        if problems:
            raise BundleInvalid(problems)

    def read(self, member: Member) -> bytes:
        """A small file whole. Raises BundleInvalid when it is not what the index says."""
        return b"".join(map(bytes, self.chunks(member)))

    def chunks(self, member: Member) -> Iterator[Bytes]:
        """The contents of a file, in pieces that are good until the next is asked for. Raises BundleInvalid at the end
        when they were not what the index says: what was read before that is not to be believed."""
        digester = Digester(pieces=False)
        try:
            with closing(self._files.chunks(member)) as chunks:  # type: ignore[type-var]
                for chunk in chunks:
                    digester.update(chunk)
                    if digester.size > member.size:  # it grows: memory and disk are for what the index says
                        raise _invalid(member.path, f"goes on after its {member.size} bytes")
                    yield chunk
        except OSError as error:
            raise _invalid(member.path, f"cannot be read: {error.strerror or error}") from error
        if digester.size != member.size:
            raise _invalid(member.path, f"ends after {digester.size} of {member.size} bytes")
        if digester.finish().digest != member.digest:
            raise _invalid(member.path, "has other contents than the index says")


class _Directory:
    """A bundle that is a directory. Files beside those of the index are left alone."""

    def __init__(self, path: Path) -> None:
        self._folder = RealFolder(path)

    def index(self) -> bytes:
        """See _Files."""
        found = self._folder.status(INDEX)
        if found is None or not found.is_file:
            raise _invalid(
                INDEX, "is not there: this directory is no bundle, or it was not written to its end"
            )
        data = bytearray()
        with closing(self._folder.chunks(INDEX)) as chunks:  # type: ignore[type-var]
            for chunk in chunks:
                data += chunk
                if len(data) > INDEX_BYTES_MAX:
                    raise _invalid(INDEX, f"has more than the {INDEX_BYTES_MAX} bytes that it may have")
        return bytes(data)

    def problems(self, members: Iterable[Member]) -> Iterator[Problem]:
        """See _Files."""
        for each in members:
            found = self._folder.status(each.path)
            if found is None:
                yield Problem(file=each.path, key="", text="is missing")
            elif not found.is_file:
                yield Problem(file=each.path, key="", text="is no regular file")
            elif found.size != each.size:
                yield Problem(file=each.path, key="", text=f"has {found.size} of {each.size} bytes")

    def chunks(self, member: Member) -> Iterator[Bytes]:
        """See _Files."""
        return self._folder.chunks(member.path)

    def close(self) -> None:
        """See _Files."""
        self._folder.close()


class _File:
    """A bundle that is one tar file."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._places: dict[str, int] = {}
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._descriptor)
            raise _invalid(self._name, "is neither a regular file nor a directory")
        self._size = found.st_size
        self._after_index = 0

    def index(self) -> bytes:
        """See _Files."""
        block = os.pread(self._descriptor, BLOCK_BYTES, 0)
        size = announced_size(block, INDEX, INDEX_BYTES_MAX)
        if size is None:
            raise _invalid(self._name, f"is no bundle: it begins with {described(block)}")
        self._after_index = BLOCK_BYTES + size + padding(size)
        return self._pread(BLOCK_BYTES, size)

    def problems(self, members: Iterable[Member]) -> Iterator[Problem]:
        """See _Files."""
        position = self._after_index
        for each in members:
            expected = header(each.path, each.size)
            if position + len(expected) + each.size > self._size:
                text = f"is not whole: the file ends after {self._size} bytes"
                yield Problem(file=each.path, key="", text=text)
                return
            found = self._pread(position, len(expected))
            if found != expected:
                text = f"is not where it should be; there is {described(found[:BLOCK_BYTES])}"
                yield Problem(file=each.path, key="", text=text)
                return
            self._places[each.path] = position + len(expected)
            position += len(expected) + each.size + padding(each.size)
        if self._pread(position, len(END) + 1) != END:
            text = "does not end after the last file of its index"
            yield Problem(file=self._name, key="", text=text)

    def chunks(self, member: Member) -> Iterator[Bytes]:
        """See _Files."""
        position = self._places[member.path]
        end = position + member.size
        while position < end and (data := self._pread(position, min(CHUNK_BYTES, end - position))):
            yield data
            position += len(data)

    def close(self) -> None:
        """See _Files."""
        os.close(self._descriptor)

    def _pread(self, position: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, position)


def _invalid(file: str, text: str) -> BundleInvalid:
    return BundleInvalid([Problem(file=file, key="", text=text)])
