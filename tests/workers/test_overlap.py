"""A worker whose session runs on a device that runs batches by itself: which of them it begins before another has
ended, and what becomes of each."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from appliance.domain.load_wish import PLAIN_LOAD
from appliance.domain.model import ModelVersion
from appliance.runtimes.runtime import Feed, Place, Region, RuntimeSettings, Session
from appliance.workers.child import execution
from appliance.workers.child.tensors import Scratch
from appliance.workers.child.worker import Worker
from appliance.workers.lane import LaneClosed
from appliance.workers.messages import FromWorker, Load, Stop, ToWorker
from appliance.workers.port import (
    Fetch,
    Fetched,
    ItemStatus,
    ModelLoaded,
    Run,
    RunFinished,
    RunItem,
)
from appliance.workers.settings import WorkerSettings
from tests.runtimes.simulated_device import DeviceRun, DeviceSession
from tests.workers.bench import fake

SETTINGS = WorkerSettings(threads=1, cpus=(), memory_limit_bytes=0)
WIDTH, PLACE = 4, 64


class Device(DeviceSession):
    """Notes what it is told in ``log``; ``fails`` is what it then fails."""

    def __init__(self, version: ModelVersion, rig: Rig) -> None:
        super().__init__(version)
        self._rig = rig

    def run(self, source: Region, feeds: Any, wanted: Any, place: Place) -> Any:
        self._rig.note(f"run {feeds[0].shape[0]}")
        return super().run(source, feeds, wanted, place)

    def pin(self, nbytes: int) -> Region:
        region = super().pin(nbytes)
        self._rig.pinned.append(weakref.ref(region.view.obj))
        return region

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        self._rig.note(f"prepare {feeds[0].shape[0] if feeds[0] else 0}", quiet=True)
        return NotedRun(self._rig, self, source, feeds, wanted, place)


class NotedRun(DeviceRun):
    """Ends when nothing more waits in the lane, or two have been begun."""

    def __init__(self, rig: Rig, session: Device, source: Region, feeds: Any, *others: Any) -> None:
        super().__init__(session, source, feeds, *others)
        self._rig = rig
        self._rows = feeds[0].shape[0]

    def begin(self) -> None:
        self._rig.note(f"begin {self._rows}")
        super().begin()

    def ended(self) -> bool:
        return self._rig.idle() and super().ended()

    def finish(self) -> None:
        self._rig.note(f"finish {self._rows}")
        super().finish()


class Rig:
    """A runtime of such sessions, and the lane of its worker; ``answers`` are what the worker has said."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails: deque[str] = deque()
        self.answers: list[FromWorker] = []
        self.pinned: list[weakref.ref[Any]] = []
        self.kept = 0
        """Pieces of pinned memory that something held when the worker took its last message."""
        self._messages: deque[ToWorker] = deque()
        self._polls = 0
        self.arena = Scratch().at_least(1 << 16)

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        return Device(version, self)

    def note(self, what: str, *, quiet: bool = False) -> None:
        fails = bool(self.fails) and self.fails[0] == what
        if fails or not quiet:
            self.log.append(what)
        if fails:
            self.fails.popleft()
            raise OSError("broken")

    def idle(self) -> bool:
        self._polls += 1
        return self._polls % 3 == 0

    def take(self) -> ToWorker:
        if not self._messages:
            raise LaneClosed
        self.kept = sum(each() is not None for each in self.pinned)
        return self._messages.popleft()

    def poll(self) -> ToWorker | None:
        return self._messages.popleft() if self._messages else None

    def complete(self, message: FromWorker) -> None:
        self.answers.append(message)

    def serve(self, *messages: ToWorker) -> list[RunFinished]:
        """Have a worker take these; gives what it says of batches."""
        version = fake("device", run_ms=0.1, overlapped="true")
        loads = (Load(model, version, PLAIN_LOAD) for model in (1, 2))
        self._messages.extend((*loads, *messages, Stop()))
        Worker(1, self, self.arena, {"fake": self}, SETTINGS).serve()  # type: ignore[dict-item]
        assert isinstance(self.answers[0], ModelLoaded), self.answers[0]
        return [answer for answer in self.answers if isinstance(answer, RunFinished)]

    def batch(self, number: int, *tickets: int, capacity: int = PLACE, model: int = 1) -> Run:
        """A batch of requests of a row each, which begins with their ticket."""
        for ticket in tickets:
            self.arena.view[ticket * 128 : ticket * 128 + WIDTH] = bytes((ticket, 1, 2, 3))
        items = [
            RunItem(ticket, 1, ((1, WIDTH),), (WIDTH,), ticket * 128, (0,), ticket * 128 + 64, capacity)
            for ticket in tickets
        ]
        return Run(number, model, tuple(items))

    def answer(self, ticket: int) -> bytes:
        """Where its output is to be."""
        return bytes(self.arena.view[ticket * 128 + 64 : ticket * 128 + 64 + WIDTH])


@pytest.fixture
def rig() -> Rig:
    return Rig()


def all_well(rig: Rig, finished: list[RunFinished]) -> list[int]:
    """The numbers of the batches in the order of their ends; all answers are those that were asked for."""
    for each in finished:
        for result in each.results:
            assert (result.status, result.sizes) == (ItemStatus.OK, (WIDTH,))
            assert rig.answer(result.ticket) == bytes((result.ticket, 1, 2, 3))
    return [each.batch for each in finished]


def test_a_batch_like_one_that_ran_is_begun_before_the_one_before_has_ended(rig: Rig) -> None:
    batches = [rig.batch(number, 2 * number, 2 * number + 1) for number in range(1, 6)]
    assert all_well(rig, rig.serve(*batches)) == [1, 2, 3, 4, 5]
    assert rig.log == [
        "run 2", "begin 2", "begin 2", "finish 2", "begin 2", "finish 2", "begin 2", "finish 2", "finish 2",
    ]  # fmt: skip


def test_others_wait_until_what_was_begun_has_ended(rig: Rig) -> None:
    """A request alone, a batch of other rows, and what is no batch at all."""
    finished = rig.serve(
        rig.batch(1, 1, 2),
        rig.batch(2, 3, 4),
        rig.batch(3, 5),
        rig.batch(4, 6, 7),
        rig.batch(5, 8, 9, 10),
        rig.batch(6, 11, 12),
        Fetch(99, 0, 64),
        rig.batch(7, 13, 14),
    )
    assert all_well(rig, finished) == [1, 2, 3, 4, 5, 6, 7]
    assert rig.log == [
        "run 2", "begin 2", "finish 2", "run 1", "begin 2", "finish 2", "run 3",
        "begin 2", "finish 2", "begin 2", "finish 2",
    ]  # fmt: skip
    kinds = [type(each) for each in rig.answers]
    assert kinds.index(Fetched) == kinds.index(RunFinished) + 6


def test_a_batch_of_another_model_waits_until_the_one_before_has_ended(rig: Rig) -> None:
    """It would run on the device at once: whose batch took how long, or was the end of the worker, would be a guess."""
    batches = [
        rig.batch(number, 2 * number, 2 * number + 1, model=1 + number // 2 % 2) for number in range(10)
    ]
    assert all_well(rig, rig.serve(*batches)) == list(range(10))
    assert rig.log[:6] == ["run 2", "begin 2", "finish 2", "run 2", "begin 2", "finish 2"]
    assert rig.log[6:] == ["begin 2", "begin 2", "finish 2", "finish 2"] * 3


def test_a_batch_that_cannot_be_begun_is_run(rig: Rig) -> None:
    rig.fails.append("begin 2")
    assert all_well(
        rig, rig.serve(*(rig.batch(number, 2 * number, 2 * number + 1) for number in range(1, 5)))
    )
    assert rig.log[:3] == ["run 2", "begin 2", "run 2"]


def test_a_batch_that_fails_on_the_device_is_run_request_by_request_and_the_next_is_not_touched(
    rig: Rig,
) -> None:
    rig.fails.append("finish 2")
    batches = (rig.batch(number, 2 * number, 2 * number + 1) for number in range(1, 4))
    assert all_well(rig, rig.serve(*batches)) == [1, 2, 3]
    assert rig.log == ["run 2", "begin 2", "begin 2", "finish 2", "run 1", "run 1", "finish 2"]


def test_what_fails_costs_no_other_model_its_runs(rig: Rig) -> None:
    rig.fails.extend(["begin 3"] * 2)
    batches = [rig.batch(number, 2 * number, 2 * number + 1) for number in range(1, 3)]
    batches += [rig.batch(10 + number, 40 + number, 41 + number, 42 + number, model=2) for number in range(2)]
    batches.append(rig.batch(20, 50, 51))
    assert all_well(rig, rig.serve(*batches)) == [1, 2, 10, 11, 20]
    assert rig.log == ["run 2", "begin 2", "finish 2", "run 3", "begin 3", "run 3", "begin 2", "finish 2"]


def test_an_output_that_does_not_fit_is_held(rig: Rig) -> None:
    finished = rig.serve(
        rig.batch(1, 1, 2), rig.batch(2, 3, 4), rig.batch(3, 5, 6, capacity=0), Fetch(5, 5 * 128 + 64, 64)
    )
    assert [result.status for result in finished[2].results] == [ItemStatus.TOO_LARGE] * 2
    (fetched,) = (each for each in rig.answers if isinstance(each, Fetched))
    assert (fetched.result.status, rig.answer(5)) == (ItemStatus.OK, bytes((5, 1, 2, 3)))


def test_outputs_that_are_more_than_a_worker_holds_are_a_limit_and_no_failure(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "HELD_BYTES_MAX", 1)
    (finished,) = rig.serve(rig.batch(1, 1, 2, capacity=0))
    assert [result.status for result in finished.results] == [ItemStatus.BEYOND] * 2
    assert "a worker holds at most 1 bytes of outputs" in finished.results[0].error
    assert rig.log == ["run 2"]


def test_times_of_batches_do_not_count_twice(rig: Rig) -> None:
    finished = rig.serve(*(rig.batch(number, 2 * number, 2 * number + 1) for number in range(1, 8)))
    assert all(each.gather_ns > 0 and each.run_ns >= 0 and each.scatter_ns > 0 for each in finished)


def test_a_batch_that_cannot_be_prepared_for_ran_nevertheless_and_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds until it is fetched is held once as well."""
    monkeypatch.setattr(execution, "HELD_BYTES_MAX", 3 * WIDTH)
    rig.fails.extend(["prepare 2"] * 3)
    messages: list[ToWorker] = []
    for number in range(1, 4):
        messages += (rig.batch(number, 1, 2, capacity=0), Fetch(1, 0, 0), Fetch(2, 0, 0))
    finished = rig.serve(*messages)
    assert [result.status for each in finished for result in each.results] == [ItemStatus.TOO_LARGE] * 6
    assert rig.log == ["run 2", "prepare 2"] * 3


def test_memory_of_a_batch_that_is_too_large_to_be_kept_is_kept_by_nothing_that_is_prepared(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "SCRATCH_KEPT_BYTES", WIDTH)
    assert all_well(rig, rig.serve(rig.batch(1, 1, 2), rig.batch(2, 3, 4))) == [1, 2]
    assert rig.log == ["run 2", "run 2"]
    assert rig.pinned
    assert rig.kept == 0
