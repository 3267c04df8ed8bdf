"""Whether a model's directory is as it was: names, sizes, times and numbers of its files, without reading any."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

DEPTH_MAX: Final = 4
ENTRIES_MAX: Final = 100_000

Entry = tuple[str, int, int, int, int]
"""(path from the model's directory, type, size, inode, time of the last change in ns)"""


class Signature(NamedTuple):
    """One model's directory at one moment; equal ones mean that nothing was touched. ``directories`` are those in it,
    itself first."""

    entries: tuple[Entry, ...]
    directories: tuple[str, ...]


def signature_of(home: str) -> Signature | None:
    """The signature of a directory, links counted as what they lead to; None when there is none. What keeps it from
    being looked at counts as its only entry."""
    try:
        if not stat.S_ISDIR(os.stat(home).st_mode):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return Signature((_unseen("", error),), ())
    entries = sorted(_entries(home, "", 1))
    below = (f"{home}/{path}" for path, kind, *_ in entries if kind == stat.S_IFDIR)
    return Signature(tuple(entries), (home, *below))


def _entries(directory: str, prefix: str, depth: int) -> Iterator[Entry]:
    try:
        listing = os.listdir(directory)
    except OSError as error:
        yield _unseen(prefix, error)
        return
    if len(listing) > ENTRIES_MAX:
        yield prefix, -1, len(listing), 0, 0
        return
    for name in listing:
        path = f"{directory}/{name}"
        try:
            found = os.stat(path)
        except OSError as error:  # gone meanwhile, or a link to nothing
            yield _unseen(prefix + name, error)
            continue
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            # Its own time changes with its entries, which are looked at anyway.
            yield prefix + name, kind, 0, found.st_ino, 0
            if depth < DEPTH_MAX:
                yield from _entries(path, f"{prefix}{name}/", depth + 1)
        else:
            yield prefix + name, kind, found.st_size, found.st_ino, found.st_mtime_ns


def _unseen(path: str, error: OSError) -> Entry:
    return path, -1, error.errno or 0, 0, 0
