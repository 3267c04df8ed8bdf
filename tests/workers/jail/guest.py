"""What bounds a worker's cgroup sets, on a kernel that has nobody else: this process is its first one, and the daemon.

``--files`` instead prints what of this machine's files that takes. `tests.workers.jail.machine` starts it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from appliance.workers.jail.access import FileAccess
from appliance.workers.jail.cgroup import TASKS_MAX, WorkerCgroups, enter, move_to_leaf
from appliance.workers.settings import WorkerSettings

PASSED: Final = "every bound holds"
MEBIBYTE: Final = 1 << 20
LIMIT: Final = 32 * MEBIBYTE
TENSORS: Final = 16 * MEBIBYTE
BOUNDED: Final = WorkerSettings(1, (), LIMIT, FileAccess())
UNBOUNDED: Final = BOUNDED._replace(memory_limit_bytes=0)
CGROUPS: Final = Path("/sys/fs/cgroup")
_RESTART: Final = 0x01234567
"""The kernel's number for it; the emulator, told so, ends by it."""


class Worker:
    """A process in a cgroup as the zygote makes one, and in it what it forked before it did its work."""

    def __init__(
        self,
        cgroups: WorkerCgroups,
        number: int,
        do: Callable[[int], object],
        settings: WorkerSettings = BOUNDED,
    ) -> None:
        self._cgroups = cgroups
        self._number = number
        made = cgroups.make(number, settings, TENSORS)
        assert made is not None
        self.path = made
        readable, writable = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            enter(made)
            os.write(writable, b"%d\n" % _paused())
            do(writable)
            os._exit(0)
        os.close(writable)
        self.said = os.fdopen(readable)
        self.forked = int(self.said.readline())

    def event(self, controller: str, name: str) -> int:
        """How often the kernel counted it."""
        lines = (self.path / f"{controller}.events").read_text().splitlines()
        return int(dict(line.split() for line in lines)[name])

    def lives(self) -> bool:
        """Whether neither has ended."""
        return os.waitpid(self.pid, os.WNOHANG) == (0, 0) and Path("/proc", str(self.forked), "exe").exists()

    def end(self) -> None:
        """Have its cgroup ended; returns when it has gone."""
        self._cgroups.end(self._number)
        while self.path.exists():
            self._cgroups.sweep()


def killed(pid: int) -> bool:
    """Whether it ends by that, sooner or later."""
    return os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def _paused() -> int:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid


def _idle(said: int) -> None:
    signal.pause()


def _fork_for_ever(said: int) -> None:
    count = 0
    try:
        while True:
            _paused()
            count += 1
    except OSError as problem:
        os.write(said, f"{count} {problem.errno}\n".encode())
    signal.pause()


def check_memory(cgroups: WorkerCgroups) -> None:
    """Of its own, or of tensors that the daemon made the object for; the latter lasts, and tells where it ended."""
    bystander = Worker(cgroups, 1, _idle)
    private = Worker(cgroups, 2, lambda _: bytearray(b"x") * (4 * LIMIT))
    tensors = os.memfd_create("tensors")
    filling = Worker(cgroups, 3, lambda _: [os.write(tensors, bytes(MEBIBYTE)) for _ in range(128)])
    for each in (private, filling):
        assert killed(each.pid)
        assert each.event("memory", "oom_group_kill") == 1
        assert killed(each.forked)
    written = os.fstat(tensors).st_size
    assert TENSORS < written <= LIMIT + TENSORS, written
    assert bystander.lives()
    print(
        f"memory.max: killed, after {written // MEBIBYTE} MiB of tensors; what it had forked, too; no other"
    )
    bystander.end()


def check_tasks(cgroups: WorkerCgroups) -> None:
    """Two are there before it begins. With a bound on memory it would run into that first."""
    bystander = Worker(cgroups, 4, _idle)
    bomb = Worker(cgroups, 5, _fork_for_ever, UNBOUNDED)
    said = bomb.said.readline()
    assert said == f"{TASKS_MAX - 2} {errno.EAGAIN}\n", said
    assert bomb.event("pids", "max") == 1
    print(f"pids.max: refused after {said.split()[0]} more tasks")
    held = (bomb.path / "cgroup.procs").read_text().split()
    bomb.end()
    assert killed(bomb.pid)
    living = [pid for pid in held if Path("/proc", pid, "exe").exists()]
    assert not living, living
    assert bystander.lives()
    print(f"cgroup.kill: {len(held)} processes ended; no other")
    bystander.end()


def delegate() -> WorkerCgroups:
    """Give this process a cgroup as systemd does, with the controllers, and have it shared out."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, path in (("proc", Path("/proc")), ("sysfs", Path("/sys")), ("cgroup2", CGROUPS)):
        path.mkdir(exist_ok=True)
        if libc.mount(kind.encode(), os.fsencode(path), kind.encode(), 0, None):
            raise OSError(ctypes.get_errno(), f"cannot mount {kind}")
    (CGROUPS / "cgroup.subtree_control").write_text("+memory +pids")
    unit = CGROUPS / "unit"
    unit.mkdir()
    os.setxattr(unit, "user.delegate", b"1")
    (unit / "cgroup.procs").write_text("0")
    refusal = move_to_leaf()
    assert refusal == "", refusal
    return WorkerCgroups()


def files() -> list[str]:
    """Those of this machine that this process has read or mapped."""
    modules = (getattr(module, "__file__", None) for module in sys.modules.values())
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    found = (Path(path) for path in (*modules, *mapped) if path and os.path.isfile(path))
    return sorted({str(name) for path in found for name in (path, *_links(path))})


def _links(library: Path) -> Iterator[Path]:
    """Other names of it, by which others ask for it."""
    if ".so." in library.name:
        alike = library.parent.glob(library.name.split(".so.")[0] + ".so.*")
        yield from (path for path in alike if path.is_symlink() and path.samefile(library))


def main() -> None:
    """Check, say what held, and end the machine in any case."""
    if sys.argv[1:] == ["--files"]:
        print("\n".join(files()))
        return
    try:
        cgroups = delegate()
        check_memory(cgroups)
        check_tasks(cgroups)
        print(PASSED)
    except BaseException:  # noqa: BLE001 - told to the console
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).reboot(_RESTART)


if __name__ == "__main__":
    main()
