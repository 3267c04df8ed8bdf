"""A directory of models as a source: ``serve --models DIR``.

A model is read again when its files have changed and were then the same at two looks in a row, so that a copy under way
is left alone; a complete version that is renamed into place is served after the same wait. Models that did not change
are not read again. Names that begin with "." or "_" are passed over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ConfigInvalid, Problem
from appliance.repository.directory import RepositoryScan, ServableVersion, merged
from appliance.repository.misplaced import SUFFIX
from appliance.repository.model_directory import printable, read_model_directory
from appliance.sources.source import Look
from appliance.store.catalog import Trial

MODELS_MAX: Final = 10_000
"""Model directories: all are listed on every look, and ten thousand are past what one box holds in memory."""
_PASSED_OVER: Final = (".", "_")
DEPTH_MAX: Final = 4
ENTRIES_MAX: Final = 100_000
Entry = tuple[str, int, int, int, int]
"""(path from the model's directory, type, size, inode, time of the last change in ns)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A model as it was read."""

    signature: Signature | None
    reading: RepositoryScan | None


class DirectorySource:
    """Source over ``root``. One owner at a time; calls block."""

    def __init__(self, root: Path, config: RepositoryConfig) -> None:
        self._root = root
        self._config = config
        self._real = str(root)
        self._known: dict[str, _Known] = {}
        self._changing: dict[str, Signature | None] = {}

    def read(self) -> RepositoryScan:
        """See Source."""
        self._real, names = listing(self._root)
        self._changing.clear()
        self._known = {name: self._read(name, self._signature(name)) for name in names}
        return self.scan()

    def look(self) -> Look:
        """See Source."""
        self._real, there = listing(self._root)
        changed = False
        for name in sorted({*there, *self._known, *self._changing}):
            signature = self._signature(name) if name in there else None
            known = self._known.get(name)
            if known is not None and known.signature == signature:
                self._changing.pop(name, None)
            elif name not in self._changing or self._changing[name] != signature:
                self._changing[name] = signature
            else:
                del self._changing[name]
                self._take(name, signature)
                changed = True
        return Look(scan=self.scan() if changed else None, unsettled=bool(self._changing))

    def model(self, name: str, config: bytes | None = None) -> RepositoryScan | None:
        """See Source."""
        self._real, there = listing(self._root)
        if name not in there:
            return None
        if config is not None:
            return read_model_directory(self._real, name, self._config, config)
        self._changing.pop(name, None)
        self._take(name, self._signature(name))
        return self._known[name].reading if name in self._known else None

    def scan(self) -> RepositoryScan:
        """See Source."""
        return merged(self._known[name].reading for name in sorted(self._known))

    def standing_in(self, incumbents: Mapping[str, str]) -> Mapping[str, RepositoryScan]:
        """See Source. What a directory held before is not known."""
        return {}

    def wanted(self) -> Mapping[str, int]:
        """See Source. What a directory held before is not known."""
        return {}

    def way_back(self, name: str, incumbent: str) -> Sequence[ServableVersion]:
        """See Source."""
        return ()

    def trials(self) -> Mapping[tuple[str, int], Trial]:
        """See Source. A directory says nothing of trials."""
        return {}

    def directories(self) -> Collection[str]:
        """See Source."""
        signatures = (known.signature for known in self._known.values())
        below = (directory for found in signatures if found is not None for directory in found.directories)
        return (self._real, *below)

    def close(self) -> None:
        """See Source."""

    def _signature(self, name: str) -> Signature | None:
        try:
            return signature_of(f"{self._real}/{name}")
        except Exception:  # noqa: BLE001  nobody foresaw it, and the other models are looked at all the same
            return UNSEEN

    def _take(self, name: str, signature: Signature | None) -> None:
        if signature is None:
            self._known.pop(name, None)
        else:
            self._known[name] = self._read(name, signature)

    def _read(self, name: str, signature: Signature | None) -> _Known:
        return _Known(signature=signature, reading=read_model_directory(self._real, name, self._config))


def listing(root: Path) -> tuple[str, list[str]]:
    """The repository's real path and the names of what may be a model in it. Raises ConfigInvalid when it
    cannot be read or holds too many."""
    try:
        real = os.path.realpath(root, strict=True)
        with os.scandir(real) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(_PASSED_OVER)
                and (entry.is_symlink() or entry.is_dir() or entry.name.endswith(SUFFIX))
            )
    except OSError as error:
        text = f"cannot be read: {error.strerror}; give a directory of models"
        raise ConfigInvalid([Problem(file=printable(str(root)), key="", text=text)]) from error
    if len(names) > MODELS_MAX:
        text = f"holds {len(names)} directories; the limit is {MODELS_MAX}"
        raise ConfigInvalid([Problem(file=printable(str(root)), key="", text=text)])
    return real, names


class Signature(NamedTuple):
    """One model's directory at one moment; equal ones mean that nothing was touched. ``directories`` are those in it,
    itself first."""

    entries: tuple[Entry, ...]
    directories: tuple[str, ...]


UNSEEN: Final = Signature((("", -1, 0, 0, 0),), ())
"""Of a directory that cannot be looked at, for a reason of which the system has no number."""


def signature_of(home: str) -> Signature | None:
    """The signature of a directory, or of a file in its place, links counted as what they lead to; None when there is
    none. What keeps it from being looked at counts as its only entry."""
    try:
        found = os.stat(home)
        if not stat.S_ISDIR(found.st_mode):
            return Signature((("", -1, found.st_size, found.st_ino, found.st_mtime_ns),), ())
    except FileNotFoundError:
        return None
    except OSError as error:
        return Signature((_unseen("", error),), ())
    entries = sorted(_entries(home, "", 1))
    below = (f"{home}/{path}" for path, kind, *_ in entries if kind == stat.S_IFDIR)
    return Signature(tuple(entries), (home, *below))


def _entries(directory: str, prefix: str, depth: int) -> Iterator[Entry]:
    try:
        names = os.listdir(directory)
    except OSError as error:
        yield _unseen(prefix, error)
        return
    if len(names) > ENTRIES_MAX:
        yield prefix, -1, len(names), 0, 0
        return
    for name in names:
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
