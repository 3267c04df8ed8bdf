"""System calls that a jail refuses: an operator learns which, and nobody can make a flood of them."""

from __future__ import annotations

import logging
import os
import platform
import select
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.process.calls import prctl
from appliance.workers.child.refusals import HEARD_MAX, Refusals
from appliance.workers.jail import seccomp
from appliance.workers.jail.seccomp import Kind
from appliance.workers.port import ItemStatus, ModelRefused, WorkerExited
from tests.workers.bench import FOUR, Bench, fake
from tests.workers.jail.forked import in_fork, needs_filters

PR_SET_NO_NEW_PRIVS = 38
SAID = "refused system call socket"


def listeners(pid: int | str) -> list[int]:
    """The descriptors of a process by which it hears of refused calls."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # that by which they are listed
            if "seccomp" in os.readlink(each):
                found.append(int(each.name))
    return found


@needs_filters
def test_a_model_that_fails_of_its_jail_is_refused_with_the_name_of_the_call(
    shared_bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    worker = shared_bench.start()
    with caplog.at_level(logging.WARNING):
        ended = shared_bench.try_load(worker, fake("forbidden_at_load"))
    assert isinstance(ended, ModelRefused)
    assert ended.reason.endswith("[('EPERM', 1)] (its jail refused system calls: socket)")
    (line,) = (text for text in caplog.messages if SAID in text)
    assert f"process {shared_bench.pids[worker]}; model/1)" in line
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


@needs_filters
def test_a_worker_that_tries_for_ever_is_told_of_once_and_listened_to_no_longer(
    shared_bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench = shared_bench
    worker, other = bench.start(), bench.start()
    with caplog.at_level(logging.WARNING):
        model = bench.load(worker, fake("forbidden", times=HEARD_MAX + 1000))
        (result,) = bench.run(worker, model, bench.place([FOUR], [0]))
        assert bench.load(other, fake()), "others are heard all the same"
    assert (result.status, result.error) == (
        ItemStatus.FAILED,
        str([("EPERM", HEARD_MAX), ("ENOSYS", 1000)]),
    )
    assert sum(SAID in text for text in caplog.messages) == 1
    os.kill(bench.pids[worker], signal.SIGKILL)
    assert "(its jail refused system calls: socket)" in bench.event(WorkerExited).detail
    bench.call(bench.pool.stop, other)
    bench.event(WorkerExited)


@needs_filters
def test_no_worker_keeps_what_could_let_its_calls_through(shared_bench: Bench) -> None:
    workers = [shared_bench.start(), shared_bench.start()]
    for worker in workers:
        assert shared_bench.load(worker, fake())
        assert not listeners(shared_bench.pids[worker])
    zygote = shared_bench.pool.statistics().zygote_pid
    assert len(listeners(zygote)) >= 2
    for worker in workers:
        shared_bench.call(shared_bench.pool.stop, worker)
        shared_bench.event(WorkerExited)
    assert not listeners(zygote)


@needs_filters
def test_a_listener_that_has_nothing_to_give_holds_up_nobody() -> None:
    """The kernel counts calls in 32 bits, also those that a signal ends before anybody has heard of them."""

    def zygote() -> bool:
        watch = select.poll()
        refusals = Refusals(watch, lambda worker, number: None)
        (readable, writable), code = os.pipe(), seccomp.program(platform.machine(), Kind.SERVING)
        if os.fork() == 0:
            os.close(writable)  # that of its parent is closed at the end
            prctl(PR_SET_NO_NEW_PRIVS, 1)
            refusals.hand_over(1, listener := seccomp.install(code, seccomp.telling(code)))
            os.close(listener)
            os.read(readable, 1)
            os._exit(0)
        refusals.take(watch.poll())
        (listener,) = listeners("self")
        refusals.take([(listener, select.POLLIN)])
        return not listeners("self")

    assert in_fork(zygote) == "True"
