"""Threads that share a processor, or are let go: a real thread in the place of the door's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from appliance.core.scheduling.companions import BUSY_PER_S, LOOK_NS, OVER, REST_NS, TRIED
from appliance.engine.control.company import WORKERS_MAX, Company
from appliance.engine.fastpath.direct import DirectDoor
from appliance.workers.port import Runner
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
    """Workers that have run for a second before, and since as long as they were told; ``places`` says which processor
    each was given, ``stuck`` who takes none, ``gone`` who has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, int] = {}
        self.stuck: set[int] = set()
        self.gone: set[int] = set()
        self.seen: list[int] = []
        self.ran: dict[int, int] = {}

    def runner(self, worker: int) -> Runner | None:
        self.seen.append(worker)
        if worker in self.gone:
            return None
        return Runner(1_000_000_000 + self.ran.get(worker, 0), self.places.get(worker, -1) >= 0)

    def confine(self, worker: int, processor: int) -> bool:
        if worker in self.stuck:
            return False
        self.places[worker] = processor
        return processor >= 0


class Box:
    """The company of a door, and time that goes by."""

    def __init__(self, door: Door, *, wanted: bool = True) -> None:
        self.door, self.workers = door, Movable()
        self.turns: list[int] = []
        self.company = Company(self.workers, self.turns.append, wanted=wanted)
        self.answered: dict[int, int] = {}
        self.now_ns = LOOK_NS

    def look(self, requests: int, *workers: int, ran_ns: int = 0) -> None:
        """After a stretch with so many requests for each, for which each ran so long."""
        self.now_ns += LOOK_NS
        for worker in workers:
            self.answered[worker] = self.answered.get(worker, 0) + requests
            self.workers.ran[worker] = self.workers.ran.get(worker, 0) + ran_ns
        self.workers.seen.clear()
        self.turns.clear()
        self.company.look(cast(DirectDoor, self.door), self.answered, self.now_ns)

    def again(self, *workers: int) -> None:
        """Have them gather after they have parted."""
        for _ in range(2 * (REST_NS // LOOK_NS)):
            if len(self.door.affinity()) > 1:
                self.look(MANY, *workers)

    def gather(self, *workers: int) -> int:
        """Have these become companions; gives their processor."""
        for _ in range(TRIED + 1):
            assert self.door.affinity() == ALL, "of the first stretch nothing is known"
            self.look(MANY, *workers)
        (processor,) = self.door.affinity()
        assert self.workers.places == dict.fromkeys(workers, processor)
        return processor


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.close()


def test_workers_that_serve_many_requests_share_the_doors_processor_until_fewer_come(door: Door) -> None:
    box = Box(door)
    processor = box.gather(1, 2)
    box.look(MANY, 2)
    assert box.workers.places == {1: processor, 2: processor}, "who has nothing to do for a moment stays"
    assert box.turns == [box.now_ns + LOOK_NS], "they are looked at in silence, too"
    box.look(0)
    assert (box.workers.places, door.affinity()) == ({1: -1, 2: -1}, ALL)
    assert not box.turns


def test_of_many_that_are_as_busy_the_same_are_looked_at_each_time(door: Door) -> None:
    """Whose turn it was by chance would be known to have used nothing."""
    box, chance = Box(door), random.Random(1)
    for _ in range(2 * TRIED):
        for worker in range(1, 65):
            box.answered[worker] = box.answered.get(worker, 0) + 20 + chance.randrange(10)
        box.look(0)
    assert list(box.workers.places.values()) == [min(door.affinity())] * WORKERS_MAX


def test_what_a_worker_used_is_what_came_to_it_since_the_last_look(door: Door) -> None:
    box = Box(door)
    processor = box.gather(1, 2)
    box.look(MANY, 1, 2)
    assert box.workers.places == {1: processor, 2: processor}, "its life before does not count"
    for stretch in range(1, OVER + 1):
        assert box.workers.places == {1: processor, 2: processor}
        box.workers.ran[2] = stretch * 1_000_000_000
        box.look(MANY, 1, 2)
    assert box.workers.places == {1: processor, 2: -1}, "the door has not run since"
    box.look(MANY, 1)
    assert box.workers.places == {1: processor, 2: -1}


def test_who_has_gone_or_was_let_go_is_no_companion_any_more(door: Door) -> None:
    box = Box(door)
    processor = box.gather(1, 2, 3)
    box.workers.gone = {1}
    box.look(MANY, 2, 3)
    assert box.workers.places == {1: -1, 2: processor, 3: processor}
    box.workers.places[2] = -1
    box.look(MANY, 2, 3)
    assert box.workers.places == {1: -1, 2: -1, 3: processor}, "as before a load"
    box.look(MANY, 2, 3)
    assert box.workers.places == {1: -1, 2: -1, 3: processor}
    box.workers.gone = {1, 3}
    box.look(MANY, 2)
    assert (box.workers.places, door.affinity()) == ({1: -1, 2: -1, 3: -1}, ALL)


def test_all_are_let_go_when_nothing_is_told_of_the_door(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a kernel that has no descriptor for that."""
    box = Box(door)
    box.gather(1)
    with monkeypatch.context() as patch:
        patch.setattr("appliance.engine.control.company.spent_by", lambda *_: None)
        box.look(0)
        assert (box.workers.places, door.affinity()) == ({1: -1}, ALL)
    box.again(1)
    assert box.workers.places == {1: min(door.affinity())}


def test_a_door_stays_free_where_none_of_its_companions_can_be_bound(door: Door) -> None:
    box = Box(door)
    box.workers.stuck = {1}
    for _ in range(3 * TRIED):
        box.look(MANY, 1)
        assert (box.workers.places, door.affinity()) == ({}, ALL)
    box.workers.stuck = set()
    box.again(1)
    assert box.workers.places == {1: min(door.affinity())}


def test_where_somebody_else_moves_the_door_all_are_let_go_and_it_stays_there(door: Door) -> None:
    box = Box(door)
    processor = box.gather(1)
    os.sched_setaffinity(door.thread(), ALL)
    box.look(MANY, 1)
    assert (box.workers.places, door.affinity()) == ({1: -1}, ALL)
    box.again(1)
    assert box.workers.places == {1: min(door.affinity())}
    (processor,) = door.affinity()
    other = frozenset({min(ALL - {processor})})
    os.sched_setaffinity(door.thread(), other)
    for _ in range(3 * TRIED):
        box.look(MANY, 1)
        assert (box.workers.places, door.affinity()) == ({1: -1}, other)


def test_looks_are_seldom_and_at_companions_and_the_busiest_others_only(door: Door) -> None:
    box = Box(door)
    workers = range(2 * WORKERS_MAX)
    box.look(MANY, *workers)
    box.look(MANY, *workers[WORKERS_MAX:])
    assert sorted(box.workers.seen) == list(workers[WORKERS_MAX:])
    for _ in range(TRIED):
        box.look(MANY, *workers[WORKERS_MAX:])
    companions = dict(box.workers.places)
    assert sorted(companions) == list(workers[WORKERS_MAX:])
    for _ in range(3):
        box.look(MANY, *workers)
        box.look(MANY, *workers, *workers[:WORKERS_MAX])
        assert set(box.workers.seen) > companions.keys(), "and one who may be busier than all of them"
        assert len(box.workers.seen) == WORKERS_MAX + 1
        assert box.workers.places == companions, (
            "who is there is not exchanged for who is busier for a moment"
        )
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
