"""Enter the jail: what a freshly forked worker gives up for good before it is told of any model.

The order matters: paths are opened while they can be, limits and capabilities go while they may be set, and the filter
comes last, since it refuses what the others are made with. A part that the kernel has and that cannot be put on ends
the worker; one that it lacks is passed over (``support`` names those).
"""

from __future__ import annotations

import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from glob import glob
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.process.calls import call, prctl
from appliance.workers.confinement import become, limit
from appliance.workers.jail import landlock, seccomp
from appliance.workers.jail.access import FileAccess
from appliance.workers.jail.landlock import Grant
from appliance.workers.jail.seccomp import Kind
from appliance.workers.jail.support import Support
from appliance.workers.jail.user import UserIds, capabilities

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
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system",
    "/sys/kernel/mm/transparent_hugepage",
    "/dev/urandom",
)
_OWN_PROCESS: Final = "/proc/self"
_DRIVERS: Final = ("/proc", "/sys")
"""They read more of these than can be listed."""
_LOADER: Final = "/etc/ld.so.conf.d/*.conf"
"""Where drivers and CUDA say that their libraries lie; no module that is imported tells of them."""
_DEVICES: Final = ("/dev/nvidia*", "/dev/dri", "/dev/kfd", "/dev/dxg", "/dev/zero")
"""What containers are given that may use an accelerator."""

_PR_SET_DUMPABLE: Final = 4
_CAPABILITIES: Final = struct.pack("=Ii", 0x20080522, 0)
"""Of this process, in the third version of the structure."""
_CAPSET: Final = MappingProxyType({"x86_64": 126, "aarch64": 91})
_KEPT: Final = struct.pack("=6I", 1 << 2, 1 << 2, 0, 0, 0, 0)
"""The capability to read what another user owns: a daemon of root's may serve such models."""


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
    return (*found, os.path.join(sys.base_prefix, "lib"), *_library_directories(), *_SYSTEM)


def _library_directories() -> Iterator[str]:
    """Those that are named to the loader and that it has found something in: it may find more there later."""
    mapped = (line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    loaded = {os.path.dirname(path) for path in mapped if ".so" in os.path.basename(path)}
    for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if os.path.isabs(path) and os.path.realpath(path) in loaded:
            yield path


class Entered(NamedTuple):
    """Descriptors: ``kept`` must stay open as long as the jail shall be as it is; by ``listener`` the parent can hear
    of what it refuses (-1: there is none). All others that it opened are the caller's to close."""

    kept: list[int]
    listener: int


class Jail:
    """What the jails of all workers have in common, made once by the process that forks them, since it would cost each
    worker more than all the rest: the files of the ``runtime``, opened, and the filters, assembled."""

    def __init__(
        self, support: Support, runtime: Iterable[str], devices: Iterable[str] = (), *, listens: bool = False
    ) -> None:
        """Raise OSError where something cannot be opened that is there. ``devices`` are patterns of device files, for
        workers that drive devices, beside those that are known. ``listens``: this process answers what the jails
        refuse (see ``seccomp``)."""
        self._support = support
        self._devices = (*_DEVICES, *devices)
        common = (Grant("/dev/null", landlock.USE), *map(Grant, (*_outermost(runtime), *_KERNEL)))
        self._opened = tuple(landlock.open_grants(common)) if support.landlock else ()
        machine = platform.machine()
        kinds = Kind if support.filter else ()
        self._filters = {kind: seccomp.program(machine, kind) for kind in kinds}
        self._telling = {
            kind: seccomp.telling(code) if listens else b"" for kind, code in self._filters.items()
        }

    def enter(self, access: FileAccess, site: str = "", user: UserIds = ()) -> Entered:
        """Give up everything but what ``access`` and the files of the runtime are, and to build in the directory
        ``site`` unless it is "", as another ``user`` if there is one. Raises OSError."""
        support = self._support
        if user:
            become(user)
        _drop_capabilities()
        own = list(landlock.open_grants(_grants(access, site, self._devices))) if support.landlock else []
        limit(resource.RLIMIT_NPROC, THREADS_MAX)
        limit(resource.RLIMIT_FSIZE, 0 if access.site is None else access.site.file_bytes_max)
        if support.landlock:
            landlock.restrict((*self._opened, *own), support.landlock)
        # Without Landlock, other workers could read its memory. With it they cannot, and the daemon, which is not root,
        # goes on knowing how much memory the worker shares with others, which the kernel tells of such processes alone.
        prctl(_PR_SET_DUMPABLE, 1 if support.landlock else 0)
        listener = -1
        if support.filter:
            codes = (filters[_kind(access)] for filters in (self._filters, self._telling))
            listener = seccomp.install(*(seccomp.of_process(code, os.getpid()) for code in codes))
        return Entered([each.descriptor for each in own if each.path.startswith("/proc")], listener)


def close_memory() -> None:
    """Keep processes of the same user from reading the memory of this one, in which there may be keys."""
    prctl(_PR_SET_DUMPABLE, 0)


def _kind(access: FileAccess) -> Kind:
    if access.devices:
        return Kind.DRIVING
    return Kind.SERVING if access.site is None else Kind.BUILDING


def _outermost(paths: Iterable[str]) -> Iterator[str]:
    """Leave out what lies in another one of them."""
    last = None
    for path in sorted({os.path.realpath(path) for path in paths}, key=lambda path: path.split(os.sep)):
        if last is None or not path.startswith(last + os.sep):
            last = path
            yield path


def _grants(access: FileAccess, site: str, devices: Iterable[str]) -> Iterator[Grant]:
    # cuInit truncates and writes its threads' /proc/self/task/N/comm, and fails with error 304 where it cannot
    yield Grant(_OWN_PROCESS, landlock.OWN if access.devices else landlock.READ)
    if access.devices:
        yield from map(Grant, (*_DRIVERS, *_driver_libraries()))
        for path in chain.from_iterable(map(glob, devices)):
            yield Grant(path, landlock.USE)
    yield from map(Grant, access.roots)
    for path in access.reads:
        yield Grant(path)
        yield from map(Grant, _behind_links(path, access.home))
    if access.site is not None:
        yield Grant(access.site.counted, landlock.LIST)
        yield Grant(access.site.forms, landlock.LIST)
    if site:
        yield Grant(site, landlock.BUILD)


def _driver_libraries() -> Iterator[str]:
    """Directories of the loader, and those that the driver's library there is really in."""
    for path in sorted(glob(_LOADER)):
        with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as lines:
            for folder in filter(os.path.isdir, map(str.strip, lines)):
                yield folder
                yield from (
                    os.path.dirname(os.path.realpath(each)) for each in glob(f"{folder}/libcuda.so.1")
                )


def _behind_links(path: str, home: str) -> Iterator[str]:
    """What symbolic links in a directory lead to below ``home``. The repository looks at the links that it follows
    alone; any other may lie there and lead anywhere."""
    waiting = [path] if home else []
    left = LINKS_MAX
    while waiting and left > 0:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in islice(entries, left):
                left -= 1
                if entry.is_symlink():
                    real = os.path.realpath(entry.path)
                    if real.startswith(home.rstrip("/") + "/"):
                        yield real
                elif entry.is_dir():
                    waiting.append(entry.path)


def _drop_capabilities() -> None:
    """Root's worker is as powerless as everybody's, but for the one capability, where it is there."""
    number = _CAPSET.get(platform.machine())
    if number is None:
        return
    try:
        call(number, _CAPABILITIES, _KEPT)
    except OSError:
        try:
            call(number, _CAPABILITIES, bytes(len(_KEPT)))
        except PermissionError:  # the service manager's filter refuses the call to who has none
            if capabilities():
                raise
