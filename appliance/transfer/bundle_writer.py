"""Writing a bundle, as a directory or as one file: it is there when it is whole and on the disk, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.domain.digest import Digester, digest_of
from appliance.domain.errors import Problem
from appliance.durable import Bytes, Folder, RealFolder, ensure_directory, replace_file, sync_name
from appliance.fleet.bundle import INDEX, BundleInvalid, Index, Member, SignedIndex, encode
from appliance.package.container import END, header, padding, replacing

READABLE: Final = 0o644

Progress = Callable[[int], None]
Sign = Callable[[bytes], SignedIndex]
"""Given an encoded index, gives it signed: over SIGNED_PREFIX and that index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file that shall be in the bundle, and what gives its contents when they are written."""

    member: Member
    open: Callable[[], Iterable[Bytes]]


def part_of(path: str, data: bytes) -> Part:
    """A small file."""
    return Part(member=Member(path, len(data), digest_of(data)), open=lambda: [data])


def write_file(
    target: Path, index: Index, parts: Sequence[Part], sign: Sign, progress: Progress = lambda count: None
) -> None:
    """Write the bundle as one tar file in the place of ``target``. Raises BundleInvalid for contents that are not what
    their member says, and OSError."""
    signed = encode(sign(encode(index)))
    with replacing(target) as out:
        for name, size, chunks in (
            (INDEX, len(signed), iter([signed])),
            *((each.member.path, each.member.size, _checked(each, progress)) for each in parts),
        ):
            out.write(header(name, size))
            for chunk in chunks:
                out.write(chunk)
            out.write(bytes(padding(size)))
        out.write(END)


def write_directory(
    target: Path, index: Index, parts: Sequence[Part], sign: Sign, progress: Progress = lambda count: None
) -> None:
    """Write the bundle into the directory ``target``, which is made if need be and holds no bundle yet. The index comes
    last: without it there is none. Raises as ``write_file``, and FileExistsError."""
    with suppress(FileExistsError):
        os.mkdir(target)
    folder = RealFolder(target)
    try:
        if folder.status(INDEX) is not None:
            raise FileExistsError(f"'{target}' already holds a bundle")
        for each in parts:
            _write(folder, each, progress)
        replace_file(folder, INDEX, f"{INDEX}.new", encode(sign(encode(index))))
    finally:
        folder.close()
    sync_name(target)


def index_of(kind: str, parts: Sequence[Part], written_ms: int) -> Index:
    """The index of a bundle with ``parts``."""
    assert kind in ("to-boxes", "from-box")
    return Index(kind=kind, written_ms=written_ms, members=tuple(each.member for each in parts))  # type: ignore[arg-type]


def _write(folder: Folder, part: Part, progress: Progress) -> None:
    """A file that is left over from a bundle that was not written to its end is written again."""
    path = part.member.path
    steps = path.split("/")[:-1]
    for count in range(1, len(steps) + 1):
        ensure_directory(folder, "/".join(steps[:count]))
    with suppress(FileNotFoundError):
        folder.unlink(path)
    with folder.create(path, READABLE) as file:
        for chunk in _checked(part, progress):
            file.write(chunk)
        file.sync()
    folder.sync_directory("/".join(steps))


def _checked(part: Part, progress: Progress) -> Iterator[Bytes]:
    """The contents, as long as they are what was announced. Raises BundleInvalid at the end."""
    digester = Digester(pieces=False)
    for chunk in part.open():
        digester.update(chunk)
        if digester.size > part.member.size:
            break
        progress(len(chunk))
        yield chunk
    if digester.size != part.member.size or digester.finish().digest != part.member.digest:
        text = "is not what was announced any more; write the bundle again"
        raise BundleInvalid([Problem(file=part.member.path, key="", text=text)])
