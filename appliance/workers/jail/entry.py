"""Enter the jail: what a freshly forked worker gives up for good before it is told of any model.

The order matters: paths are opened while they can be, limits and capabilities go while they may be set, and the filter
comes last, since it refuses what the others are made with. A part that the kernel has and that cannot be put on ends
the worker; one that it lacks is passed over (``support`` names those).
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Final

from appliance.workers.jail import landlock, seccomp
from appliance.workers.jail.access import FileAccess
from appliance.workers.jail.calls import call, prctl
from appliance.workers.jail.landlock import Grant
from appliance.workers.jail.support import Support

DESCRIPTORS_MAX: Final = 4096
"""A model whose weights lie in a file of their own keeps it open."""
THREADS_MAX: Final = 4096
"""Of all processes of the user together; the kernel counts none of root's."""
LINKS_MAX: Final = 10_000

_SYSTEM: Final = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
_KERNEL: Final = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system",
    "/sys/kernel/mm/transparent_hugepage",
    "/dev/urandom",
    "/dev/zero",
)
_ACCELERATORS: Final = ("/proc", "/sys")
"""Drivers read more of these than can be listed; what they write lies in ``/dev``."""

_PR_SET_DUMPABLE: Final = 4
_CAPABILITIES_VERSION: Final = 0x20080522
_CAPSET: Final = MappingProxyType({"x86_64": 126, "aarch64": 91})
_KEPT_CAPABILITY: Final = 1 << 2
"""To read what another user owns: a daemon of root's may serve such models."""


def runtime_files() -> tuple[str, ...]:
    """List where Python, its packages and their libraries lie, as far as they are imported: no directory that only
    happens to be searched."""
    named = ("stdlib", "platstdlib", "purelib", "platlib")
    found = dict.fromkeys(sysconfig.get_path(name) for name in named)
    known = tuple(os.path.realpath(path) + os.sep for path in found)
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not file or os.path.realpath(file).startswith(known):
            continue
        found[os.path.dirname(file) if hasattr(module, "__path__") else file] = None
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return (*found, *filter(None, libraries), *_SYSTEM)


def enter(access: FileAccess, support: Support, runtime: Sequence[str], site: str = "") -> list[int]:
    """Give up everything but what ``access`` and the files of the ``runtime`` are, and to build in the directory
    ``site`` unless it is "". Gives descriptors to be kept (see ``landlock.restrict``). Raises OSError."""
    grants = list(_grants(access, runtime, site))
    _limit(access)
    _drop_capabilities()
    pinned = landlock.restrict(grants, support.landlock) if support.landlock else []
    # Without Landlock, other workers could read its memory. With it they cannot, and the daemon, which is not root,
    # goes on knowing how much memory the worker shares with others, which the kernel tells of such processes alone.
    prctl(_PR_SET_DUMPABLE, 1 if support.landlock else 0)
    if support.filter and not access.devices:
        builds = access.site is not None
        seccomp.install(seccomp.program(platform.machine(), os.getpid(), builds=builds))
    return pinned


def close_memory() -> None:
    """Keep processes of the same user from reading the memory of this one, in which there may be keys."""
    prctl(_PR_SET_DUMPABLE, 0)


def _grants(access: FileAccess, runtime: Sequence[str], site: str) -> Iterator[Grant]:
    yield Grant("/dev/null", landlock.USE)
    for path in (*runtime, *_KERNEL):
        yield Grant(path)
    if access.devices:
        yield from map(Grant, _ACCELERATORS)
        yield Grant("/dev", landlock.USE)
    yield from map(Grant, access.roots)
    for path in access.reads:
        yield Grant(path)
        yield from map(Grant, _behind_links(path, access.home))
    if access.site is not None:
        yield Grant(access.site.counted, landlock.LIST)
        yield Grant(access.site.forms, landlock.LIST)
    if site:
        yield Grant(site, landlock.BUILD)


def _behind_links(path: str, home: str) -> Iterator[str]:
    """What symbolic links in a directory lead to below ``home``. The repository looks at the links that it follows
    alone; any other may lie there and lead anywhere."""
    if not home:
        return
    left = LINKS_MAX
    for directory, directories, files in os.walk(path):
        for name in (*directories, *files):
            left -= 1
            if left < 0:
                return
            entry = os.path.join(directory, name)
            if os.path.islink(entry) and (real := os.path.realpath(entry)).startswith(home.rstrip("/") + "/"):
                yield real


def _limit(access: FileAccess) -> None:
    """Bound what it may take of the machine's tables. What is less already stays."""
    written = 0 if access.site is None else access.site.file_bytes_max
    for number, bound in (
        (resource.RLIMIT_NOFILE, DESCRIPTORS_MAX),
        (resource.RLIMIT_NPROC, THREADS_MAX),
        (resource.RLIMIT_FSIZE, written),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(number)
        least = bound if hard == resource.RLIM_INFINITY else min(hard, bound)
        resource.setrlimit(number, (least, least))


def _drop_capabilities() -> None:
    """Root's worker is as powerless as everybody's, but for the one capability, where it is there."""
    number = _CAPSET.get(platform.machine())
    if number is None:
        return
    head = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    try:
        call(
            number, _memory(head), _memory(struct.pack("=6I", _KEPT_CAPABILITY, _KEPT_CAPABILITY, 0, 0, 0, 0))
        )
    except OSError:
        call(number, _memory(head), _memory(bytes(24)))


def _memory(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content, len(content))
