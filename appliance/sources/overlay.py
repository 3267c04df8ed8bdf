"""What an operator changed by hand on top of a source, for as long as the daemon lives: models put aside, and models
that came over the control socket, whose files lie in a directory of the daemon's own.

A model that is given anew gets a fresh directory, because workers may still map the files of the last one; that one
goes when nothing needs it any more. Directories lie beneath one of this process, whose lock tells whether it lives:
what a process leaves that was killed, the next one removes.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from appliance.domain.errors import InvalidRequest, NotReady
from appliance.durable import WriterLock, is_held
from appliance.repository.directory import RepositoryScan, merged
from appliance.store.full_disk import reason_of

PREFIX: Final = "appliance-given-"
LOCK: Final = ".lock"
FILES_MAX: Final = 1_000
DEPTH_MAX: Final = 4


class Selection:
    """Which models of a scan count, and which are replaced. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._aside: set[str] = set()
        self._given: dict[str, RepositoryScan] = {}
        self._own: dict[str, RepositoryScan] = {}
        """What the source held of a model of which only the configuration was given."""

    def put_aside(self, name: str) -> None:
        """Serve nothing of this name, whatever the source holds."""
        self.take_back(name)
        self._aside.add(name)

    def take_back(self, name: str) -> None:
        """Serve what the source holds of this name."""
        self._aside.discard(name)
        self._given.pop(name, None)
        self._own.pop(name, None)

    def replace(self, name: str, reading: RepositoryScan, own: RepositoryScan | None = None) -> None:
        """Serve this in the place of what the source holds of the name: ``own``, where that is only configured
        otherwise."""
        self.take_back(name)
        self._given[name] = reading
        if own is not None:
            self._own[name] = own

    def kept(self, name: str, own: RepositoryScan) -> RepositoryScan | None:
        """What a configuration was given for, if the source holds ``own`` as it did then."""
        then = self._own.get(name)
        same = then is not None and (then.servable, then.broken) == (own.servable, own.broken)
        return self._given[name] if same else None

    def paths(self) -> tuple[str, ...]:
        """Where the models lie that were given by hand."""
        return tuple(entry.model.path for given in self._given.values() for entry in given.servable)

    def aside(self, scan: RepositoryScan) -> tuple[tuple[str, str], ...]:
        """Names and versions of what the source holds and is put aside."""
        return tuple(each for each in _keys(scan) if each[0] in self._aside)

    def given(self, scan: RepositoryScan) -> tuple[tuple[str, str], ...]:
        """Names and versions of what the source holds and does not count, because the model was given by hand."""
        return tuple(each for each in _keys(scan) if each[0] in self._given)

    def is_given(self, name: str) -> bool:
        """Whether the model counts as given by hand."""
        return name in self._given

    def over(self, scan: RepositoryScan) -> RepositoryScan:
        """The scan as it counts."""
        if not self._aside and not self._given:
            return scan
        gone = self._aside | self._given.keys()
        kept = replace(
            scan,
            servable=tuple(entry for entry in scan.servable if entry.model.name not in gone),
            broken=tuple(entry for entry in scan.broken if entry.name not in gone),
        )
        return merged([kept, *(self._given[name] for name in sorted(self._given))])


def _keys(scan: RepositoryScan) -> list[tuple[str, str]]:
    broken = [(entry.name, entry.version) for entry in scan.broken]
    return [(entry.model.name, str(entry.model.version)) for entry in scan.servable] + broken


class Overlay:
    """Directories of given models beneath ``base`` (None: where temporary files go), removed with ``close`` at the
    latest. What is kept is up to the event loop's thread; calls that read or write block, one at a time, in another."""

    def __init__(self, base: Path | None = None) -> None:
        self._base = base
        self._root: Path | None = None
        self._lock: WriterLock | None = None
        self._kept: set[str] = set()

    # --- the event loop's thread

    def keep(self, path: str) -> None:
        """The repository in which ``path`` lies is needed, if it is one of these."""
        if self._root is not None and Path(path).is_relative_to(self._root):
            self._kept.add(str(self._root / Path(path).relative_to(self._root).parts[0]))

    def without(self, paths: Iterable[str]) -> frozenset[str]:
        """The kept repositories in which none of ``paths`` lies."""
        needed = tuple(paths)
        return frozenset(
            kept for kept in self._kept if not any(path.startswith(f"{kept}/") for path in needed)
        )

    def forget(self, repositories: Collection[str]) -> None:
        """These are not needed any more, and may be dropped."""
        self._kept.difference_update(repositories)

    # --- what blocks

    def put(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write the files of model ``name``, by their paths in its directory; gives the repository that holds it, and
        raises InvalidRequest with all that is wrong with name and paths, NotReady where they cannot be written. What
        was put before and not kept leaves: it was not wanted after all."""
        problems = ["is no model's name"] if "/" in name or path_problems(name) else []
        problems += [f"file {text}" for path in files for text in path_problems(path)]
        if len(files) > FILES_MAX:
            problems.append(f"{len(files)} files are given; at most {FILES_MAX} can be")
        if problems:
            raise InvalidRequest(f"failed to load '{name[:100]}': {'; '.join(problems)}")
        try:
            root = self._own_root()
            with os.scandir(root) as entries:
                there = {entry.path for entry in entries if entry.is_dir(follow_symlinks=False)}
            self.drop(there.difference(tuple(self._kept)))
            return _written(Path(tempfile.mkdtemp(dir=root)), name, files)
        except OSError as error:
            text = f"failed to load '{name}': its files cannot be written: {reason_of(error)}"
            raise NotReady(text) from error

    def drop(self, repositories: Iterable[str]) -> None:
        """Remove these."""
        for repository in repositories:
            shutil.rmtree(repository, ignore_errors=True)

    def drop_leftovers(self) -> None:
        """Remove what processes of the same user left that were killed. Where that cannot be told, it stays."""
        try:
            with os.scandir(self._folder()) as entries:
                found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
        except OSError:
            return
        self.drop(str(path) for path in found if path != self._root and _is_left(path))

    def close(self) -> None:
        """Remove everything."""
        root, self._root = self._root, None
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _folder(self) -> Path:
        """Raises FileNotFoundError where there is no place for temporary files."""
        return self._base or Path(tempfile.gettempdir())

    def _own_root(self) -> Path:
        """The directory of this process. Its lock has its name only when it is held."""
        if self._root is None:
            root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._folder()))
            self._lock = WriterLock(root / ".new")
            os.rename(root / ".new", root / LOCK)
            self._root = root
        return self._root


def _written(repository: Path, name: str, files: Mapping[str, bytes]) -> Path:
    for path, content in files.items():
        target = repository / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    for entry in (repository, *repository.rglob("*")):
        entry.chmod(0o700 if entry.is_dir() else 0o600)
    return repository


def _is_left(root: Path) -> bool:
    """Whether ``root`` belongs to a process of this user that lives no more."""
    try:
        found = root.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        return ours and (root / LOCK).is_file() and not is_held(root / LOCK)
    except OSError:
        return False


def path_problems(path: str) -> list[str]:
    """What keeps ``path`` from being one of a file inside a model's directory."""
    shown = path[:100]
    parts = PurePosixPath(path).parts
    if not path or "\0" in path or path.startswith("/") or path != "/".join(parts):
        return [f"'{shown}' is no path inside a model's directory, such as 1/model.onnx"]
    if any(part in (".", "..") or part.startswith(".") or len(part) > 128 for part in parts):
        return [f"'{shown}' has a part that begins with '.' or is longer than 128 bytes"]
    if len(parts) > DEPTH_MAX:
        return [f"'{shown}' lies deeper than {DEPTH_MAX} directories"]
    return []
