"""A seccomp filter for workers: the system calls of ``syscalls`` are allowed, everything else is refused. Where a
runtime drives a device, nobody can list what its driver does: then those that lead outwards are refused, and the rest
allowed.

Refused calls fail with EPERM and cost nothing else, but that a listener hears of them first. Those that are newer than
this list, and those whose arguments lie in memory where a filter cannot read them, fail with ENOSYS, so that a library
does what it does on older kernels. A filter is a program of the kernel's classic BPF machine (``linux/bpf_common.h``):
it reads the number and the arguments of a call, jumps forward only, and returns what becomes of the call. It is put on
in one step for all threads of the process and can never be taken off.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final, NamedTuple

from appliance.process.calls import call
from appliance.workers.jail.syscalls import AUDIT_ARCHITECTURES, FILTER_CALLS, Calls

_CALL: Final = FILTER_CALLS.get(platform.machine(), -1)
_SET_FILTER: Final = 1
_ASK_ACTION: Final = 2
_ALL_THREADS: Final = 1 << 0
_NO_MITIGATION: Final = 1 << 2
"""Without it kernels before 5.16 slow the whole process down against a side channel that leads to itself only."""
_LISTEN: Final = 1 << 3 | 1 << 4
"""Give a descriptor that tells of calls, although the filter is put on in all threads."""
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_REFUSE: Final = _ERRNO | errno.EPERM
_UNKNOWN: Final = _ERRNO | errno.ENOSYS
_TELL: Final = 0x7FC00000

_LOAD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_AND: Final = 0x54
_RETURN: Final = 0x06
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16

NEWEST_CALL: Final = 462
"""The newest one that was looked at for this list."""

_THREAD: Final = 0x00010100
"""Flags of clone that make a thread: memory in common, one process."""
_NAMESPACES: Final = 0x7E020000
"""Those that make some."""
_WRITING: Final = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)
_FILE_CONTROLS: Final = (0, 1, 2, 3, 4, 1030, 1034)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GET_SEALS."""
_LOCKS: Final = (5, 6, 7, 36, 37, 38, 1033)
"""F_GETLK, F_SETLK, F_SETLKW, the same for open files, F_ADD_SEALS."""
_DEVICE_CONTROLS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS and TIOCGWINSZ, by which it is asked whether something is a terminal, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PROCESS_CONTROLS: Final = (3, 15, 16, 0x53564D41)
"""PR_GET_DUMPABLE, PR_SET_NAME and PR_GET_NAME, PR_SET_VMA: names of threads and of memory."""
_WHO_PROCESS: Final = 1
_PRIVATE: Final = mmap.MAP_PRIVATE
_OF_A_FILE: Final = (mmap.MAP_SHARED, mmap.MAP_SHARED | mmap.MAP_PRIVATE)
"""Shared memory, whose flags are told from others by a combination."""
_MAPPINGS: Final = (_PRIVATE, _PRIVATE | mmap.MAP_ANONYMOUS, *_OF_A_FILE)
"""Memory of nobody's file that is shared would not be counted (RLIMIT_DATA)."""
_MAPPING_MASK: Final = 0x0F | mmap.MAP_ANONYMOUS


class Kind(Enum):
    """What a worker does that the filter has to know: serve; make and change files, as far as Landlock lets it; drive
    a device."""

    SERVING = auto()
    BUILDING = auto()
    DRIVING = auto()


class _Argument(NamedTuple):
    """What an argument (its number, its lower half) must be under a mask: one of ``values``."""

    number: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


class _Step(NamedTuple):
    """One instruction: where it goes on when what it asks is so or not, in steps beyond the next."""

    code: int
    then: int
    otherwise: int
    value: int


class Asked(NamedTuple):
    """A call that waits for its answer."""

    id: int
    number: int


class _Program(ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = (("steps", ctypes.c_ushort), ("code", ctypes.c_char_p))


_STEP: Final = struct.Struct("=HBBI")
_VALUE: Final = struct.Struct("=I")
_ASKED: Final = struct.Struct("=Q8xi60x")
_ANSWER: Final = struct.Struct("=Q8xi4x")
_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_HEAD_STEPS: Final = 4
"""Of a program: what they refuse is no call by a number of this architecture."""
_Steps = tuple[_Step, ...]
_ALLOWED: Final[_Steps] = (_Step(_RETURN, 0, 0, _ALLOW),)
_REFUSED: Final[_Steps] = (_Step(_RETURN, 0, 0, _REFUSE),)
_NOT_KNOWN: Final[_Steps] = (_Step(_RETURN, 0, 0, _UNKNOWN),)
_OWN_PID: Final = 0x7FFFFFFF
"""In place of the process's own number: larger than any."""


def can_filter() -> bool:
    """Whether there is a list for this architecture, and this kernel takes a filter."""
    if _CALL < 0:
        return False
    with suppress(OSError):
        call(_CALL, _ASK_ACTION, 0, _VALUE.pack(_ERRNO))
        return True
    return False


def program(machine: str, kind: Kind) -> bytes:
    """Assemble the filter of a worker process, but for its number (see ``of_process``)."""
    calls = Calls(machine)
    if kind is Kind.DRIVING:
        verdicts = dict.fromkeys(range(NEWEST_CALL + 1), _ALLOWED)
        verdicts |= dict.fromkeys(calls.leading_outwards.values(), _REFUSED)
    else:
        verdicts = dict.fromkeys(calls.always.values(), _ALLOWED)
        verdicts |= dict.fromkeys(calls.building.values(), _ALLOWED if kind is Kind.BUILDING else _REFUSED)
    for name, arguments in _judged(kind):
        if name in calls.judged:
            verdicts[calls.judged[name]] = tuple(_body(arguments))
    verdicts[calls.judged["clone3"]] = verdicts[calls.judged["openat2"]] = _NOT_KNOWN
    steps = [
        _Step(_LOAD, 0, 0, _ARCHITECTURE_AT),
        _Step(_JUMP_EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]),
        _Step(_RETURN, 0, 0, _REFUSE),
        _Step(_LOAD, 0, 0, _NUMBER_AT),
        *_choice(tuple(_ranges(verdicts))),
    ]
    return b"".join(_STEP.pack(*step) for step in steps)


def of_process(code: bytes, pid: int) -> bytes:
    """Give the filter for the process ``pid``."""
    return code.replace(_VALUE.pack(_OWN_PID), _VALUE.pack(pid))


def _ranges(verdicts: Mapping[int, _Steps]) -> Iterator[tuple[int, _Steps]]:
    """What becomes of calls from a number on, up to the next."""
    before = None
    for number in range(NEWEST_CALL + 1):
        verdict = verdicts.get(number, _REFUSED)
        if verdict != before:
            yield number, verdict
        before = verdict
    yield NEWEST_CALL + 1, _NOT_KNOWN


def _choice(ranges: Sequence[tuple[int, _Steps]]) -> Iterator[_Step]:
    """Find the range of a number by halving: the kernel runs the filter for every number when it is put on."""
    if len(ranges) == 1:
        yield from ranges[0][1]
        return
    half = len(ranges) // 2
    lower = tuple(_choice(ranges[:half]))
    yield _Step(_JUMP_AT_LEAST, len(lower), 0, ranges[half][0])
    yield from lower
    yield from _choice(ranges[half:])


def _judged(kind: Kind) -> Iterator[tuple[str, Sequence[_Argument]]]:
    """Calls with the arguments that they must have."""
    yield from _judged_always()
    if kind is Kind.DRIVING:
        yield "clone", (_Argument(0, (0,), _NAMESPACES),)
        yield "fcntl", (_Argument(1, (*_FILE_CONTROLS, *_LOCKS)),)
        yield "socket", (_Argument(0, (socket.AF_UNIX,)),)
        return
    reads = () if kind is Kind.BUILDING else (os.O_RDONLY,)
    yield "clone", (_Argument(0, (_THREAD,), _THREAD | _NAMESPACES),)
    yield "fcntl", (_Argument(1, _FILE_CONTROLS),)
    yield "ioctl", (_Argument(1, _DEVICE_CONTROLS),)
    yield "mmap", (_Argument(3, _MAPPINGS, _MAPPING_MASK),)
    yield "open", (_Argument(1, reads, _WRITING),) if reads else ()
    yield "openat", (_Argument(2, reads, _WRITING),) if reads else ()


def _judged_always() -> Iterator[tuple[str, Sequence[_Argument]]]:
    """Those of processes, which are named by number: the own one, also as 0."""
    own = (0, _OWN_PID)
    yield "kill", (_Argument(0, (_OWN_PID,)),)
    yield "tgkill", (_Argument(0, (_OWN_PID,)),)
    yield "prctl", (_Argument(0, _PROCESS_CONTROLS),)
    yield "prlimit64", (_Argument(0, own),)
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        yield name, (_Argument(0, own),)
    yield "setpriority", (_Argument(0, (0,)), _Argument(1, own))
    yield "ioprio_set", (_Argument(0, (_WHO_PROCESS,)), _Argument(1, own))


def _body(arguments: Sequence[_Argument]) -> Iterator[_Step]:
    """What is done with a call that is allowed when all ``arguments`` are as they must be, and refused otherwise."""
    for argument in arguments:
        yield _Step(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument.number)
        if argument.mask != 0xFFFFFFFF:
            yield _Step(_AND, 0, 0, argument.mask)
        left = len(argument.values)
        for value in argument.values:
            yield _Step(_JUMP_EQUAL, left, 0, value)
            left -= 1
        yield _Step(_RETURN, 0, 0, _REFUSE)
    yield _Step(_RETURN, 0, 0, _ALLOW)


def install(code: bytes, telling: bytes = b"") -> int:
    """Put the filter on this process for good, the ``telling`` one where there can be a listener; gives that, or -1
    where there is none, as where somebody else listens already. Raises OSError. Wants no_new_privs."""
    if telling:
        with suppress(OSError):
            return _put_on(telling, _LISTEN)
    if stayed := _put_on(code, 0):
        raise OSError(errno.ESRCH, f"thread {stayed} could not be given the filter")
    return -1


def receive(listener: int) -> Asked:
    """Take the next call that is to be refused. Raises FileNotFoundError when its caller has ended."""
    told = bytearray(_ASKED.size)
    fcntl.ioctl(listener, _RECEIVE, told)
    return Asked(*_ASKED.unpack(told))


def refuse(listener: int, asked: Asked) -> None:
    """Answer it. Raises FileNotFoundError when its caller has ended, or waits no longer."""
    fcntl.ioctl(listener, _SEND, _ANSWER.pack(asked.id, -errno.EPERM))


def telling(code: bytes) -> bytes:
    """Give the same filter, but that what it refuses waits for a listener's answer."""
    steps = map(_Step._make, _STEP.iter_unpack(code))
    return b"".join(
        _STEP.pack(*(step._replace(value=_TELL) if _refuses(step) and at >= _HEAD_STEPS else step))
        for at, step in enumerate(steps)
    )


def _refuses(step: _Step) -> bool:
    return step.code == _RETURN and step.value == _REFUSE


def _put_on(code: bytes, flags: int) -> int:
    head = _Program(len(code) // _STEP.size, code)
    return call(_CALL, _SET_FILTER, _ALL_THREADS | _NO_MITIGATION | flags, ctypes.byref(head))
