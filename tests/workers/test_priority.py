"""What is loaded in the background yields the processor and the disk, and nothing else does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import LoadWish
from appliance.domain.tensor import Datatype
from appliance.process.priority import (
    IOPRIO_IDLE,
    SHORT_TURN_NS,
    USUAL_TURN_NS,
    take_turns,
    turn_ns,
    yield_disk,
    yield_processor,
)
from appliance.workers.port import ModelLoaded, WorkerExited
from models.generate import write_model
from tests.process.io_class import io_class
from tests.workers.bench import PLAIN, Bench, fake, spec, version_of

PATIENCE_S = 20.0
knows_turns = pytest.mark.skipif(not turn_ns(), reason="a kernel before 6.12")
NORMAL_THREAD = (os.SCHED_OTHER, False)
IDLE_THREAD = (os.SCHED_IDLE, True)


def class_of(thread: int = 0) -> tuple[int, bool]:
    """Processor class, and whether the I/O class is the idle one."""
    return os.sched_getscheduler(thread), io_class(thread) == IOPRIO_IDLE


def classes(pid: int) -> dict[int, tuple[int, bool]]:
    """Of every thread of a process that has not ended meanwhile."""
    found = {}
    for entry in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            found[int(entry.name)] = class_of(int(entry.name))
    return found


def wait_for(met: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)


def in_thread(do: Callable[[], None]) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def test_a_thread_that_yields_and_the_threads_that_it_starts() -> None:
    seen: list[tuple[int, bool]] = []

    def child() -> None:
        seen.append(class_of())

    def parent() -> None:
        yield_disk()
        yield_processor()
        seen.append(class_of())
        in_thread(child)

    before = class_of()
    in_thread(parent)
    assert seen == [IDLE_THREAD, IDLE_THREAD]
    assert class_of() == before


def hang_in(bench: Bench, wish: LoadWish, *, beside_another: bool = False) -> int:
    """A worker whose runtime hangs while it loads."""
    worker = bench.start()
    if beside_another:
        bench.load(worker, fake())
    bench.call(bench.pool.load, worker, 100, fake("hang_at_load"), wish)
    return worker


def end(bench: Bench, worker: int) -> None:
    bench.call(bench.pool.kill, worker, ExitCause.HUNG)
    assert bench.event(WorkerExited).loading == 100


def test_a_load_in_the_background_yields_and_the_worker_does_not(shared_bench: Bench) -> None:
    worker = hang_in(shared_bench, LoadWish(background=True))
    pid = shared_bench.pids[worker]
    wait_for(lambda: IDLE_THREAD in classes(pid).values())
    found = sorted(classes(pid).values())
    assert found == [NORMAL_THREAD, NORMAL_THREAD, IDLE_THREAD], "one takes messages, one waits, one loads"
    end(shared_bench, worker)


def test_a_load_that_somebody_waits_for_is_an_ordinary_one(shared_bench: Bench) -> None:
    worker = hang_in(shared_bench, LoadWish())
    assert set(classes(shared_bench.pids[worker]).values()) == {NORMAL_THREAD}
    end(shared_bench, worker)


def test_beside_other_models_only_the_disk_is_yielded(shared_bench: Bench) -> None:
    """A thread that starves while it holds the interpreter would stall the models that serve."""
    worker = hang_in(shared_bench, LoadWish(background=True), beside_another=True)
    pid = shared_bench.pids[worker]
    wait_for(lambda: (os.SCHED_OTHER, True) in classes(pid).values())
    assert classes(pid)[pid] == NORMAL_THREAD
    end(shared_bench, worker)


def test_nothing_of_a_load_in_the_background_is_left(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    shared_bench.call(shared_bench.pool.load, worker, 100, fake(), LoadWish(background=True, assess=True))
    shared_bench.event(ModelLoaded)
    pid = shared_bench.pids[worker]
    wait_for(lambda: len(classes(pid)) == 1)
    assert classes(pid) == {pid: NORMAL_THREAD}
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


@pytest.mark.parametrize("background", [False, True])
def test_a_load_that_hangs_is_ended(make_bench: Callable[..., Bench], background: bool) -> None:
    bench = make_bench(load_timeout_ms=60)
    worker = hang_in(bench, LoadWish(background=background))
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause, exited.loading) == (worker, ExitCause.HUNG, 100)
    assert exited.detail == f"a load took longer than {240 if background else 60} ms"


def test_a_load_that_crashes_in_the_background_names_the_model(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    shared_bench.call(shared_bench.pool.load, worker, 100, fake("crash_at_load"), LoadWish(background=True))
    exited = shared_bench.event(WorkerExited)
    assert (exited.cause, exited.loading) == (ExitCause.DIED, 100)


def test_threads_that_a_session_has_of_its_own_are_ordinary_ones(shared_bench: Bench, tmp_path: Path) -> None:
    """They live as long as the session, so they must not be born into a class that they cannot leave."""
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    version = version_of(
        path, [spec("x", Datatype.FP32, 64)], [spec("y", Datatype.FP32, 10)], max_batch_size=4
    )
    worker = shared_bench.start(PLAIN._replace(threads=3))
    shared_bench.call(shared_bench.pool.load, worker, 100, version, LoadWish(background=True))
    shared_bench.event(ModelLoaded)
    pid = shared_bench.pids[worker]
    wait_for(lambda: len(classes(pid)) == 3)
    assert set(classes(pid).values()) == {NORMAL_THREAD}
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


@knows_turns
def test_turns_are_a_thread_s_own_and_of_those_that_it_starts() -> None:
    """The usual ones are asked for first: a command run in this process may have left the main thread short ones."""
    before, seen = turn_ns(), list[int]()

    def ask() -> None:
        for turn in (USUAL_TURN_NS, SHORT_TURN_NS):
            take_turns(turn)
            seen.append(turn_ns())
        in_thread(lambda: seen.append(turn_ns()))
        take_turns(USUAL_TURN_NS)
        seen.append(turn_ns())

    in_thread(ask)
    usual = seen[0]
    assert usual > SHORT_TURN_NS
    assert seen == [usual, SHORT_TURN_NS, SHORT_TURN_NS, usual]
    assert turn_ns() == before
    assert class_of() == NORMAL_THREAD


@knows_turns
def test_a_worker_takes_short_turns_while_all_its_models_run_briefly(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    pid = shared_bench.pids[worker]
    usual = turn_ns(pid)
    assert usual != SHORT_TURN_NS
    seen = []
    for model, version in ((1, fake()), (2, fake("delay", delay_ms=3)), (3, fake())):
        shared_bench.call(shared_bench.pool.load, worker, model, version)
        shared_bench.event(ModelLoaded)
        seen.append(turn_ns(pid))
    assert seen == [SHORT_TURN_NS, usual, usual]
    shared_bench.call(shared_bench.pool.unload, worker, 2)
    wait_for(lambda: turn_ns(pid) == SHORT_TURN_NS)
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)
