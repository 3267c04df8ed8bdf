"""Threads that share a processor, or are let go: a real thread in the place of the door's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from appliance.engine.company import WORKERS_MAX, Company
from appliance.engine.direct import DirectDoor
from appliance.scheduling.companions import BUSY_PER_S, LOOK_NS, TRIED, Spent
from appliance.workers.thread_times import processor_of, spent_by
from tests.engine.silent_workers import SilentWorkers

ALL = frozenset(os.sched_getaffinity(0))
MANY = 10 * BUSY_PER_S

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="one processor is shared by all anyway")


class Door:
    """A thread that has run for a while."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._busy.wait(30.0)

    def _run(self) -> None:
        begin = time.thread_time()
        while time.thread_time() - begin < 0.02:
            pass
        self._busy.set()
        self._end.wait()

    def thread(self) -> int:
        return self._thread.native_id or 0

    def affinity(self) -> frozenset[int]:
        return frozenset(os.sched_getaffinity(self.thread()))

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class Movable(SilentWorkers):
    """Workers that have used nothing; ``places`` says which processor each was given."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, int] = {}
        self.seen: list[int] = []

    def spent(self, worker: int) -> Spent | None:
        self.seen.append(worker)
        return Spent(0, 0)

    def confine(self, worker: int, processor: int) -> None:
        self.places[worker] = processor


class Box:
    """The company of a door, and time that goes by."""

    def __init__(self, door: Door, *, wanted: bool = True) -> None:
        self.door, self.workers = door, Movable()
        self.company = Company(self.workers, wanted=wanted)
        self.answered: dict[int, int] = {}
        self.now_ns = LOOK_NS

    def look(self, requests: int, *workers: int) -> None:
        """After a stretch with so many requests for each."""
        self.now_ns += LOOK_NS
        for worker in workers:
            self.answered[worker] = self.answered.get(worker, 0) + requests
        self.workers.seen.clear()
        self.company.look(cast(DirectDoor, self.door), self.answered, self.now_ns)


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.close()


def test_workers_that_serve_many_requests_share_the_doors_processor_until_fewer_come(door: Door) -> None:
    box = Box(door)
    for _ in range(TRIED + 1):
        assert door.affinity() == ALL, "of the first stretch nothing is known"
        box.look(MANY, 1, 2)
    (processor,) = door.affinity()
    assert box.workers.places == {1: processor, 2: processor}
    box.look(MANY, 2)
    assert box.workers.places == {1: -1, 2: processor}
    assert door.affinity() == {processor}
    box.look(1, 2)
    assert (box.workers.places, door.affinity()) == ({1: -1, 2: -1}, ALL)


def test_a_thread_that_somebody_else_moved_is_left_there_and_workers_are_let_go(door: Door) -> None:
    box = Box(door)
    for _ in range(TRIED + 1):
        box.look(MANY, 1)
    (processor,) = door.affinity()
    assert box.workers.places == {1: processor}
    os.sched_setaffinity(door.thread(), ALL)
    box.look(MANY, 1)
    assert (box.workers.places, len(door.affinity())) == ({1: -1}, len(ALL))
    box.look(MANY, 1)
    assert len(door.affinity()) == 1, "its companions come again"
    assert box.workers.places == {1: min(door.affinity())}


def test_looks_are_seldom_and_at_the_busiest_workers_only(door: Door) -> None:
    box = Box(door)
    workers = range(2 * WORKERS_MAX)
    box.look(MANY, *workers)
    box.look(MANY, *workers[WORKERS_MAX:])
    assert sorted(box.workers.seen) == list(workers[WORKERS_MAX:])
    box.now_ns -= LOOK_NS
    box.look(MANY, *workers)
    assert not box.workers.seen


def test_who_does_not_want_it_is_left_alone(door: Door) -> None:
    box = Box(door, wanted=False)
    for _ in range(2 * TRIED):
        box.look(MANY, 1)
    assert (box.workers.places, door.affinity()) == ({}, ALL)


def test_a_thread_that_is_gone_has_no_times() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert spent_by(child.pid, child.pid) is None
    assert processor_of(child.pid, child.pid) == -1


def test_times_are_those_of_the_thread(door: Door) -> None:
    spent = spent_by(os.getpid(), door.thread())
    assert spent is not None
    assert 0.02e9 <= spent.ran_ns <= 5e9
    assert processor_of(os.getpid(), door.thread()) in ALL
