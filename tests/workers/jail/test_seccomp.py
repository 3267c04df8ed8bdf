"""The filter of system calls by a real kernel, and its program for both architectures by a machine of its own."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from appliance.process import priority
from appliance.process.calls import call, prctl
from appliance.workers.jail import seccomp
from appliance.workers.jail.seccomp import Kind
from appliance.workers.jail.syscalls import AUDIT_ARCHITECTURES, Calls
from tests.workers.jail.forked import in_fork, needs_filters, outcome

NO_NEW_PRIVILEGES = 38
ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS
PID = 4711
REFUSED = "Operation not permitted"

MACHINES = sorted(AUDIT_ARCHITECTURES)


def table(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (entry.split() for entry in text.split(","))}


HOSTILE = {
    "x86_64": table("""
memfd_create 319, execve 59, execveat 322, ptrace 101, process_vm_readv 310, process_vm_writev 311, socket 41,
connect 42, bind 49, accept4 288, fork 57, vfork 58, mount 165, unshare 272, setns 308,
pivot_root 155, chroot 161, bpf 321, io_uring_setup 425, userfaultfd 323, keyctl 250, add_key 248,
request_key 249, perf_event_open 298, pidfd_open 434, pidfd_getfd 438, pidfd_send_signal 424,
tkill 200, setuid 105, rt_sigqueueinfo 129, init_module 175, kexec_load 246, open_by_handle_at 304,
link 86, symlink 88, mknod 133, chmod 90, chown 92, mkdir 83, setrlimit 160, swapon 167
"""),
    "aarch64": table("""
memfd_create 279, execve 221, execveat 281, ptrace 117, process_vm_readv 270, process_vm_writev 271, socket 198,
connect 203, bind 200, accept4 242, mount 40, unshare 97, setns 268, bpf 280, io_uring_setup 425,
userfaultfd 282, keyctl 219, perf_event_open 241, pidfd_open 434, pidfd_getfd 438,
pidfd_send_signal 424, tkill 130, setuid 146
"""),
}


def filter_of(machine: str, pid: int = PID, *, kind: Kind = Kind.SERVING) -> bytes:
    return seccomp.of_process(seccomp.program(machine, kind), pid)


def run(code: bytes, machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What a filter says of a call."""
    return trace(code, machine, number, *arguments, architecture=architecture)[0]


def trace(
    code: bytes, machine: str, number: int, *arguments: int, architecture: int | None = None
) -> tuple[int, int]:
    """What a filter says of a call, and after how many steps: the kernel's machine in a few lines."""
    known = AUDIT_ARCHITECTURES[machine] if architecture is None else architecture
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<iIQ6Q", number, known, 0, *padded)
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    at, held, done = 0, 0, 0
    while True:
        kind, then, otherwise, value = steps[at]
        at, done = at + 1, done + 1
        if kind == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
        elif kind == 0x54:
            held &= value
        elif kind == 0x15:
            at += then if held == value else otherwise
        elif kind == 0x35:
            at += then if held >= value else otherwise
        else:
            assert kind == 0x06
            return int(value), done


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", Kind)
def test_what_a_worker_needs_is_allowed(machine: str, kind: Kind) -> None:
    code, calls = filter_of(machine, kind=kind), Calls(machine)
    assert {run(code, machine, number) for number in calls.always.values()} == {ALLOW}
    assert {run(code, machine, number) for number in calls.building.values()} == {
        REFUSE if kind is Kind.SERVING else ALLOW
    }


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [Kind.SERVING, Kind.BUILDING])
def test_what_leads_outwards_is_refused(machine: str, kind: Kind) -> None:
    code = filter_of(machine, kind=kind)
    for name, number in HOSTILE[machine].items():
        assert run(code, machine, number) == REFUSE, name


BESIDE_DEVICES = frozenset(
    {"connect", "bind", "accept4", "fork", "vfork", "link", "symlink", "mknod", "chmod", "chown", "mkdir"}
    | {"setuid", "setrlimit", "memfd_create"}
)
"""What Landlock, no_new_privs, limits or having no socket for it see to."""


@pytest.mark.parametrize("machine", MACHINES)
def test_what_leads_outwards_is_refused_to_those_that_drive_devices(machine: str) -> None:
    code = filter_of(machine, kind=Kind.DRIVING)
    for name, number in HOSTILE[machine].items():
        assert run(code, machine, number) == (ALLOW if name in BESIDE_DEVICES else REFUSE), name
    assert run(code, machine, Calls(machine).judged["socket"], socket.AF_UNIX) == ALLOW
    assert run(code, machine, Calls(machine).judged["clone"], 0x01200011) == ALLOW
    assert run(code, machine, Calls(machine).judged["clone"], 0x10000000) == REFUSE
    assert run(code, machine, Calls(machine).judged["kill"], PID - 1) == REFUSE
    assert run(code, machine, seccomp.NEWEST_CALL + 1) == UNKNOWN


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_newer_or_cannot_be_judged_is_unknown(machine: str) -> None:
    code, judged = filter_of(machine, kind=Kind.SERVING), Calls(machine).judged
    assert run(code, machine, judged["clone3"]) == UNKNOWN
    assert run(code, machine, judged["openat2"]) == UNKNOWN
    assert run(code, machine, seccomp.NEWEST_CALL) == REFUSE
    assert run(code, machine, seccomp.NEWEST_CALL + 1) == UNKNOWN
    assert run(code, machine, 1 << 30) == UNKNOWN, "the 32-bit numbers of x86-64"


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_by_another_architecture_are_refused(machine: str) -> None:
    code = filter_of(machine, kind=Kind.BUILDING)
    assert run(code, machine, Calls(machine).always["read"], architecture=0x40000003) == REFUSE


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_is_found_by_halving(machine: str) -> None:
    """The kernel runs the filter for each number when it is put on, which a worker waits for."""
    code = filter_of(machine, kind=Kind.BUILDING)
    assert max(trace(code, machine, number, 1)[1] for number in range(seccomp.NEWEST_CALL + 2)) <= 20


JUDGED = [
    ("mmap", (0, 4096, 3, 0x22), ALLOW),
    ("mmap", (0, 4096, 3, 0x20022), ALLOW),
    ("mmap", (0, 4096, 1, 0x01, 5), ALLOW),
    ("mmap", (0, 4096, 3, 0x21), REFUSE),
    ("mmap", (0, 4096, 3, 0x23), REFUSE),
    ("clone", (0x3D0F00,), ALLOW),
    ("clone", (0x01200011,), REFUSE),
    ("clone", (0x3D0F00 | 0x10000000,), REFUSE),
    ("kill", (PID, 9), ALLOW),
    ("kill", (PID - 1, 9), REFUSE),
    ("kill", (0, 9), REFUSE),
    ("kill", (0xFFFFFFFF, 9), REFUSE),
    ("tgkill", (PID, 5000, 6), ALLOW),
    ("tgkill", (1, 1, 6), REFUSE),
    ("prlimit64", (0,), ALLOW),
    ("prlimit64", (1,), REFUSE),
    ("prctl", (15,), ALLOW),
    ("prctl", (1,), REFUSE),
    ("prctl", (4, 1), REFUSE),
    ("fcntl", (3, 1), ALLOW),
    ("fcntl", (3, 8, 1), REFUSE),
    ("ioctl", (2, 0x5401), ALLOW),
    ("ioctl", (2, 0x5412), REFUSE),
    ("sched_setscheduler", (0, 5), ALLOW),
    ("sched_setscheduler", (1, 5), REFUSE),
    ("sched_setattr", (PID,), ALLOW),
    ("sched_setaffinity", (PID + 1,), REFUSE),
    ("setpriority", (0, 0, 19), ALLOW),
    ("setpriority", (2, 0, 19), REFUSE),
    ("ioprio_set", (1, 0, 0), ALLOW),
    ("ioprio_set", (1, PID + 7, 0), REFUSE),
    ("ioprio_set", (3, 0, 0), REFUSE),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("name", "arguments", "said"), JUDGED)
def test_arguments_decide(machine: str, name: str, arguments: tuple[int, ...], said: int) -> None:
    code = filter_of(machine, kind=Kind.SERVING)
    assert run(code, machine, Calls(machine).judged[name], *arguments) == said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (os.O_RDONLY | os.O_CLOEXEC, ALLOW),
        (os.O_RDONLY | os.O_DIRECTORY, ALLOW),
        (os.O_WRONLY, REFUSE),
        (os.O_RDWR, REFUSE),
        (os.O_RDONLY | os.O_CREAT, REFUSE),
        (os.O_RDONLY | os.O_TRUNC, REFUSE),
        (os.O_RDWR | os.O_TMPFILE, REFUSE),
    ],
)
def test_files_are_opened_to_be_read_unless_one_builds(flags: int, said: int) -> None:
    machine = platform.machine()
    number = Calls(machine).judged["openat"]
    assert run(filter_of(machine, kind=Kind.SERVING), machine, number, 0, 0, flags) == said
    assert run(filter_of(machine, kind=Kind.BUILDING), machine, number, 0, 0, flags) == ALLOW


def filtered(do: Callable[[], object], *, kind: Kind = Kind.SERVING) -> str:
    def inside() -> object:
        prctl(NO_NEW_PRIVILEGES, 1)
        seccomp.install(filter_of(platform.machine(), os.getpid(), kind=kind))
        return do()

    return in_fork(inside)


@needs_filters
def test_what_a_worker_does_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x" * 5000)

    def work() -> str:
        thread = threading.Thread(target=priority.yield_processor)
        thread.start()
        thread.join()
        priority.take_turns(priority.SHORT_TURN_NS, os.getpid())
        priority.yield_disk()
        counter = os.eventfd(0)
        os.eventfd_write(counter, 1)
        with (
            open(tmp_path / "file", "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping,
        ):
            mapping.madvise(mmap.MADV_DONTNEED)
            assert mapping[:1] == b"x"
        os.listdir("/proc/self/task")
        return f"{os.eventfd_read(counter)} {resource.getrlimit(resource.RLIMIT_DATA)[0] != 0}"

    assert filtered(work) == "1 True"


@needs_filters
def test_nothing_leads_outwards() -> None:
    def tries() -> set[str]:
        ours, _ = os.pipe()
        return {
            outcome(lambda: os.execv("/bin/true", ["true"])),
            outcome(os.fork),
            outcome(socket.socket),
            outcome(lambda: socket.socket(socket.AF_UNIX)),
            outcome(lambda: os.kill(os.getppid(), signal.SIGKILL)),
            outcome(lambda: os.kill(-1, signal.SIGKILL)),
            outcome(lambda: os.open("/dev/null", os.O_WRONLY)),
            outcome(lambda: os.unlink("/tmp/none")),
            outcome(lambda: os.sched_setaffinity(os.getppid(), {0})),
            outcome(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))),
            outcome(lambda: os.setpriority(os.PRIO_USER, 0, 19)),
            outcome(lambda: call_of("fcntl", ours, 8, os.getppid())),
            outcome(lambda: prctl(1, 0)),
            outcome(lambda: prctl(4, 1)),
            outcome(lambda: os.setuid(0)),
        }

    assert filtered(tries) == str({REFUSED})


def call_of(name: str, *arguments: int) -> int:
    return call(Calls(platform.machine()).judged[name], *arguments)


@needs_filters
@pytest.mark.skipif(platform.machine() not in HOSTILE, reason="no list of this architecture")
def test_the_kernel_is_not_asked_for_more() -> None:
    def tries() -> set[str]:
        numbers = HOSTILE[platform.machine()].values()
        return {outcome(partial(call, number, 0, 0, 0, 0, 0)) for number in numbers}

    assert filtered(tries, kind=Kind.BUILDING) == str({REFUSED})


@needs_filters
def test_threads_that_are_there_get_the_filter_too() -> None:
    def tries() -> str:
        ready, begun, found = threading.Event(), threading.Event(), list[str]()

        def look() -> None:
            begun.set()
            ready.wait()
            found.append(outcome(socket.socket))

        thread = threading.Thread(target=look)
        thread.start()
        begun.wait()
        prctl(NO_NEW_PRIVILEGES, 1)
        seccomp.install(filter_of(platform.machine(), os.getpid()))
        ready.set()
        thread.join()
        return found[0]

    assert in_fork(tries) == REFUSED


@needs_filters
def test_a_filter_cannot_be_put_on_without_giving_up_privileges_first() -> None:
    def tries() -> Sequence[str]:
        code = ctypes.create_string_buffer(8)
        return [outcome(lambda: seccomp.install(bytes(code)))]

    assert in_fork(tries) == str(["Invalid argument"])


@needs_filters
def test_what_waits_for_its_answer_is_refused_whatever_becomes_of_the_listener() -> None:
    """By an answer, and by its end: as on a kernel without the call."""
    ours, theirs = socket.socketpair()

    def tries() -> str:
        prctl(NO_NEW_PRIVILEGES, 1)
        code = filter_of(platform.machine(), os.getpid())
        listener = seccomp.install(code, seccomp.telling(code))
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        return f"{outcome(socket.socket)}, {outcome(socket.socket)}"

    helper = os.fork()
    if helper == 0:
        theirs.close()
        _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
        asked = seccomp.receive(listener)
        seccomp.refuse(listener, asked)
        os._exit(asked.number)
    assert in_fork(tries) == f"{REFUSED}, {os.strerror(errno.ENOSYS)}"
    _, status = os.waitpid(helper, 0)
    assert os.waitstatus_to_exitcode(status) == Calls(platform.machine()).judged["socket"]
    ours.close()
    theirs.close()


@needs_filters
def test_where_another_one_listens_already_calls_are_refused_without_being_heard() -> None:
    def tries() -> str:
        prctl(NO_NEW_PRIVILEGES, 1)
        every = bytes.fromhex("0600000000 00ff7f".replace(" ", ""))  # a filter that allows everything
        first = seccomp.install(b"", every)
        code = filter_of(platform.machine(), os.getpid())
        second = seccomp.install(code, seccomp.telling(code))
        return f"{first >= 0} {second} {outcome(socket.socket)}"

    assert in_fork(tries) == f"True -1 {REFUSED}"
