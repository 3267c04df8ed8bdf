"""The pool where descriptors are used up: what cannot be had now is asked for again, and nobody else suffers."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.workers.daemon.pool import KILL_GRACE_NS
from appliance.workers.jail.access import FileAccess
from appliance.workers.messages import ForkFailed
from appliance.workers.port import LaneMemory, WorkerExited, WorkerStarted
from tests.workers.bench import PLAIN, Bench, Clock, fake, listening


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_worker_that_cannot_be_started_has_died_and_the_next_one_starts(shared_bench: Bench) -> None:
    bench = shared_bench
    with no_descriptors():
        bench.call(bench.pool.start, 700, 0, PLAIN)
        bench.call(bench.pool.load, 700, 701, fake())
        exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause, exited.loading) == (700, ExitCause.DIED, -1)
    assert "Too many open files" in exited.detail
    worker = bench.start()
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)


@pytest.mark.parametrize("problem", [OSError, MemoryError])
def test_a_worker_without_memory_for_its_lane_has_died_and_leaves_nothing(
    make_bench: Callable[..., Bench], problem: type[Exception]
) -> None:
    def rings() -> LaneMemory:
        raise problem("no memory for rings")

    bench = make_bench(rings=rings)
    before = os.listdir("/proc/self/fd")
    bench.call(bench.pool.start, 700, 0, PLAIN)
    assert "no memory for rings" in bench.event(WorkerExited).detail
    assert os.listdir("/proc/self/fd") == before


def test_a_zygote_that_cannot_be_started_again_is_tried_until_it_can(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    worker = bench.start()
    before = len(os.listdir("/proc/self/fd"))
    with listening("the workers' zygote could not be started") as said, no_descriptors():
        os.kill(bench.pool.statistics().zygote_pid, signal.SIGKILL)
        assert bench.event(WorkerExited).worker == worker
        bench.wait(said)
        assert bench.pool.statistics().zygote_pid == 0
    assert bench.start()
    assert bench.pool.statistics().zygote_restarts == 1
    assert len(os.listdir("/proc/self/fd")) == before, "failed tries leave nothing open"


def test_a_fork_that_fails_is_nothing_that_a_model_did(shared_bench: Bench) -> None:
    bench = shared_bench

    def start_in_vain() -> None:
        bench.pool.start(700, 0, PLAIN)
        bench.pool.load(700, 701, fake())
        bench.pool._zygote_said(ForkFailed(700, "fork failed: no more processes"))

    bench.call(start_in_vain)
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.loading, exited.detail) == (
        ExitCause.DIED,
        -1,
        "fork failed: no more processes",
    )


@pytest.mark.parametrize(
    "reads", [("/models/" + "x" * 70_000,), ("/models/\udcff",)], ids=["too much", "no text"]
)
def test_a_worker_whose_files_cannot_be_said_is_that_models_fault_and_nobody_elses(
    shared_bench: Bench, reads: tuple[str, ...]
) -> None:
    bench = shared_bench
    zygote, witness = bench.pool.statistics().zygote_pid, bench.start()

    def start_in_vain() -> None:
        bench.pool.start(700, 700, PLAIN._replace(access=FileAccess(reads=reads)))
        bench.pool.load(700, 701, fake())

    bench.call(start_in_vain)
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause, exited.loading) == (700, ExitCause.DIED, 701)
    assert exited.detail
    assert bench.load(witness, fake())
    assert bench.pool.statistics().zygote_pid == zygote
    bench.call(bench.pool.stop, witness)
    bench.event(WorkerExited)


def test_what_cannot_be_said_to_the_zygote_for_want_of_buffers_is_said_later(
    shared_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [errno.ENOBUFS, errno.ETOOMANYREFS]

    def send_fds(*message: Any) -> int:
        if refusals:
            number = refusals.pop()
            raise OSError(number, os.strerror(number))
        return sent(*message)

    sent = socket.send_fds
    monkeypatch.setattr(socket, "send_fds", send_fds)
    worker = shared_bench.start()
    assert not refusals
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


class Shortage:
    """The kernel has no buffers for what is said to the zygote, of all kinds or with descriptors only."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.of_all = self.of_descriptors = False
        self._sent = socket.send_fds
        patch.setattr(socket, "send_fds", self._send)

    def _send(self, control: socket.socket, packets: list[bytes], descriptors: list[int]) -> int:
        if self.of_all or (self.of_descriptors and descriptors):
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        return self._sent(control, packets, descriptors)


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch)


def test_many_requests_that_cannot_be_said_are_tried_again_together(
    make_bench: Callable[..., Bench], shortage: Shortage, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench()
    shortage.of_descriptors = True
    with caplog.at_level(logging.ERROR, "appliance.workers"), listening("cannot be told anything") as said:
        for worker in range(700, 705):
            bench.call(bench.pool.start, worker, 0, PLAIN)
        bench.wait(said)
    assert len([each for each in caplog.messages if "cannot be told anything" in each]) == 1
    shortage.of_descriptors = False
    assert {bench.event(WorkerStarted).worker for _ in range(5)} == set(range(700, 705))


def test_a_worker_is_killed_while_another_cannot_be_started(
    make_bench: Callable[..., Bench], shortage: Shortage
) -> None:
    bench = make_bench()
    zygote = bench.pool.statistics().zygote_pid
    worker = bench.start()
    shortage.of_descriptors = True
    bench.call(bench.pool.start, 700, 0, PLAIN)
    bench.call(bench.pool.kill, worker, ExitCause.HUNG)
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause) == (worker, ExitCause.HUNG)
    shortage.of_descriptors = False
    assert bench.event(WorkerStarted).worker == 700
    assert bench.pool.statistics().zygote_pid == zygote


def test_a_zygote_that_cannot_be_told_to_kill_is_not_taken_for_dead(
    make_bench: Callable[..., Bench], shortage: Shortage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("appliance.workers.daemon.pool.time", clock)
    bench = make_bench()
    zygote = bench.pool.statistics().zygote_pid
    worker, witness = bench.start(), bench.start()
    shortage.of_all = True
    with listening("cannot be told to end worker process") as said:
        bench.call(bench.pool.kill, worker, ExitCause.HUNG)
        clock.ahead_ns += KILL_GRACE_NS + 1
        bench.wait(said)
    shortage.of_all = False
    assert bench.event(WorkerExited).worker == worker
    assert bench.load(witness, fake())
    assert bench.pool.statistics().zygote_pid == zygote
