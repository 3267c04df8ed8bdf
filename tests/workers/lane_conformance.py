"""What every lane must do, whatever carries it. Subclass with a ``lanes`` fixture that gives both sides."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

from appliance.workers.codec import MessageInvalid
from appliance.workers.lane import DaemonLane, FrameWriter, LaneBlocked, LaneClosed, WorkerLane
from appliance.workers.messages import FromWorker, Load, Stop, ToWorker, Unload
from appliance.workers.port import Fetch, ItemStatus, ModelRefused, Run, RunFinished, RunItem, RunResult
from tests.workers.bench import fake

PATIENCE_S = 20.0


class Lanes(NamedTuple):
    """Both sides; ``end_worker`` closes the worker's as the end of its process does; ``say_raw`` lets the worker write
    bytes of its own into the lane."""

    daemon: DaemonLane
    worker: WorkerLane
    end_worker: Callable[[], None]
    say_raw: Callable[[bytes], None]


def run_of(batch: int, items: int = 1) -> Run:
    item = RunItem(batch, 1, ((1, 4),), (16,), 0, (0,), 64, 64)
    return Run(batch, 1, (item,) * items)


def finished(batch: int, items: int = 1) -> RunFinished:
    result = RunResult(batch, ItemStatus.OK, ((1, 4),), (16,), 0, "")
    return RunFinished(7, batch, (result,) * items, 1, 2, 3)


def hear(lane: DaemonLane, count: int) -> list[FromWorker]:
    """Wait for ``count`` messages as the event loop does."""
    heard: list[FromWorker] = []
    watch = select.poll()
    watch.register(lane.fileno(), select.POLLIN)
    while len(heard) < count:
        assert watch.poll(PATIENCE_S * 1000), f"only {len(heard)} of {count} messages came"
        heard += lane.receive() or ()
    return heard


class LaneConformance:
    """The suite."""

    def test_every_kind_arrives_in_order(self, lanes: Lanes) -> None:
        said: list[ToWorker] = [Load(1, fake()), run_of(1), Fetch(1, 2, 3), Unload(1), Stop()]
        for message in said:
            lanes.daemon.send(message)
        assert [lanes.worker.take() for _ in said] == said

    def test_what_is_there_is_taken_without_waiting(self, lanes: Lanes) -> None:
        assert lanes.worker.poll() is None
        lanes.daemon.send(run_of(1))
        lanes.daemon.send(Stop())
        assert [lanes.worker.poll(), lanes.worker.poll(), lanes.worker.poll()] == [run_of(1), Stop(), None]
        lanes.daemon.send(run_of(2))
        assert lanes.worker.take() == run_of(2)
        lanes.daemon.close()
        with pytest.raises(LaneClosed):
            lanes.worker.take()

    def test_answers_arrive_in_order(self, lanes: Lanes) -> None:
        said: list[FromWorker] = [finished(1), ModelRefused(7, 2, "no"), finished(3, 8)]
        for message in said:
            lanes.worker.complete(message)
        assert hear(lanes.daemon, 3) == said

    def test_nothing_said_is_nothing_heard(self, lanes: Lanes) -> None:
        assert lanes.daemon.receive() is None
        assert not lanes.daemon.unsent

    def test_part_of_a_message_is_something_said(self, lanes: Lanes) -> None:
        whole = FrameWriter().frame(finished(1))
        lanes.say_raw(whole[:-1])
        assert lanes.daemon.receive() == []
        assert lanes.daemon.receive() is None
        lanes.say_raw(whole[-1:])
        assert lanes.daemon.receive() == [finished(1)]

    def test_the_descriptor_is_readable_only_when_something_was_said(self, lanes: Lanes) -> None:
        watch = select.poll()
        watch.register(lanes.daemon.fileno(), select.POLLIN)
        assert watch.poll(0) == []
        lanes.worker.complete(finished(1))
        assert watch.poll(PATIENCE_S * 1000)
        assert lanes.daemon.receive() == [finished(1)]
        assert watch.poll(0) == []

    def test_a_worker_that_reads_slowly_loses_nothing_and_blocks_nobody(self, lanes: Lanes) -> None:
        count = 0
        while not lanes.daemon.unsent:
            lanes.daemon.send(run_of(count, items=50))
            count += 1
        for _ in range(20):
            lanes.daemon.send(run_of(count, items=50))
            count += 1
        for number in range(count):
            lanes.daemon.flush()
            assert lanes.worker.take() == run_of(number, items=50)
        assert not lanes.daemon.unsent

    def test_a_worker_that_never_reads_is_noticed(self, lanes: Lanes) -> None:
        huge = Load(1, fake(padding="x" * (8 << 20)))

        def insist() -> None:
            for _ in range(100):
                lanes.daemon.send(huge)

        with pytest.raises(LaneBlocked):
            insist()

    def test_large_messages_both_ways(self, lanes: Lanes) -> None:
        large, answer = run_of(1, items=20_000), finished(1, items=20_000)
        heard: list[ToWorker] = []

        def work() -> None:
            heard.append(lanes.worker.take())
            lanes.worker.complete(answer)

        thread = threading.Thread(target=work)
        thread.start()
        lanes.daemon.send(large)
        end = time.monotonic() + PATIENCE_S
        while lanes.daemon.unsent and time.monotonic() < end:
            lanes.daemon.flush()
        assert hear(lanes.daemon, 1) == [answer]
        thread.join()
        assert heard == [large]

    def test_the_last_words_of_a_worker_are_heard(self, lanes: Lanes) -> None:
        lanes.worker.complete(finished(1))
        lanes.worker.complete(finished(2))
        lanes.end_worker()
        assert hear(lanes.daemon, 2) == [finished(1), finished(2)]
        with pytest.raises(LaneClosed):
            lanes.daemon.receive()

    def test_speaking_to_a_worker_that_is_gone(self, lanes: Lanes) -> None:
        lanes.end_worker()
        with pytest.raises(LaneClosed):
            lanes.daemon.send(Stop())

    def test_a_daemon_that_is_gone(self, lanes: Lanes) -> None:
        lanes.daemon.send(Stop())
        lanes.daemon.close()
        assert lanes.worker.take() == Stop()
        with pytest.raises(LaneClosed):
            lanes.worker.take()
        with pytest.raises(LaneClosed):
            lanes.worker.complete(finished(1))

    @pytest.mark.parametrize("noise", [b"\xff" * 8, b"\x01\x00\x00\x00\x05"])
    def test_nonsense_is_refused(self, lanes: Lanes, noise: bytes) -> None:
        lanes.say_raw(noise)
        with pytest.raises(MessageInvalid):
            hear(lanes.daemon, 1)
