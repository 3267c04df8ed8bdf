"""What a forked worker gives up before it loads a model: descriptors, privileges, limits, signals.

Used in the zygote's process and its children. Linux only, like the appliance.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from appliance.process.calls import prctl
from appliance.process.life import die_with_parent
from appliance.workers.jail.user import UserIds
from appliance.workers.settings import WorkerSettings

LANE_DESCRIPTOR: Final = 3
MEMORY_DESCRIPTOR: Final = 4
DOORBELL_DESCRIPTOR: Final = 5
OUT_OF_THE_WAY: Final = 16
OOM_SCORE: Final = 800
LIMITS: Final = (
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_MSGQUEUE, 0),
    (resource.RLIMIT_NICE, 0),
    (resource.RLIMIT_RTPRIO, 0),
    (resource.RLIMIT_NOFILE, 4096),  # a model whose weights lie in a file of their own keeps it open
)

_PR_SET_KEEPCAPS: Final = 8
_PR_SET_NO_NEW_PRIVS: Final = 38


def arrange(descriptors: Sequence[int]) -> None:
    """Have these at LANE_DESCRIPTOR and after it, whatever was there. The first is the lane."""
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for each in descriptors]
    for wanted, copy in enumerate(copies, LANE_DESCRIPTOR):
        os.dup2(copy, wanted, inheritable=False)


def confine_all() -> None:
    """Confine this process, and by that all workers that it forks, by what is the same for each of them."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for number, bound in LIMITS:
        limit(number, bound)


def confine(parent: int, settings: WorkerSettings) -> None:
    """Confine this freshly forked worker by what is its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent(parent)
    if settings.memory_limit_bytes > 0:
        limit(resource.RLIMIT_DATA, settings.memory_limit_bytes)
    if settings.cpus:
        os.sched_setaffinity(0, settings.cpus)
    _prefer_for_oom()


def become(ids: UserIds) -> None:
    """Be another user, in no group but its own; capabilities are kept until they are dropped. Raises OSError."""
    uid, gid = ids
    parent = os.getppid()
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    prctl(_PR_SET_KEEPCAPS, 1)
    os.setresuid(uid, uid, uid)
    die_with_parent(parent)  # which the kernel has forgotten with the user


def limit(number: int, bound: int) -> None:
    """Bound what may be taken of something for good. What is less already stays."""
    _, hard = resource.getrlimit(number)
    least = bound if hard == resource.RLIM_INFINITY else min(hard, bound)
    resource.setrlimit(number, (least, least))


def close_others(kept: int, pinned: Sequence[int]) -> None:
    """Close all descriptors but the first, ``kept`` from LANE_DESCRIPTOR on, and those ``pinned``, as far as the limit
    goes: what was opened before it was set may lie beyond."""
    low = LANE_DESCRIPTOR + kept
    for high in (*sorted(pinned), resource.getrlimit(resource.RLIMIT_NOFILE)[1]):
        os.closerange(low, high)
        low = high + 1


def _prefer_for_oom() -> None:
    """When memory runs out the kernel shall take a worker, never the daemon. Not every container lets us say so."""
    with suppress(OSError):
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"%d" % OOM_SCORE)
        finally:
            os.close(descriptor)
