"""A cgroup for each worker, where that of the daemon is delegated to it, as by ``Delegate=memory pids`` of its unit.

It bounds what no limit of a process does: the tensors that a worker writes to, what it has forked, tasks of root's. All
that is in it ends at once. The second version of the interface alone; in the cgroup that is delegated there may be no
process beside those in it, so the daemon moves to one below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.workers.settings import WorkerSettings

LEAF: Final = "daemon"
"""Of the daemon and its zygote; a unit may have it made by ``DelegateSubgroup=``."""
WORKERS: Final = "worker-"
_NAME: Final = re.compile(WORKERS + r"([0-9]+)-[0-9]+", re.ASCII)
"""With the zygote's process number and the worker's."""
TASKS_MAX: Final = 2048
"""Of one worker, whose runtime may have a thousand threads by its configuration."""
CONTROLLERS: Final = ("memory", "pids")
_DELEGATED: Final = ("user.delegate", "trusted.delegate")
"""How systemd marks the cgroup that it gives away; what root may write to is not root's by that alone."""


def move_to_leaf() -> str:
    """Have this process, which is the only one in its cgroup, in a leaf of it beside which there can be others; gives
    why that cannot be, "" when it is so."""
    base, refusal = _delegated(_own_cgroup())
    if base is None:
        return refusal
    try:
        (base / LEAF).mkdir(exist_ok=True)
        _write(base / LEAF, "cgroup.procs", "0")
        for each in _present(base):
            _write(base, "cgroup.subtree_control", f"+{each}")
    except OSError as problem:
        return f"{base} cannot be shared out: {problem.strerror}"
    return ""


class WorkerCgroups:
    """Owner: the zygote, which is in the daemon's leaf where there are any."""

    def __init__(self) -> None:
        own = _own_cgroup()
        self._base = _delegated(own)[0] if own is not None and own.name == LEAF else None
        self._ended: set[Path] = set()
        if self._base is not None:
            self._ended.update(_left_behind(self._base))
            self.sweep()

    def make(self, worker: int, settings: WorkerSettings, tensors_bytes: int) -> Path | None:
        """Make that of a worker, None where there are none: for its private memory as configured, its tensors, and the
        files that it may map. Those of workers that versions share are not known. Raises OSError."""
        if self._base is None:
            return None
        self.sweep()
        made = self._path(worker)
        made.mkdir()
        access = settings.access
        bounds = {"pids.max": TASKS_MAX, "memory.oom.group": 1}
        if settings.memory_limit_bytes and access is not None and not access.roots:
            written = 0 if access.site is None else access.site.file_bytes_max
            mapped = sum(_file_bytes(access.reads)) + 2 * written
            bounds["memory.max"] = settings.memory_limit_bytes + tensors_bytes + mapped
        for name, bound in bounds.items():
            if (made / name).exists():  # else there is no such controller
                _write(made, name, str(bound))
        return made

    def end(self, worker: int) -> None:
        """Kill all that is in it; it goes when that has ended."""
        if self._base is not None:
            self._ended.add(self._path(worker))
            self.sweep()

    def sweep(self) -> None:
        """Kill what is left in those of workers that have ended, and remove them when they are empty."""
        for path in list(self._ended):
            with suppress(OSError):
                _write(path, "cgroup.kill", "1")
            with suppress(OSError):
                path.rmdir()
            if not path.exists():
                self._ended.remove(path)

    def _path(self, worker: int) -> Path:
        assert self._base is not None
        return self._base / f"{WORKERS}{os.getpid()}-{worker}"


def _left_behind(base: Path) -> Iterator[Path]:
    """Those of zygotes that died. There may be another one that lives, as of a second appliance in the same unit or
    container, and in a hierarchy that others write to as well a name that only begins like these."""
    with suppress(OSError):
        living = set((base / LEAF / "cgroup.procs").read_text().split()) - {str(os.getpid())}
        for path in base.glob(f"{WORKERS}*"):
            named = _NAME.fullmatch(path.name)
            if named is not None and named[1] not in living:
                yield path


def enter(made: Path | None) -> None:
    """Be in it, with all that this process forks. Raises OSError."""
    if made is not None:
        _write(made, "cgroup.procs", "0")


def _own_cgroup() -> Path | None:
    """Where it is mounted."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split()
            if " - cgroup2 " in line:
                return Path(fields[4], os.path.relpath(path, fields[3]))
    return None


def _delegated(own: Path | None) -> tuple[Path | None, str]:
    """The one that may be shared out, the own one or that above the daemon's leaf; or why there is none. The root has
    nothing to kill by."""
    base = own.parent if own is not None and own.name == LEAF else own
    if base is None or not (base / "cgroup.kill").exists():
        return None, "this process is in no cgroup of the second version, or Linux is older than 5.14"
    if not all(os.access(each, os.W_OK) for each in (base, base / "cgroup.procs")):
        return (
            None,
            f"{base} may not be changed by this process: its unit has no Delegate=, or ProtectControlGroups=",
        )
    if os.geteuid() == 0 and not _is_marked(base):
        return None, f"{base} is not delegated: its unit has no Delegate="
    return base, ""


def _is_marked(base: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(base, name) == b"1":
                return True
    return False


def _present(base: Path) -> Iterable[str]:
    there = (base / "cgroup.controllers").read_text().split()
    return (each for each in CONTROLLERS if each in there)


def _file_bytes(paths: Iterable[str]) -> Iterator[int]:
    """Of the files that lie in these directories, links followed."""
    for path in paths:
        with suppress(OSError):
            for entry in os.scandir(path):
                with suppress(OSError):
                    yield entry.stat().st_size


def _write(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(text)
