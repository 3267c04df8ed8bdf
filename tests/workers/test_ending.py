"""Workers that were killed and do not disappear: who is given up for that, and who is not."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.workers.daemon.pool import KILL_GRACE_NS
from appliance.workers.port import WorkerExited
from tests.faults.gate import Gate
from tests.workers.bench import EVENT_TIMEOUT_S, FOUR, FREE, Bench, Clock, fake, listening

PTRACE_SEIZE: Final = 0x4206


@contextmanager
def kept(pid: int) -> Iterator[None]:
    """The process does not disappear when it is killed: its parent learns of its end from a tracer, us."""
    if ctypes.CDLL(None, use_errno=True).ptrace(PTRACE_SEIZE, pid, None, None) != 0:
        pytest.skip(f"this machine lets nobody trace: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.waitpid(pid, 0)


def children_of(pid: int) -> list[int]:
    """Of all its threads."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for children in lists for each in children.read_text().split()]


def test_what_a_worker_leaves_behind_ends_with_it(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start(FREE)  # as on a kernel that cannot filter calls
    model = bench.load(worker, fake("fork"))
    placed = bench.place([FOUR], [0])
    for _ in range(2):
        bench.run(worker, model, placed)
    left = [os.pidfd_open(child) for child in children_of(bench.pids[worker])]
    assert len(left) == 2
    os.kill(bench.pids[worker], signal.SIGKILL)
    assert bench.event(WorkerExited).detail == "killed by signal 9 (SIGKILL)"
    try:
        for each in left:
            assert wait([each], EVENT_TIMEOUT_S)
    finally:
        for each in left:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(each, signal.SIGKILL)
            os.close(each)
    bench.free(placed)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("appliance.workers.daemon.pool.time", made)
    return made


def kill(bench: Bench, worker: int) -> int:
    """The zygote has done so; gives another worker, which it started after that."""
    bench.call(bench.pool.kill, worker, ExitCause.STOPPED)
    return bench.start()


def insist(bench: Bench, clock: Clock) -> None:
    """So much time passes that the pool asks for the end of a killed worker once more."""
    with listening("was killed and has not ended yet") as said:
        clock.ahead_ns += KILL_GRACE_NS + 1
        bench.wait(said)


def test_a_killed_worker_that_does_not_disappear_costs_no_other(
    make_bench: Callable[..., Bench], clock: Clock
) -> None:
    bench = make_bench()
    zygote = bench.pool.statistics().zygote_pid
    worker = bench.start()
    with kept(bench.pids[worker]):
        witness = kill(bench, worker)
        insist(bench, clock)
        assert bench.load(witness, fake())
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause) == (worker, ExitCause.STOPPED)
    assert bench.pool.statistics().zygote_pid == zygote


def test_a_zygote_that_falls_silent_after_it_has_killed_is_replaced(
    make_bench: Callable[..., Bench], clock: Clock
) -> None:
    bench = make_bench()
    zygote = bench.pool.statistics().zygote_pid
    worker = bench.start()
    with kept(bench.pids[worker]):
        witness = kill(bench, worker)
        os.kill(zygote, signal.SIGSTOP)
        insist(bench, clock)
        clock.ahead_ns += KILL_GRACE_NS + 1
        assert {bench.event(WorkerExited).worker for _ in range(2)} == {worker, witness}
    assert bench.start()
    assert bench.pool.statistics().zygote_pid != zygote


@pytest.mark.parametrize("waits", [{}, {"waits": True}], ids=["before", "after"])
def test_a_worker_that_outlives_its_zygote_is_not_gone_before_its_process(
    make_bench: Callable[..., Bench], tmp_path: Path, waits: dict[str, object]
) -> None:
    """Its memory is not free before, whether it closes its lane before its zygote has ended or after that."""
    bench, gate = make_bench(), Gate(tmp_path / "gate")
    left, other = bench.start(FREE), bench.start()
    model = bench.load(left, fake("linger", gate=tmp_path / "gate", **waits))
    placed, lane = bench.place([FOUR], [0]), Path(f"/proc/{bench.pids[left]}/fd/3")
    with gate:
        batch = bench.dispatch(left, model, placed)
        gate.reached()
        os.kill(bench.pool.statistics().zygote_pid, signal.SIGKILL)
        assert bench.event(WorkerExited).worker == other
    while os.path.lexists(lane):
        pass
    bench.load(bench.start(), fake())
    assert bench.events.empty()
    os.kill(bench.pids[left], signal.SIGKILL)
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause, exited.batches) == (left, ExitCause.ZYGOTE, (batch,))
    bench.free(placed)
