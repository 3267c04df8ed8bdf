"""Landlock: files, TCP, abstract sockets and signals, as far as the kernel knows how to keep a process from them.

A ruleset names all rights that its kernel can handle and then grants some beneath some paths; what is handled and not
granted is refused. It holds for the calling thread and for what that starts, so it is put on while there is one thread.
Structures are those of the kernel's ``linux/landlock.h``; the numbers of its calls are alike on all architectures.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from appliance.process.calls import call

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1

_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_REMOVE_FILE: Final = 1 << 5
_MAKE_REGULAR: Final = 1 << 8
_TRUNCATE: Final = 1 << 14
_DEVICE_CONTROL: Final = 1 << 15
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL
"""Rights that can be granted on something that is no directory."""

READ: Final = _READ_FILE | _READ_DIR
LIST: Final = _READ_DIR
BUILD: Final = READ | _WRITE_FILE | _MAKE_REGULAR | _REMOVE_FILE | _TRUNCATE
"""Everything about regular files; no directory, link, socket or device can be made."""
OWN: Final = READ | _WRITE_FILE | _TRUNCATE
"""Of files that are there, none of which can be made or removed."""
USE: Final = READ | _WRITE_FILE | _DEVICE_CONTROL
"""Of devices."""

_FILE_RIGHTS: Final = ((1, 13), (2, 14), (3, 15), (5, 16))
"""From which version on how many of the rights on files are known."""
_NET_VERSION: Final = 4
_NET_RIGHTS: Final = 0b11
"""To bind and to connect TCP sockets."""
_SCOPE_VERSION: Final = 6
_SCOPES: Final = 0b11
"""Abstract Unix sockets and signals."""
_TRUNCATION_VERSION: Final = 3

OUT_OF_THE_WAY: Final = 64
"""Above all descriptors that a worker keeps."""

_RULESET: Final = struct.Struct("=QQQ")
_BENEATH: Final = struct.Struct("=Qi")


class Grant(NamedTuple):
    """Rights on a path and what lies beneath it; a path that is not there grants nothing."""

    path: str
    rights: int = READ


class Opened(NamedTuple):
    """A grant of what was there when it was opened."""

    path: str
    descriptor: int
    rights: int


def version() -> int:
    """Tell the version of the kernel's interface, 0 where there is none or it is switched off."""
    with suppress(OSError):
        return call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return 0


def handles_files(known: int) -> bool:
    """Whether a kernel of this version keeps a process from every way to change files."""
    return known >= _TRUNCATION_VERSION


def handles_network(known: int) -> bool:
    """Whether it keeps one from TCP."""
    return known >= _NET_VERSION


def scopes(known: int) -> bool:
    """Whether it keeps one from abstract sockets of others, and from sending them signals."""
    return known >= _SCOPE_VERSION


def open_grants(grants: Iterable[Grant]) -> Iterator[Opened]:
    """Open what is there of ``grants``, out of the way of the descriptors that a worker keeps. Raises OSError."""
    for path, rights in grants:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
                continue
            raise
        if descriptor < OUT_OF_THE_WAY:
            low, descriptor = descriptor, fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
            os.close(low)
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        yield Opened(path, descriptor, rights if is_directory else rights & _OF_FILES)


def restrict(opened: Iterable[Opened], known: int) -> None:
    """Leave this thread only what is ``opened``, on a kernel whose version is ``known``. Raises OSError.

    A descriptor of something in ``/proc`` must stay open as long as its grant shall hold: the kernel makes these files
    anew when it forgets them, and a grant is for the one that was there."""
    handled = (1 << max(count for since, count in _FILE_RIGHTS if known >= since)) - 1
    network = _NET_RIGHTS if handles_network(known) else 0
    scoped = _SCOPES if scopes(known) else 0
    size = 24 if scopes(known) else 16 if handles_network(known) else 8
    ruleset = call(_CREATE_RULESET, _RULESET.pack(handled, network, scoped), size, 0)
    try:
        for path, descriptor, rights in opened:
            if rights & handled:
                _grant(ruleset, path, _BENEATH.pack(rights & handled, descriptor))
        call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _grant(ruleset: int, path: str, beneath: bytes) -> None:
    try:
        call(_ADD_RULE, ruleset, _PATH_BENEATH, beneath, 0)
    except OSError as problem:
        reason = os.strerror(problem.errno or 0)
        raise OSError(problem.errno, f"Landlock refuses '{path}': {reason}") from problem
