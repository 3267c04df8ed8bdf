"""A runtime for tests whose models take their worker over, and try with it whatever they can.

Each run tries everything that leads out of the worker and fails with the list of what was reached. The first four bytes
of the input are the number of the daemon's process; parameters of the model name files, sockets and ports.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from appliance.domain.errors import RunFailed
from appliance.domain.model import ModelVersion
from appliance.runtimes.runtime import Feed, Place, Produced, Region, RuntimeSettings, Session
from tests.runtimes.fake import FakeRuntime, FakeSession
from tests.runtimes.shared_memory import places_of

CALLS = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "setuid": (105, 146),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "open_by_handle_at": (304, 265),
    "sethostname": (170, 161),
    "init_module": (175, 105),
}
Attempt = Callable[[], object]


class Targets(NamedTuple):
    """What is aimed at."""

    daemon: int
    own: str
    files: tuple[str, ...]
    directories: tuple[str, ...]
    sockets: tuple[str, ...]
    port: int


def read_attempts(targets: Targets) -> Iterator[tuple[str, Attempt]]:
    """To read what is no business of a worker."""
    pids = (targets.daemon, os.getppid(), 1)
    places = [
        f"/proc/{pid}/{name}" for pid in pids for name in ("environ", "maps", "mem", "cmdline", "status")
    ]
    for path in (*targets.files, "/etc/passwd", "/etc/hostname", "/proc/self/../1/comm", *places):
        yield f"read {path}", partial(_read, path)
    for path in (*targets.directories, "/", "/root", "/tmp", "/etc", "/proc", f"/proc/{targets.daemon}/fd"):
        yield f"list {path}", partial(os.listdir, path)


def write_attempts(targets: Targets) -> Iterator[tuple[str, Attempt]]:
    """To change files."""
    for path in (*targets.files, targets.own):
        yield f"write {path}", partial(os.open, path, os.O_WRONLY)
        yield f"truncate {path}", partial(os.truncate, path, 0)
        yield f"rename {path}", partial(os.rename, path, f"{path}.taken")
        yield f"chmod {path}", partial(os.chmod, path, 0o777)
        yield f"unlink {path}", partial(os.unlink, path)
    for directory in (*targets.directories, os.path.dirname(targets.own), "/tmp", "/dev/shm"):
        yield f"create in {directory}", partial(os.open, f"{directory}/planted", os.O_CREAT | os.O_WRONLY)
        yield f"mkdir in {directory}", partial(os.mkdir, f"{directory}/planted")
        yield f"symlink in {directory}", partial(os.symlink, "/", f"{directory}/planted")
        yield f"link in {directory}", partial(os.link, targets.own, f"{directory}/planted")
        yield f"socket file in {directory}", partial(os.mknod, f"{directory}/planted", 0o140600)


def network_attempts(targets: Targets) -> Iterator[tuple[str, Attempt]]:
    """To talk to somebody."""
    yield "connect TCP", partial(_connect, socket.AF_INET, ("127.0.0.1", targets.port))
    yield "bind TCP", lambda: socket.socket().bind(("127.0.0.1", 0))
    yield "send UDP", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))
    yield "make a netlink socket", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    yield "make a pair of sockets", socket.socketpair
    for path in targets.sockets:
        yield f"connect {path!r}", partial(_connect, socket.AF_UNIX, path)


def process_attempts(targets: Targets) -> Iterator[tuple[str, Attempt]]:
    """To reach other processes, become another program, or more of one."""
    for pid in (targets.daemon, os.getppid(), -1, 0):
        yield f"signal {pid}", partial(os.kill, pid, 0)
    for pid in (targets.daemon, os.getppid()):
        yield f"pidfd of {pid}", partial(os.pidfd_open, pid)
        yield f"affinity of {pid}", partial(os.sched_setaffinity, pid, {0})
        yield f"class of {pid}", partial(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
        yield f"priority of {pid}", partial(os.setpriority, os.PRIO_PROCESS, pid, 19)
        yield f"limits of {pid}", partial(resource.prlimit, pid, resource.RLIMIT_NOFILE)
        yield f"trace {pid}", partial(_libc, "ptrace", 16, pid, 0, 0)
    yield "fork", _fork
    yield "execute", partial(os.execv, "/bin/true", ["true"])
    yield "outlive its parent", partial(_libc, "prctl", 1, 0, 0, 0, 0)
    yield "raise its limits", partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    yield "be scheduled before others", partial(os.setpriority, os.PRIO_PROCESS, 0, -1)
    yield "memory without a limit", partial(mmap.mmap, -1, mmap.PAGESIZE)
    yield "more memory without a limit", partial(os.memfd_create, "more")
    yield "be told to by a file", partial(_libc, "fcntl", 3, 8, targets.daemon)
    column = ("x86_64", "aarch64").index(platform.machine())
    for name, numbers in CALLS.items():
        yield name, partial(_libc, "syscall", numbers[column], targets.daemon, 0, 0, 0, 0, 0)
    yield "namespaces", partial(_libc, "unshare", 0x10000000)


def reached(attempts: Iterator[tuple[str, Attempt]]) -> tuple[list[str], int]:
    """Names of those that came to something, and how many there were."""
    names, tried = [], 0
    for name, attempt in attempts:
        tried += 1
        with suppress(OSError, ValueError):
            attempt()
            names.append(name)
    return names, tried


class HostileRuntime(FakeRuntime):
    """The ``hostile`` runtime; a model without parameters is a lawful one."""

    name = "hostile"
    reads: tuple[str, ...] = ()

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """A session that tries everything with each run."""
        return (
            HostileSession(version, "hostile")
            if "files" in version.parameters
            else FakeSession(version, "identity")
        )


class HostileSession(FakeSession):
    """Fails with what it reached."""

    def __init__(self, version: ModelVersion, mode: str) -> None:
        super().__init__(version, mode)
        self._given = version.parameters
        self._own = str(Path(version.path) / "own") if os.path.isdir(version.path) else version.path

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """Try everything."""
        (feed,) = (each for each in feeds if each is not None)
        daemon = int.from_bytes(source.view[feed.offset : feed.offset + 4], "little")
        targets = Targets(
            daemon,
            self._own,
            tuple(self._given["files"].split(":")),
            tuple(self._given["directories"].split(":")),
            (self._given["control"], "\0" + self._given["abstract"]),
            int(self._given["port"]),
        )
        names, tried = reached(all_attempts(targets))
        names += [f"a tensor in {place}" for place in places_of(self._given["tensor"])]
        names += [f"environment {name}" for name in os.environ if "SECRET" in name]
        own = outcome_of(partial(_read, self._own))
        raise RunFailed(f"tried {tried}; own file {own}; reached {names}")


def all_attempts(targets: Targets) -> Iterator[tuple[str, Attempt]]:
    """Everything, what ends the worker where it succeeds at the end."""
    for kind in (read_attempts, write_attempts, network_attempts, process_attempts):
        yield from kind(targets)


def outcome_of(attempt: Attempt) -> str:
    """``read`` or why not."""
    try:
        attempt()
    except OSError as problem:
        return str(problem.strerror)
    return "read"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1)


def _connect(family: int, address: Any) -> None:
    with socket.socket(family) as client:
        client.connect(address)


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _libc(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*map(ctypes.c_long, arguments)) == -1:
        raise OSError(ctypes.get_errno(), name)
