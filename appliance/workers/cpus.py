"""Which CPUs threads can be bound to on this machine, and what is wrong with configured sets of them."""

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
