"""Where the daemon stands still, as with its whole machine, that time counts against no worker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import cast

import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.pending_replies import SLACK_NS, PendingReplies
from appliance.workers.daemon.process import WorkerProcess
from appliance.workers.daemon.watch import INTERVAL_S, STANDSTILL_S, Watch
from appliance.workers.lane import DaemonLane, FrameWriter
from appliance.workers.messages import Load
from appliance.workers.port import (
    ItemStatus,
    ModelLoaded,
    Run,
    RunFinished,
    RunItem,
    RunResult,
    WorkerExited,
)
from tests.faults.gate import Gate
from tests.workers.bench import EVENT_TIMEOUT_S, FOUR, Bench, Clock, fake

MINUTE_MS = 60_000
NS_PER_MS = 1_000_000
WORKER, MODEL, TIMEOUT_NS, PAUSE_NS = 1, 2, 200, 5_000
BATCH = 1 << 40


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("appliance.workers.daemon.pool.time", made)
    return made


def stand_still(bench: Bench, clock: Clock, ahead_ns: int) -> None:
    """Have the clocks of the pool and of its loop go on by so much at once, and the pool look after that."""
    own = bench.loop.time
    clock.ahead_ns += ahead_ns
    bench.loop.time = lambda: own() + ahead_ns / 1e9  # type: ignore[method-assign]
    bench.loop.run_until_complete(asyncio.sleep(2 * INTERVAL_S))  # due after the next look


@pytest.mark.parametrize("pause_ns", [2 * MINUTE_MS * NS_PER_MS, 100 * MINUTE_MS * NS_PER_MS])
def test_a_run_is_not_ended_for_a_pause_of_the_daemon(
    make_bench: Callable[..., Bench], tmp_path: Path, clock: Clock, pause_ns: int
) -> None:
    bench, gate = make_bench(run_timeout_ms=MINUTE_MS), Gate(tmp_path / "gate")
    worker = bench.start()
    model = bench.load(worker, fake(gate=tmp_path / "gate"))
    placed = bench.place([FOUR], [0])
    with gate:
        batch = bench.dispatch(worker, model, placed)
        gate.reached()
        stand_still(bench, clock, pause_ns)
    assert bench.event(RunFinished).batch == batch
    bench.free(placed)


def test_what_it_takes_after_that_counts(make_bench: Callable[..., Bench], clock: Clock) -> None:
    bench = make_bench(run_timeout_ms=MINUTE_MS)
    worker = bench.start()
    model = bench.load(worker, fake("hang"))
    placed = bench.place([FOUR], [0])
    bench.dispatch(worker, model, placed)
    stand_still(bench, clock, 2 * MINUTE_MS * NS_PER_MS)
    assert bench.events.empty()
    clock.ahead_ns += MINUTE_MS * NS_PER_MS
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.detail) == (ExitCause.HUNG, f"a batch took longer than {MINUTE_MS} ms")
    bench.free(placed)


def test_an_answer_that_waited_meanwhile_may_tell_of_it(
    make_bench: Callable[..., Bench], clock: Clock
) -> None:
    """It is read before the pool looks at the time again."""
    bench, pause_ns = make_bench(run_timeout_ms=MINUTE_MS), 100 * MINUTE_MS * NS_PER_MS
    worker = bench.start()
    placed = bench.place([FOUR], [0])
    result = RunResult(placed.item.ticket, ItemStatus.OK, ((1, 4),), (16,), 0, "")
    said = FrameWriter().frame(RunFinished(worker, BATCH, (result,), 1, pause_ns, 1))
    model = bench.load(worker, fake("wrong", say=said.hex()))
    os.kill(bench.pids[worker], signal.SIGSTOP)  # else it might be heard at once
    bench.call(bench.pool.dispatch, worker, Run(BATCH, model, (placed.item,)))
    os.kill(bench.pids[worker], signal.SIGCONT)
    assert wait([bench.pool._workers[worker].lane.fileno()], EVENT_TIMEOUT_S)
    stand_still(bench, clock, pause_ns)
    assert bench.event(RunFinished).run_ns == pause_ns
    bench.free(placed)


@pytest.mark.parametrize(("pause_ns", "since_ns"), [(50, 150), (700, 400)])
def test_what_was_asked_for_in_the_pause_took_no_time_before_its_end(pause_ns: int, since_ns: int) -> None:
    state = WorkerProcess(WORKER, cast(DaemonLane, None), None)
    state.since_ns = state.background_ns = 100
    state.pardon(pause_ns, 400)
    assert state.since_ns == state.background_ns == since_ns


class Loop:
    """Time that the test sets, and what is to be called."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.due.append((when_s, callback))
        return cast(asyncio.TimerHandle, self)

    def ring(self, late_s: float) -> None:
        due_s, callback = self.due.pop()
        self.now_s = due_s + late_s
        callback()


def test_only_a_look_that_comes_late_tells_of_a_pause_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.workers.daemon.watch.thread_time", lambda: 1.0)
    loop, told = Loop(), list[int]()

    def look() -> None:
        told.extend(watch.standstill_ns() for _ in range(2))
        if len(told) < 6:
            watch.ask()

    watch = Watch(cast(asyncio.AbstractEventLoop, loop), look)
    assert watch.standstill_ns() == 0, "nobody wanted to look"
    watch.ask()
    watch.ask()
    assert [due_s for due_s, _ in loop.due] == [100.0 + INTERVAL_S]
    for late_s in (STANDSTILL_S / 2, 2.0, 0.0):
        loop.ring(late_s)
    assert told == [0, 0, pytest.approx(2e9), 0, 0, 0]
    loop.now_s += 1000
    assert watch.standstill_ns() == 0, "nobody wants to look any more"


def test_who_computes_all_the_time_does_not_stand_still() -> None:
    """Else requests that keep the daemon busy would have a run that hangs live on."""
    loop, told = Loop(), list[int]()
    watch = Watch(cast(asyncio.AbstractEventLoop, loop), lambda: told.append(watch.standstill_ns()))
    watch.ask()
    begin_s = time.thread_time()
    while time.thread_time() < begin_s + 0.1:
        pass
    loop.ring(STANDSTILL_S + 0.09)
    assert told == [0]


@pytest.mark.parametrize("pardoned", [True, False])
def test_a_worker_may_have_seen_the_pause_by_its_own_clock(pardoned: bool) -> None:
    owes = PendingReplies(WORKER)
    owes.owe_load(Load(MODEL, fake()), TIMEOUT_NS, TIMEOUT_NS)
    owes.settle(ModelLoaded(WORKER, MODEL, ((1, 10),), 5, 6))
    item = RunItem(9, 1, ((1, 4),), (16,), 0, (0,), 4096, 64)
    owes.owe_run(Run(1, MODEL, (item,)))
    result = RunResult(9, ItemStatus.OK, ((1, 4),), (16,), 0, "")
    finished = RunFinished(WORKER, 1, (result,), 1, TIMEOUT_NS + PAUSE_NS + SLACK_NS, 1)
    if pardoned:
        owes.pardon(PAUSE_NS)
        assert owes.settle(finished) is not None
        return
    with pytest.raises(MessageInvalid, match="times that cannot have passed"):
        owes.settle(finished)
