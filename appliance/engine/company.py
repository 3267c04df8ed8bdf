"""Has workers share the processor of the door's thread, or not, as ``scheduling/companions`` decides.

Owner: the engine. Looked at while there are news, at most ten times a second, and only at the workers that served most
since. Who came through Python counts for nothing here: it is the door's thread that wakes and is woken.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from appliance.engine.direct import DirectDoor
from appliance.scheduling.companions import LOOK_NS, Companions, Spent
from appliance.workers.port import WorkerPort
from appliance.workers.thread_times import processor_of, spent_by

WORKERS_MAX: Final = 8
"""Looked at: each costs a read of /proc."""


class Company:
    """``wanted`` false: everybody stays where the kernel wants it."""

    def __init__(self, workers: WorkerPort, *, wanted: bool) -> None:
        self._workers = workers
        self._wanted = wanted and len(os.sched_getaffinity(0)) > 1
        self._companions = Companions()
        self._here: frozenset[int] = frozenset()
        self._home: frozenset[int] = frozenset()
        """Where the door's thread may run when it has no companions; empty: it has none."""
        self._look_ns = self._looked_ns = 0
        self._door = Spent(0, 0)
        self._answered: dict[int, int] = {}
        self._spent: dict[int, Spent] = {}

    def look(self, door: DirectDoor, answered: Mapping[int, int], now_ns: int) -> None:
        """``answered`` are the requests that the door had answered by each worker until now."""
        if now_ns < self._look_ns or not self._wanted:
            return
        self._look_ns = now_ns + LOOK_NS
        thread = door.thread()
        spent = spent_by(os.getpid(), thread) if thread else None
        if spent is None:
            return
        before, self._door = self._door, spent
        span_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        served = {
            worker: count - self._answered.get(worker, 0)
            for worker, count in answered.items()
            if count > self._answered.get(worker, 0)
        }
        self._answered = dict(answered)
        used = self._used(sorted(served, key=lambda worker: -served[worker])[:WORKERS_MAX])
        if before.ran_ns:
            chosen = self._companions.decide(now_ns, span_ns, sum(served.values()), spent.since(before), used)
            self._gather(thread, chosen)

    def _used(self, workers: list[int]) -> dict[int, Spent]:
        """What those of them have spent that may be moved, since the last time; of a new one all that it has."""
        spent = {worker: found for worker in workers if (found := self._workers.spent(worker)) is not None}
        used = {worker: found.since(self._spent.get(worker, Spent(0, 0))) for worker, found in spent.items()}
        self._spent = spent
        return used

    def _gather(self, thread: int, chosen: frozenset[int]) -> None:
        """Have the ``chosen`` share the processor that the door's thread runs on now, and nobody else."""
        if chosen and not self._home:
            self._settle(thread, processor_of(os.getpid(), thread))
        elif self._home and not chosen:
            _bind(thread, self._home)
        places = _places(thread) if self._home and chosen else frozenset()
        if (
            len(places) != 1
        ):  # none, or somebody else has a say in where the thread runs, as a cpuset that was changed
            self._home, chosen = frozenset(), frozenset()
        for worker in self._here - chosen:
            self._workers.confine(worker, -1)
        for worker in chosen:
            self._workers.confine(worker, min(places))
        self._here = chosen

    def _settle(self, thread: int, processor: int) -> None:
        home = _places(thread)
        if processor in home and len(home) > 1 and _bind(thread, {processor}):
            self._home = home


def _places(thread: int) -> frozenset[int]:
    """Where a thread may run; nowhere when it is gone."""
    with suppress(OSError):
        return frozenset(os.sched_getaffinity(thread))
    return frozenset()


def _bind(thread: int, places: Collection[int]) -> bool:
    """Whether a thread may run there, and nowhere else, from now on."""
    with suppress(OSError):
        os.sched_setaffinity(thread, places)
        return True
    return False
