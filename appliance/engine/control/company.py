"""Has workers share the processor of the door's thread, or not, as ``core/scheduling/companions`` decides.

Owner: the engine. Looked at ten times a second while requests come or there are companions, and only at these and at
the workers that served most since. Who came through Python counts for nothing here: it is the door's thread that wakes
and is woken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from appliance.core.scheduling.companions import LOOK_NS, Companions, Part, Spent
from appliance.engine.fastpath.direct import DirectDoor
from appliance.workers.cpus import bind, bound_to, unbind
from appliance.workers.port import Runner, WorkerPort
from appliance.workers.thread_times import processor_of, spent_by

WORKERS_MAX: Final = 8
"""Looked at: each costs a read of /proc."""


class Company:
    """``at`` asks for a turn, and a look, at a time; ``wanted`` false: everybody stays where the kernel wants it."""

    def __init__(self, workers: WorkerPort, at: Callable[[int], None], *, wanted: bool) -> None:
        self._workers = workers
        self._at = at
        self._wanted = wanted and len(os.sched_getaffinity(0)) > 1
        self._companions = Companions()
        self._processor = -1
        """What the door's thread is bound to; -1: nothing."""
        self._here: frozenset[int] = frozenset()
        self._look_ns = self._looked_ns = 0
        self._door = Spent(0, 0)
        self._answered: dict[int, int] = {}
        self._ran: dict[int, int] = {}

    def look(self, door: DirectDoor, answered: Mapping[int, int], now_ns: int) -> None:
        """``answered`` are the requests that the door had answered by each worker until now."""
        if now_ns < self._look_ns or not self._wanted:
            return
        self._look_ns = now_ns + LOOK_NS
        thread = door.thread()
        spent = spent_by(os.getpid(), thread) if thread else None
        if spent is None:
            self._gather(thread, frozenset())
            return
        before, self._door = self._door, spent
        span_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        served = {
            worker: count - self._answered.get(worker, 0)
            for worker, count in answered.items()
            if count > self._answered.get(worker, 0)
        }
        self._answered = dict(answered)
        runners = self._runners(served)
        parts = self._parts(runners, served)
        here = frozenset(each for each in self._here if each in runners and runners[each].confined)
        if before.ran_ns:
            requests, spent = sum(served.values()), spent.since(before)
            self._gather(thread, self._companions.decide(now_ns, span_ns, requests, spent, parts, here))
        if self._here:
            self._at(self._look_ns)  # they part in silence, too, of which there are no news

    def _runners(self, served: Mapping[int, int]) -> dict[int, Runner]:
        """The threads of companions and of those that served most, one of them at least."""

        def rank(worker: int) -> tuple[bool, int]:
            # Only of who was looked at before, too, it is known what it used: of many that are as busy always the same.
            return worker not in self._here, -served.get(worker, 0) * (2 if worker in self._ran else 1)

        order = sorted({*self._here, *served}, key=rank)
        count = max(WORKERS_MAX, len(self._here) + 1)
        found = {worker: self._workers.runner(worker) for worker in order[:count]}
        return {worker: runner for worker, runner in found.items() if runner is not None}

    def _parts(self, runners: Mapping[int, Runner], served: Mapping[int, int]) -> dict[int, Part]:
        """The parts of those that were looked at before, too."""
        before, self._ran = self._ran, {worker: runner.ran_ns for worker, runner in runners.items()}
        return {
            worker: Part(ran_ns - before[worker], served.get(worker, 0))
            for worker, ran_ns in self._ran.items()
            if worker in before
        }

    def _gather(self, thread: int, chosen: frozenset[int]) -> None:
        """Have the ``chosen`` share the processor that the door's thread runs on now, and nobody else."""
        if chosen and self._processor < 0:
            self._settle(thread)
        if bound_to(thread) != {self._processor}:
            chosen = frozenset()  # somebody else has a say in where it runs, as a cpuset that was changed
        for worker in self._here - chosen:
            self._workers.confine(worker, -1)
        came = frozenset(each for each in chosen - self._here if self._workers.confine(each, self._processor))
        self._here = self._here & chosen | came
        if self._processor >= 0 and not self._here:
            if thread:
                unbind(thread, self._processor)
            self._processor = -1

    def _settle(self, thread: int) -> None:
        processor = processor_of(os.getpid(), thread)
        if processor in bound_to(thread) and len(bound_to(thread)) > 1 and bind(thread, processor):
            self._processor = processor
