"""Which CPUs threads can be bound to on this machine, what is wrong with configured sets of them, and the binding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Final

MAX_CPUS: Final = 8192


def cpu_problems(sets: tuple[tuple[int, ...], ...]) -> Iterator[str]:
    """What is wrong with processor sets for workers on this machine."""
    usable = usable_cpus() if sets else frozenset()
    for each in sets:
        if refused := sorted(set(each) - usable):
            yield (
                f"set {list(each)} names {', '.join(map(str, refused))}, which this process may not use; it may use "
                f"{', '.join(map(str, sorted(usable)))}"
            )


def usable_cpus() -> frozenset[int]:
    """CPUs that a child of this process may be bound to. They may be more than this process is bound to now, as when
    the daemon is kept away from the workers' CPUs: so a thread, whose affinity is its own, asks for all."""
    found = set(os.sched_getaffinity(0))

    def ask() -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, range(MAX_CPUS))
            found.update(os.sched_getaffinity(0))

    thread = Thread(target=ask, name="cpus")
    thread.start()
    thread.join()
    return frozenset(found)


def bound_to(thread: int) -> frozenset[int]:
    """Where a thread may run; nowhere when it is gone."""
    with suppress(OSError):
        return frozenset(os.sched_getaffinity(thread))
    return frozenset()


def bind(thread: int, cpu: int) -> bool:
    """Whether a thread runs on this CPU only from now on. One that may not run wherever the main thread of this process
    may is left alone: somebody has given it a place."""
    if bound_to(thread) == bound_to(os.getpid()):
        with suppress(OSError):
            os.sched_setaffinity(thread, {cpu})
            return True
    return False


def unbind(thread: int, cpu: int) -> None:
    """Let a thread that was bound to this CPU run wherever the main thread of this process may, unless somebody has
    given it another place since."""
    usual = bound_to(os.getpid())
    if bound_to(thread) not in ({cpu}, usual):
        return
    with suppress(OSError):
        # The kernel keeps what was asked for, and so a cpuset that is widened later counts.
        os.sched_setaffinity(thread, range(MAX_CPUS))
        if bound_to(thread) != usual:
            os.sched_setaffinity(thread, usual)
