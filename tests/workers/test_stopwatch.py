"""What a thread takes does not depend on who else has the processor."""

from __future__ import annotations

import os
import threading
import time

import pytest

from appliance.process.priority import yield_processor
from appliance.workers.child import measurement
from appliance.workers.child.measurement import Stopwatch
from tests.workers.rival import rival

WAITED_NS = 30_000_000
PATIENCE_S = 20.0


def waits_ns() -> int:
    with open(measurement.WAITS, encoding="ascii") as file:
        return int(file.read().split()[1])


def yielding(processor: int, found: list[tuple[int, int, int]]) -> None:
    """What the watch says, what the clock says, and how much of that was waiting, of something in the idle class."""
    os.sched_setaffinity(0, {processor})
    yield_processor()
    end = time.monotonic() + PATIENCE_S
    with Stopwatch() as watch:
        begin, waits = time.monotonic_ns(), waits_ns()  # it may have to wait between the two
        watch.start()
        while waits_ns() - waits < WAITED_NS and time.monotonic() < end:
            sum(range(1000))
        waited = waits_ns() - waits
        taken = watch.stop()
        found.append((taken, time.monotonic_ns() - begin, waited))


def test_waiting_for_a_processor_does_not_count() -> None:
    processor = min(os.sched_getaffinity(0))
    found: list[tuple[int, int, int]] = []
    with rival(processor):
        thread = threading.Thread(target=yielding, args=(processor, found))
        thread.start()
        thread.join()
    ((taken, passed, waited),) = found
    assert waited >= WAITED_NS, "it never had to wait"
    assert 0 < taken <= passed - waited


def test_what_is_waited_as_the_kernel_tells_the_waits_is_taken_off_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others get the processor when a call of the kernel returns."""
    waited_ns = slept_ns = 0

    def told(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal waited_ns
        line = b"0 %d 0" % waited_ns
        waited_ns += 5_000_000
        return line

    with Stopwatch() as watch:
        monkeypatch.setattr("os.pread", told)
        monkeypatch.setattr("time.monotonic_ns", lambda: waited_ns + slept_ns)
        watch.start()
        slept_ns = 10_000_000
        assert watch.stop() == slept_ns


def test_sleeping_counts() -> None:
    with Stopwatch() as watch:
        watch.start()
        time.sleep(0.01)
        assert watch.stop() >= 9_000_000


def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "WAITS", "/nowhere")
    with Stopwatch() as watch:
        watch.start()
        begin = time.monotonic_ns()
        while time.monotonic_ns() == begin:
            pass
        assert watch.stop() > 0
