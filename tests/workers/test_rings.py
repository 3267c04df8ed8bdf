"""Workers that share memory with a front end: real processes, real models; only the front end is a double."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, aligned
from appliance.workers.child.tensors import Scratch
from appliance.workers.lane import DaemonLane, LaneClosed, socket_pair
from appliance.workers.messages import ToWorker
from appliance.workers.port import (
    LaneMemory,
    Learn,
    Run,
    RunFinished,
    WorkerExited,
)
from models.generate import write_model
from tests.workers.bench import FOUR, Bench, Placed, Tensor, fake, row, spec, tensor, version_of
from tests.workers.lane_conformance import LaneConformance, Lanes
from tests.workers.server_double import EXPIRED, HAND_OVER, OK, Completion, ServerDouble, Submission

native = pytest.importorskip("edge_appliance_native", reason="the native front end is not installed")

KIND = 3


@pytest.fixture(scope="module")
def ring_bench() -> Iterator[Bench]:
    """For tests that end only the workers they start."""
    bench = Bench(rings=native.LaneMemory)
    yield bench
    bench.close()


class Lane:
    """A worker with one model, and the front end's end of its lane. Its plans are named by their rows."""

    def __init__(self, bench: Bench, version: ModelVersion) -> None:
        self.bench = bench
        self.worker = bench.start()
        self.model = bench.load(self.worker, version)
        memory = bench.pool.memory(self.worker)
        assert memory is not None
        self.server = ServerDouble(memory, memory.doorbell())

    def learn(self, tensors: Sequence[Tensor], outs: Sequence[tuple[int, ...]], *, max_rows: int = 8) -> None:
        """A plan of such inputs and of FP32 outputs of these shapes."""
        rows = tensors[0].shape[0]
        learn = Learn(
            plan=rows,
            model=self.model,
            kind=KIND,
            rows=rows,
            max_rows=max_rows,
            shapes=tuple(each.shape for each in tensors),
            sizes=tuple(len(each.raw) for each in tensors),
            wanted=tuple(range(len(outs))),
            out_shapes=tuple(outs),
            out_sizes=tuple(4 * int(np.prod(shape)) for shape in outs),
        )
        self.bench.call(self.bench.pool.learn, self.worker, learn)

    def place(self, *tensors: Tensor, outputs: Sequence[int] = (0,)) -> Placed:
        return self.bench.place(tensors, outputs, rows=tensors[0].shape[0])

    def submit(self, *placed: Placed, deadline_ns: int = 0) -> None:
        self.server.submit(*(
            Submission(item.ticket, item.offset, item.out_offset, item.rows, item.rows, deadline_ns)
            for item, _ in placed
        ))  # fmt: skip

    def run(self, *placed: Placed) -> list[Completion]:
        self.submit(*placed)
        ended = self.server.ended(len(placed))
        assert [each.ticket for each in ended] == [each.item.ticket for each in placed]
        return ended

    def stop(self) -> WorkerExited:
        self.bench.call(self.bench.pool.stop, self.worker)
        return self.bench.event(WorkerExited)


def outputs(bench: Bench, placed: Placed, *sizes: int) -> list[bytes]:
    found, position = [], placed.item.out_offset
    for size in sizes:
        found.append(bytes(placed.slot.memory.view(position, size)))
        position += aligned(size)
    return found


def test_leased_requests_get_bit_for_bit_what_messages_get(ring_bench: Bench, tmp_path: Path) -> None:
    """Alone and in batches, first and prepared, a real model."""
    bench = ring_bench
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    inputs, outs = [spec("x", Datatype.FP32, 64)], [spec("y", Datatype.FP32, 10)]
    lane = Lane(bench, version_of(path, inputs, outs, max_batch_size=16))
    random = np.random.default_rng(1)
    for rows in (1, 3):
        lane.learn([tensor(np.zeros((rows, 64), np.float32))], [(rows, 10)])
    for sizes in ((1,), (3,), (1, 1), (3, 1, 1), (1, 3, 1), (1,) * 8) * 3:
        tensors = [tensor(random.random((rows, 64), np.float32)) for rows in sizes]
        said, leased = ([lane.place(each) for each in tensors] for _ in range(2))
        results = bench.run(lane.worker, lane.model, *said)
        ended = lane.run(*leased)
        assert [(each.status, each.batch_rows) for each in ended] == [(OK, sum(sizes))] * len(sizes)
        assert [each.first for each in ended] == [1] + [0] * (len(sizes) - 1)
        for one, other, result in zip(said, leased, results, strict=True):
            assert bench.read(one, result) == outputs(bench, other, *result.sizes)
        bench.free(*said, *leased)
    lane.stop()


def test_several_inputs_and_outputs_of_different_sizes(ring_bench: Bench) -> None:
    bench = ring_bench
    inputs = [spec("a", Datatype.FP32, 3), spec("b", Datatype.FP32, 40), spec("c", Datatype.FP32, 1)]
    lane = Lane(bench, version_of("", inputs, inputs, runtime="fake", max_batch_size=8))
    for count in (1, 2, 3, 2, 1):
        requests = []
        for number in range(count):
            rows = 1 + number % 2
            given = [tensor(np.full((rows, size), number + size, np.float32)) for size in (3, 40, 1)]
            requests.append((given, lane.place(*given, outputs=(0, 1, 2))))
        for given, _ in requests:
            lane.learn(given, [each.shape for each in given])  # again is no harm
        ended = lane.run(*(placed for _, placed in requests))
        assert {each.status for each in ended} == {OK}
        for given, placed in requests:
            assert outputs(bench, placed, *(len(each.raw) for each in given)) == [each.raw for each in given]
        bench.free(*(placed for _, placed in requests))
    lane.stop()


def test_messages_and_leased_requests_share_a_worker(ring_bench: Bench) -> None:
    """An engine that has a batch waiting all the time does not starve what it leased, nor the other way round."""
    bench = ring_bench
    lane = Lane(bench, fake("delay", delay_ms=5))
    lane.learn([FOUR], [(1, 4)], max_rows=1)
    said, leased = lane.place(FOUR), [lane.place(FOUR) for _ in range(10)]
    os.kill(bench.pids[lane.worker], signal.SIGSTOP)
    batches = [bench.dispatch(lane.worker, lane.model, said) for _ in range(10)]
    lane.submit(*leased)
    os.kill(bench.pids[lane.worker], signal.SIGCONT)
    ended = lane.server.ended(10)
    finished = [bench.event(RunFinished) for _ in range(10)]
    assert [each.batch for each in finished] == batches
    assert {each.status for each in ended} == {OK}
    assert ended[8].started_ns - ended[0].started_ns >= 8 * 2 * 5_000_000, "one of each in turn"
    lane.stop()
    bench.free(said, *leased)


def test_what_cannot_be_served_is_handed_over(ring_bench: Bench) -> None:
    bench = ring_bench
    lane = Lane(bench, fake("fail", magic=0x66))
    good = lane.place(FOUR)
    bad = lane.place(row(np.frombuffer(b"\x66\x00\x00\x3f", np.float32)[0], 0, 0, 0))
    assert lane.run(good)[0].status == HAND_OVER  # no plan
    lane.learn([FOUR], [(1, 4)])
    assert lane.run(good)[0].status == OK
    assert lane.run(bad)[0].status == HAND_OVER
    assert [each.status for each in lane.run(good, bad)] == [HAND_OVER] * 2
    assert [each.status for each in lane.run(good, good)] == [OK] * 2
    lane.submit(good, deadline_ns=time.monotonic_ns() - 1)
    assert lane.server.ended(1)[0].status == EXPIRED
    bench.call(bench.pool.forget, lane.worker, (1,))
    assert lane.run(good)[0].status == HAND_OVER
    lane.learn([FOUR], [(1, 4)])
    bench.call(bench.pool.unload, lane.worker, lane.model)
    assert lane.run(good)[0].status == HAND_OVER
    lane.stop()
    bench.free(good, bad)


def test_what_was_submitted_before_stop_is_served(ring_bench: Bench) -> None:
    bench = ring_bench
    lane = Lane(bench, fake("delay", delay_ms=5))
    lane.learn([FOUR], [(1, 4)], max_rows=1)
    leased = [lane.place(FOUR) for _ in range(20)]
    lane.submit(*leased)
    assert lane.stop().cause is ExitCause.STOPPED
    assert [each.status for each in lane.server.take()] == [OK] * 20
    bench.free(*leased)


def test_a_worker_that_dies_leaves_the_rest_unanswered(ring_bench: Bench) -> None:
    bench = ring_bench
    lane = Lane(bench, fake("crash", crash_after=3))
    lane.learn([FOUR], [(1, 4)], max_rows=1)
    leased = [lane.place(FOUR) for _ in range(5)]
    lane.submit(*leased)
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.batches) == (ExitCause.DIED, ())
    assert [each.status for each in lane.server.take()] == [OK] * 2
    assert bench.pool.memory(lane.worker) is None
    bench.free(*leased)


def test_an_idle_worker_sleeps_and_has_no_descriptors_that_it_does_not_need(ring_bench: Bench) -> None:
    bench = ring_bench
    lane = Lane(bench, fake())
    pid = bench.pids[lane.worker]

    def switches() -> int:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)

    def switches_of_half_a_second() -> int:
        before = switches()
        time.sleep(0.5)
        return switches() - before

    assert any(switches_of_half_a_second() <= 2 for _ in range(20)), "it does not sleep"
    open_now = {os.readlink(f"/proc/{pid}/fd/{each}").split(":")[0] for each in os.listdir(f"/proc/{pid}/fd")}
    assert {each for each in open_now if not each.startswith(("/dev", "pipe", "/tmp", "/proc"))} <= {
        "socket", "/memfd", "anon_inode",
    }  # fmt: skip
    lane.stop()


def test_workers_come_back_with_rings_after_their_zygote(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(rings=native.LaneMemory)
    Lane(bench, fake())
    os.kill(bench.pool.statistics().zygote_pid, signal.SIGKILL)
    assert bench.event(WorkerExited).cause is ExitCause.ZYGOTE
    lane = Lane(bench, fake())
    lane.learn([FOUR], [(1, 4)])
    placed = lane.place(FOUR)
    assert lane.run(placed)[0].status == OK
    assert outputs(bench, placed, 16) == [FOUR.raw]


def test_without_rings_nothing_is_shared_and_nothing_learned(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    assert (bench.pool.rings, bench.pool.memory(worker)) == (False, None)
    bench.call(bench.pool.learn, worker, Learn(1, 1, 1, 1, 1, (), (), (), (), ()))
    bench.call(bench.pool.forget, worker, (1,))
    bench.call(bench.pool.stop, worker)
    assert bench.event(WorkerExited).cause is ExitCause.STOPPED


class _Mailed(NamedTuple):
    """A daemon's lane as the pool uses it: whatever goes into the socket is followed by mail."""

    lane: DaemonLane
    memory: LaneMemory

    def __getattr__(self, name: str) -> object:
        return getattr(self.lane, name)

    def send(self, message: ToWorker) -> None:
        self.lane.send(message)
        self.memory.mail()

    def flush(self) -> None:
        self.lane.flush()
        self.memory.mail()


class TestRingLane(LaneConformance):
    @pytest.fixture
    def lanes(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lanes]:
        from appliance.workers.child import leased

        monkeypatch.setattr(leased, "IDLE_MS", 50)  # in which a daemon that is gone is noticed
        ours, theirs = socket_pair()
        memory, doorbell = native.LaneMemory(), os.eventfd(0)
        lane, _ = leased.open_ring_lane(theirs, memory.fileno(), doorbell, Scratch().at_least(4096))
        daemon = _Mailed(DaemonLane(ours), memory)
        yield Lanes(daemon, lane, theirs.close, theirs.sendall)  # type: ignore[arg-type]
        for end in (ours, theirs):
            end.close()
        os.close(doorbell)

    def test_a_daemon_that_went_without_a_word_is_noticed(self, lanes: Lanes) -> None:
        lanes.daemon.close()
        with pytest.raises(LaneClosed):
            lanes.worker.take()

    def test_mail_that_was_read_with_earlier_mail_is_not_waited_for(self, lanes: Lanes) -> None:
        said: list[ToWorker] = [Run(number, 1, ()) for number in range(3)]
        for message in said:
            lanes.daemon.send(message)
        assert [lanes.worker.take() for _ in said] == said
        lanes.daemon.send(said[0])
        assert lanes.worker.take() == said[0]
