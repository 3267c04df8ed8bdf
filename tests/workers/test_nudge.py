"""A thread that yields offers its processor again and again, until it ends, and what it does goes on undisturbed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from appliance.workers.nudge import NUDGE_NS, be_nudged, resting
from appliance.workers.port import ExitCause, LoadWish, WorkerExited
from appliance.workers.priority import yield_processor
from tests.workers.bench import Bench, fake
from tests.workers.rival import rival

PATIENCE_S = 20.0
TURNS_S = 5.0
TAKEN_S = 0.1
ATTEMPTS = 5
TIMERS = Path("/proc/self/timers")
tells_timers = pytest.mark.skipif(not TIMERS.exists(), reason="a kernel that does not tell of timers")


def in_thread(do: Callable[[], None]) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def turns_given_up(processor: int, *, nudged: bool) -> int:
    """How often a thread leaves the processor to the other one in so much processor time of its own."""
    found: list[int] = []

    def work() -> None:
        os.sched_setaffinity(0, {processor})
        yield_processor()
        if nudged:
            be_nudged()
        status = Path(f"/proc/self/task/{threading.get_native_id()}/status")
        before, end = given_up(status), time.monotonic() + TURNS_S
        begin = time.thread_time()
        while time.thread_time() - begin < TAKEN_S and time.monotonic() < end:
            sum(range(1000))
        found.append(given_up(status) - before)

    in_thread(work)
    return found[0]


def given_up(status: Path) -> int:
    lines = dict(line.split(":") for line in status.read_text().splitlines())
    return int(lines["nonvoluntary_ctxt_switches"]) + int(lines["voluntary_ctxt_switches"])


def test_it_gives_its_processor_up_more_often_than_the_kernel_asks_for() -> None:
    """Some 300 times where it is 30 times usually. Whoever else wants the processor meanwhile takes it from both, so a
    pair may show nothing."""
    processors = sorted(os.sched_getaffinity(0))

    def pair(number: int) -> tuple[int, int]:
        processor = processors[number % len(processors)]
        with rival(processor, os.SCHED_IDLE):
            return turns_given_up(processor, nudged=False), turns_given_up(processor, nudged=True)

    assert any(nudged > 3 * usual for usual, nudged in map(pair, range(ATTEMPTS)))


@tells_timers
def test_the_timer_is_that_of_the_thread_and_ends_with_it() -> None:
    seen: list[str] = []

    def work() -> None:
        be_nudged()
        be_nudged()
        seen.append(TIMERS.read_text())
        seen.append(f".{threading.get_native_id()}\n")

    before = TIMERS.read_text()
    in_thread(work)
    timers, thread = seen
    assert timers.count("notify:") == before.count("notify:") + 1, "twice is once"
    assert f"notify: signal/tid{thread}" in timers
    assert TIMERS.read_text() == before


@tells_timers
def test_nobody_is_nudged_who_rests_or_never_was() -> None:
    seen: list[int] = []

    def work(begin: Callable[[], None]) -> None:
        begin()
        for manner in (nullcontext, resting, nullcontext):
            with manner():
                seen.append(TIMERS.read_text().count("notify:"))

    before = TIMERS.read_text().count("notify:")
    in_thread(lambda: work(be_nudged))
    in_thread(lambda: work(lambda: None))
    assert seen == [before + 1, before, before + 1, before, before, before]


def test_what_it_does_goes_on() -> None:
    """Waits and reads that a signal falls into are not cut short."""
    seen: list[object] = []

    def work() -> None:
        be_nudged()
        begin, many_ns = time.monotonic_ns(), 20 * NUDGE_NS
        time.sleep(many_ns / 1e9)
        seen.append(time.monotonic_ns() - begin >= many_ns)
        reads, writes = os.pipe()
        threading.Timer(many_ns / 1e9, lambda: os.write(writes, b"x")).start()
        seen.append(os.read(reads, 1))
        seen.append(threading.Event().wait(many_ns / 1e9))
        os.close(reads)
        os.close(writes)

    in_thread(work)
    assert seen == [True, b"x", False]


@tells_timers
@pytest.mark.parametrize("background", [True, False])
def test_only_a_load_in_the_background_is_nudged(shared_bench: Bench, background: bool) -> None:
    worker = shared_bench.start()
    wish = LoadWish(background=background)
    shared_bench.call(shared_bench.pool.load, worker, 100, fake("hang_at_load"), wish)
    timers, end = Path(f"/proc/{shared_bench.pids[worker]}/timers"), time.monotonic() + PATIENCE_S
    while background and not timers.read_text():
        assert time.monotonic() < end, "it never came to that"
    assert timers.read_text().count("notify:") == int(background)
    shared_bench.call(shared_bench.pool.kill, worker, ExitCause.HUNG)
    assert shared_bench.event(WorkerExited).loading == 100
