"""What the daemon runs right now, as it tells the store's writer: those versions are not collected, whatever is wanted.

The daemon holds a lock for as long as it lives and replaces one small file. The kernel gives the lock back however the
daemon ends, so a file that was left behind is known to be old without asking whether a process number means anything
here, in another container, or after a restart. A file that is missing or cannot be read, of a daemon that lives: it is
not known what runs, and nothing may be collected. So a daemon serves from a disk that is full, or read-only, where
nothing can be written.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from appliance.domain.digest import is_digest
from appliance.domain.errors import StoreBusy, StoreUnavailable
from appliance.domain.manifest import is_name
from appliance.durable import (
    RealFolder,
    WriterLock,
    is_held,
    make_own_directory,
    read_whole,
    remove_file,
    replace_file,
)
from appliance.store.catalog import is_version
from appliance.store.layout import INCUMBENTS, RUNNING, RUNNING_LOCK, SERVE

FORMAT: Final = 1
_IDENTITY: Final = re.compile(
    r"(?P<name>[a-z0-9._-]{1,64})/(?P<version>[0-9]{1,19})@(?P<digest>[0-9a-f]{64})"
)
RUNNING_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningVersion:
    """A version that has, or is about to get, a worker; ``digest`` is its manifest's."""

    name: str
    version: int
    digest: str


class RunningRecord:
    """The daemon's side. Blocks for a sync of the disk with each ``publish``: call it off the event loop."""

    def __init__(self, state: Path) -> None:
        """Raises StoreBusy when another daemon serves from ``state``, and OSError. On a read-only disk there is no lock
        until it can be written."""
        self._state = state
        self._lock: WriterLock | None = None
        try:
            self._take_lock()
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        self._folder = RealFolder(state)

    def _take_lock(self) -> None:
        make_own_directory(self._state / SERVE)
        try:
            self._lock = WriterLock(self._state / RUNNING_LOCK)
        except StoreBusy as busy:
            who = f"process {busy.pid}{_since(busy.pid)}" if busy.pid else "another process"
            raise StoreBusy(
                f"an appliance serves from '{self._state}' already: {who}; stop it, or give another --state-dir",
                busy.pid,
            ) from None

    def publish(self, versions: Iterable[RunningVersion]) -> None:
        """Say what runs. Before a version's files are opened it must be in what was published. Raises OSError, and what
        was said before is taken back then: the writer removes nothing while a daemon says nothing."""
        if self._lock is None:
            self._take_lock()
        rows = sorted((each.name, each.version, each.digest) for each in versions)
        document = {"format": FORMAT, "pid": os.getpid(), "versions": rows}
        data = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        try:
            replace_file(self._folder, RUNNING, f"{RUNNING}.new", data)
        except OSError:
            with suppress(OSError):
                remove_file(self._folder, RUNNING)
            raise

    def is_in_place(self) -> bool:
        """Whether the state directory is still the one that was opened: it may be moved, or its disk unmounted."""
        return self._folder.is_in_place()

    def close(self) -> None:
        """Nothing runs any more. The file stays; without the lock it means nothing."""
        self._folder.close()
        if self._lock is not None:
            self._lock.release()


def _since(pid: int) -> str:
    """For how long the process has been there, as far as that can be told."""
    try:
        began_s = int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[19]) / os.sysconf(
            "SC_CLK_TCK"
        )
    except (OSError, ValueError, IndexError):
        return ""
    minutes, seconds = divmod(int(time.clock_gettime(time.CLOCK_BOOTTIME) - began_s), 60)
    return f", for {minutes} min {seconds} s" if minutes else f", for {seconds} s"


def read_running(state: Path) -> tuple[RunningVersion, ...]:
    """What runs from ``state``; nothing when no daemon lives. Raises StoreUnavailable when a daemon lives and does not
    say what it runs in a way that can be read."""
    try:
        if not is_held(state / RUNNING_LOCK):
            return ()
        data = _read(state, RUNNING)
        if data is None:
            raise ValueError("it is not there, because its disk was full or the daemon is just starting")
        return _parsed(data)
    except PermissionError as error:
        raise StoreUnavailable(
            f"what the daemon runs from '{state}' can only be told by the user that owns that directory"
        ) from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreUnavailable(
            f"'{state / RUNNING}' does not tell what the daemon runs ({error}), so nothing is removed; make some room "
            "on that disk outside of the store, stop the daemon, or update this program"
        ) from error


def read_holder(state: Path) -> int | None:
    """The process that serves from ``state`` (0: it cannot be told which); None when no daemon lives."""
    if not is_held(state / RUNNING_LOCK):
        return None
    try:
        pid = json.loads(_read(state, RUNNING) or b"{}").get("pid", 0)
    except (OSError, ValueError, AttributeError, RecursionError):
        return 0
    return pid if type(pid) is int else 0


def _read(state: Path, file: str) -> bytes | None:
    with closing(RealFolder(state)) as folder:
        return read_whole(folder, file, RUNNING_BYTES_MAX)


def _parsed(data: bytes) -> tuple[RunningVersion, ...]:
    document: Any = json.loads(data)
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']}, this program reads {FORMAT}")
    rows = [(name, version, digest) for name, version, digest in document["versions"]]
    if any(
        not (is_name(name) and is_version(version) and is_digest(digest)) for name, version, digest in rows
    ):
        raise ValueError("a version in it is none")
    return tuple(RunningVersion(name=name, version=version, digest=digest) for name, version, digest in rows)


def read_incumbents(state: Path) -> Iterable[RunningVersion]:
    """What was proven last while it served, of each model: it may have to stand in for what is wanted. None where that
    cannot be read."""
    try:
        identities = json.loads(_read(state, INCUMBENTS) or b"{}").get("models", {}).values()
        versions = [_IDENTITY.fullmatch(identity) for identity in identities]
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return ()
    return [
        RunningVersion(name=found["name"], version=int(found["version"]), digest=found["digest"])
        for found in versions
        if found is not None
    ]
