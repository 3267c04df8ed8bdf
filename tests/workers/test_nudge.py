"""A thread that yields offers its processor again and again, until it ends, and what it does goes on undisturbed."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from appliance.workers.child.nudge import NUDGE_NS, be_nudged, resting
from appliance.workers.port import ExitCause, LoadWish, WorkerExited
from tests.workers.bench import Bench, fake

PATIENCE_S = 20.0
OFFERS = 300
TIMERS = Path("/proc/self/timers")
tells_timers = pytest.mark.skipif(not TIMERS.exists(), reason="a kernel that does not tell of timers")


def in_thread(do: Callable[[], None]) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


@contextmanager
def offers_counted() -> Iterator[tuple[int | None, socket.socket]]:
    """What the nudge had the kernel call, and a socket with a byte for each nudge since: Python's own handler, in its
    place meanwhile, writes it."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    writes, reads = socket.socketpair()
    with writes, reads:
        writes.setblocking(False)
        reads.settimeout(PATIENCE_S)
        called: int | None = libc.signal(signal.SIGRTMAX, signal.SIG_IGN)
        signal.signal(signal.SIGRTMAX, lambda *_: None)
        before = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
        try:
            yield called, reads
        finally:
            signal.set_wakeup_fd(before)
            libc.signal(signal.SIGRTMAX, called)


def test_it_offers_its_processor_again_and_again() -> None:
    """Counted are the offers: what comes of one is the kernel's, and depends on who else is there."""
    nudged, enough = threading.Event(), threading.Event()

    def work() -> None:
        be_nudged()
        nudged.set()
        while not enough.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert nudged.wait(PATIENCE_S)
        with offers_counted() as (called, offers):
            count = 0
            while count < OFFERS:
                count += len(offers.recv(OFFERS))
    finally:
        enough.set()
        thread.join()
    assert called == ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value


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
