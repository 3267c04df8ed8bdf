"""The pool with real processes that die, hang, lie and eat."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import WeightsFile
from appliance.domain.tensor import Datatype
from appliance.workers.lane import FrameWriter, socket_pair
from appliance.workers.messages import FromWorker, Unload
from appliance.workers.port import (
    ERROR_CHARACTERS_MAX,
    Fetched,
    ItemStatus,
    ModelLoaded,
    ModelRefused,
    Run,
    RunFinished,
    RunResult,
    WeightsPagedIn,
    WorkerExited,
    WorkerStarted,
)
from appliance.workers.settings import WorkerSettings
from models.generate import write_model
from tests.faults.gate import Gate
from tests.workers.bench import FOUR, Bench, Clock, fake, spec, tensor, version_of

OK = ItemStatus.OK
FOUR_MINUTES_MS = 240_000


@pytest.fixture
def witness(shared_bench: Bench) -> Iterator[Callable[[], None]]:
    """Another worker, which must go on serving: call it to see that it does."""
    worker = shared_bench.start()
    model = shared_bench.load(worker, fake())

    def serves() -> None:
        placed = shared_bench.place([FOUR], [0])
        (result,) = shared_bench.run(worker, model, placed)
        assert shared_bench.read(placed, result) == [FOUR.raw]
        shared_bench.free(placed)

    yield serves
    shared_bench.call(shared_bench.pool.stop, worker)
    assert shared_bench.event(WorkerExited).cause is ExitCause.STOPPED


def test_killed_while_idle(shared_bench: Bench, witness: Callable[[], None]) -> None:
    worker = shared_bench.start()
    os.kill(shared_bench.pids[worker], signal.SIGKILL)
    exited = shared_bench.event(WorkerExited)
    assert exited == WorkerExited(worker, ExitCause.KILLED, (), -1, "killed by signal 9 (SIGKILL)")
    witness()


def test_killed_while_running(shared_bench: Bench, witness: Callable[[], None]) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake("hang"))
    placed = bench.place([FOUR], [0])
    batches = tuple(bench.dispatch(worker, model, placed) for _ in range(2))
    os.kill(bench.pids[worker], signal.SIGKILL)
    assert bench.event(WorkerExited) == WorkerExited(
        worker, ExitCause.KILLED, batches, -1, "killed by signal 9 (SIGKILL)"
    )
    bench.free(placed)
    witness()


def test_killed_on_the_engines_word(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    shared_bench.call(shared_bench.pool.kill, worker, ExitCause.STOPPED)
    exited = shared_bench.event(WorkerExited)
    assert (exited.worker, exited.cause) == (worker, ExitCause.STOPPED)


def test_signals_from_the_terminal_end_neither_zygote_nor_worker(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(shared_bench.pids[worker], number)
        os.kill(shared_bench.pool.statistics().zygote_pid, number)
    model = shared_bench.load(worker, fake())
    placed = shared_bench.place([FOUR], [0])
    assert shared_bench.run(worker, model, placed)[0].status is OK
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)
    shared_bench.free(placed)


def test_what_was_finished_before_a_crash_counts(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake("crash", crash_after=3))
    placed = bench.place([FOUR], [0])
    os.kill(bench.pids[worker], signal.SIGSTOP)  # else the last might meet it dead already
    batches = [bench.dispatch(worker, model, placed) for _ in range(4)]
    os.kill(bench.pids[worker], signal.SIGCONT)
    assert [bench.event(RunFinished).batch for _ in range(2)] == batches[:2]
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.batches) == (ExitCause.DIED, tuple(batches[2:]))
    assert exited.detail == "killed by signal 11 (SIGSEGV)"
    bench.free(placed)


def test_a_crash_at_load_names_the_model(shared_bench: Bench, witness: Callable[[], None]) -> None:
    worker = shared_bench.start()
    shared_bench.call(shared_bench.pool.load, worker, 4711, fake("crash_at_load"))
    exited = shared_bench.event(WorkerExited)
    assert (exited.cause, exited.loading) == (ExitCause.DIED, 4711)
    witness()


def test_a_run_that_hangs_is_ended(shared_bench: Bench, witness: Callable[[], None]) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake("hang", run_timeout_ms=150))
    placed = bench.place([FOUR], [0])
    batch = bench.dispatch(worker, model, placed)
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.batches) == (ExitCause.HUNG, (batch,))
    assert exited.detail == "a batch took longer than 150 ms"
    bench.free(placed)
    witness()


def test_a_real_model_that_never_ends_is_ended(shared_bench: Bench, tmp_path: Path) -> None:
    bench = shared_bench
    path = write_model("endless", tmp_path) / "1" / "model.onnx"
    scalar = spec("x", Datatype.FP32, 1), spec("y", Datatype.FP32, 1)
    version = version_of(path, scalar[:1], scalar[1:], parameters={"run_timeout_ms": "300"})
    worker = bench.start()
    model = bench.load(worker, version)
    harmless, endless = (bench.place([tensor(np.array([each], np.float32))], [0]) for each in (-1, 1))
    assert bench.read(harmless, bench.run(worker, model, harmless)[0]) == [np.float32(-1).tobytes()]
    bench.dispatch(worker, model, endless)
    assert bench.event(WorkerExited).cause is ExitCause.HUNG
    bench.free(harmless, endless)


def test_a_load_that_hangs_is_ended(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(load_timeout_ms=150)
    worker = bench.start()
    bench.call(bench.pool.load, worker, 5, fake("hang_at_load"))
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.loading) == (ExitCause.HUNG, 5)


def test_the_time_of_an_early_load_s_weights_begins_when_it_has_loaded(
    make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits behind a batch at first. Of its weights nothing comes: nobody writes to the pipe that they are."""
    clock, gate, weights = Clock(), Gate(tmp_path / "gate"), tmp_path / "weights"
    monkeypatch.setattr("appliance.workers.daemon.pool.time", clock)
    bench = make_bench(load_timeout_ms=FOUR_MINUTES_MS // 2)
    worker, other = bench.start(), bench.start()
    patient = bench.load(worker, fake(gate=tmp_path / "gate", run_timeout_ms=10 * FOUR_MINUTES_MS))
    hanging = bench.load(other, fake("hang", run_timeout_ms=FOUR_MINUTES_MS))
    os.mkfifo(weights)
    placed = bench.place([FOUR], [0])
    with gate:
        batch = bench.dispatch(worker, patient, placed)
        version = replace(fake(), weights=WeightsFile(path=str(weights), size=8))
        bench.call(bench.pool.load, worker, MODEL, version, LoadWish(quick=True))
        bench.dispatch(other, hanging, placed)
        gate.reached()
        clock.ahead_ns += 2 * FOUR_MINUTES_MS * 1_000_000
        assert bench.event(WorkerExited).worker == other, "the pool has looked"
    assert bench.event(RunFinished).batch == batch
    assert bench.event(ModelLoaded).model == MODEL
    clock.ahead_ns += (FOUR_MINUTES_MS + 1) * 1_000_000
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.loading) == (ExitCause.HUNG, MODEL)
    assert exited.detail == f"a page-in took longer than {FOUR_MINUTES_MS} ms"
    bench.free(placed)


def test_a_worker_that_fills_before_it_has_loaded_is_killed(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    words = (WeightsPagedIn(worker, MODEL, 1, 1, None), ModelRefused(worker, MODEL, "no"))
    said = b"".join(FrameWriter().frame(each) for each in words)
    model = bench.load(worker, fake("wrong", say=said.hex()))
    placed = bench.place([FOUR], [0])

    def ask() -> None:
        bench.pool.dispatch(worker, Run(BATCH, model, (placed.item,)))
        bench.pool.load(worker, MODEL, fake(), LoadWish(quick=True))

    bench.call(ask)
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.batches) == (ExitCause.NONSENSE, (BATCH,))
    assert "paged in before" in exited.detail
    bench.free(placed)


def test_a_stopped_process_counts_as_hung(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake(run_timeout_ms=150))
    os.kill(bench.pids[worker], signal.SIGSTOP)
    placed = bench.place([FOUR], [0])
    bench.dispatch(worker, model, placed)
    assert bench.event(WorkerExited).cause is ExitCause.HUNG
    bench.free(placed)


def test_memory_beyond_the_limit_is_refused_and_the_worker_lives(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start(WorkerSettings(threads=1, cpus=(), memory_limit_bytes=512 << 20))
    model = bench.load(worker, fake("eat_memory", bytes=100 << 20))
    placed = bench.place([FOUR], [0])
    statuses = [bench.run(worker, model, placed)[0] for _ in range(6)]
    assert statuses[0].status is OK
    assert statuses[-1].status is ItemStatus.FAILED
    assert "MemoryError" in statuses[-1].error
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    bench.free(placed)


def test_a_real_model_that_eats_memory_fails_only_its_request(shared_bench: Bench, tmp_path: Path) -> None:
    bench = shared_bench
    path = write_model("huge_alloc", tmp_path) / "1" / "model.onnx"
    version = version_of(path, [spec("x", Datatype.INT64, -1)], [spec("y", Datatype.FP32)])
    worker = bench.start(WorkerSettings(threads=1, cpus=(), memory_limit_bytes=1 << 30))
    model = bench.load(worker, version)
    small, huge = (bench.place([tensor(np.array([each], np.int64))], [0]) for each in (1000, 1 << 33))
    assert bench.run(worker, model, huge)[0].status is ItemStatus.FAILED
    (result,) = bench.run(worker, model, small)
    assert bench.read(small, result) == [np.float32(1000).tobytes()]
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    bench.free(small, huge)


def test_a_model_that_refuses_leaves_the_worker_alive(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    refused = shared_bench.try_load(worker, fake("fail_at_load"))
    assert isinstance(refused, ModelRefused)
    assert refused.reason == "told to refuse"
    assert shared_bench.load(worker, fake())
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


BATCH, TICKET, MODEL = 1 << 40, 1 << 41, 1 << 42
NAN = (1 << 62) + 1


def _result(
    ticket: int = TICKET,
    status: ItemStatus = OK,
    shapes: tuple[tuple[int, ...], ...] = ((1, 4),),
    sizes: tuple[int, ...] = (16,),
    needed: int = 0,
    error: str = "",
) -> RunFinished:
    return RunFinished(0, BATCH, (RunResult(ticket, status, shapes, sizes, needed, error),), 1, 1, 1)


LIES: dict[str, FromWorker] = {
    "another batch": RunFinished(0, BATCH + 1, _result().results, 1, 1, 1),
    "in the name of another worker": _result()._replace(worker=1 << 50),
    "another ticket": _result(ticket=TICKET + 1),
    "no results": RunFinished(0, BATCH, (), 1, 1, 1),
    "too many results": RunFinished(0, BATCH, _result().results * 2, 1, 1, 1),
    "times before the beginning": RunFinished(0, BATCH, _result().results, -1, 1, 1),
    "an output too many": _result(shapes=((1, 4), (1, 4)), sizes=(16, 16)),
    "an output too few": _result(shapes=(), sizes=()),
    "a size that is not the shape's": _result(sizes=(12,)),
    "a negative dimension": _result(shapes=((1, -4),)),
    "a negative size": _result(sizes=(-16,)),
    "rows that were not asked": _result(shapes=((2, 4),), sizes=(32,)),
    "rank zero in a batch": _result(shapes=((),), sizes=(4,)),
    "a shape beyond all bounds": _result(shapes=((1, NAN, NAN),)),
    "more than there is room for": _result(shapes=((1, 4096),), sizes=(16384,)),
    "too large, but it fits": _result(status=ItemStatus.TOO_LARGE, needed=64),
    "too large, but by another amount": _result(
        status=ItemStatus.TOO_LARGE, shapes=((1, 4096),), sizes=(16384,), needed=10
    ),
    "a failure without a reason": _result(status=ItemStatus.FAILED, shapes=(), sizes=()),
    "a failure of more words than are taken": _result(
        status=ItemStatus.FAILED, shapes=(), sizes=(), error="x" * (ERROR_CHARACTERS_MAX + 1)
    ),
    "a load that nobody asked for": ModelLoaded(0, MODEL, (), 1, 1),
    "a fetch that nobody asked for": Fetched(0, _result().results[0]),
}

NOISE = {
    "a length beyond all bounds": b"\xff\xff\xff\xff\x00",
    "no msgpack": b"\x04\x00\x00\x00\xc1\xc1\xc1\xc1",
    "no message": b"\x01\x00\x00\x00\x05",
    "an unknown kind": b"\x04\x00\x00\x00\x93\x03\x63\x90",
    "another version": b"\x04\x00\x00\x00\x93\x02\x07\x90",
    "a message for workers": FrameWriter().frame(Unload(1)),
}

SAID: dict[str, FromWorker | bytes] = {**LIES, **NOISE}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID.keys())
def test_nonsense_ends_the_worker(shared_bench: Bench, said: FromWorker | bytes) -> None:
    bench = shared_bench
    worker = bench.start()
    if not isinstance(said, bytes):
        said = FrameWriter().frame(said._replace(worker=said.worker or worker))
    version = fake("wrong", say=said.hex())
    model = bench.load(worker, version)
    placed = bench.place([FOUR], [0], capacity=64)
    item = placed.item._replace(ticket=TICKET)
    bench.call(bench.pool.dispatch, worker, Run(BATCH, model, (item,)))
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.batches) == (ExitCause.NONSENSE, (BATCH,))
    assert exited.detail
    bench.free(placed)


def test_the_truth_ahead_of_time_is_believed_and_then_nonsense(shared_bench: Bench) -> None:
    """The bytes of the tests above are well-formed: the same way of lying, with the truth, is accepted once."""
    bench = shared_bench
    worker = bench.start()
    model = bench.load(
        worker, fake("wrong", say=FrameWriter().frame(_result()._replace(worker=worker)).hex())
    )
    placed = bench.place([FOUR], [0], capacity=64)
    bench.call(bench.pool.dispatch, worker, Run(BATCH, model, (placed.item._replace(ticket=TICKET),)))
    assert bench.event(RunFinished).batch == BATCH
    assert bench.event(WorkerExited).cause is ExitCause.NONSENSE
    bench.free(placed)


def test_a_worker_that_talked_nonsense_is_listened_to_no_more(make_bench: Callable[..., Bench]) -> None:
    """Whatever it goes on to say until it is killed, which a zygote that stands does not do."""
    bench = make_bench()
    worker, zygote = bench.start(), bench.pool.statistics().zygote_pid
    model = bench.load(worker, fake("wrong", say=NOISE["no msgpack"].hex()))
    os.kill(zygote, signal.SIGSTOP)
    placed = bench.place([FOUR], [0])
    bench.dispatch(worker, model, placed)
    state = bench.pool._workers[worker]
    while state.cause is None:
        bench.call(lambda: None)
    assert not bench.loop.remove_reader(state.lane.fileno())
    os.kill(zygote, signal.SIGCONT)
    assert bench.event(WorkerExited).cause is ExitCause.NONSENSE
    bench.free(placed)


@pytest.fixture
def left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """The workers' sides of all lanes, held open as a process would that a worker has left behind."""
    held: list[socket.socket] = []

    def pair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket_pair()
        held.append(theirs.dup())
        return ours, theirs

    monkeypatch.setattr("appliance.workers.daemon.pool.socket_pair", pair)
    yield held
    for each in held:
        each.close()


def test_a_worker_is_gone_when_it_has_ended_whoever_holds_its_lane(
    shared_bench: Bench, left_behind: list[socket.socket], witness: Callable[[], None]
) -> None:
    worker = shared_bench.start()
    left_behind[-1].sendall(FrameWriter().frame(_result())[:-1])
    os.kill(shared_bench.pids[worker], signal.SIGKILL)
    assert shared_bench.event(WorkerExited).detail == "killed by signal 9 (SIGKILL)"
    witness()


def test_the_workers_of_a_dead_zygote_are_gone_whoever_holds_their_lanes(
    make_bench: Callable[..., Bench], left_behind: list[socket.socket]
) -> None:
    bench = make_bench()
    worker = bench.start()
    os.kill(bench.pool.statistics().zygote_pid, signal.SIGKILL)
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause) == (worker, ExitCause.ZYGOTE)
    assert bench.start()


def test_a_dead_zygote_is_replaced(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    workers = [bench.start() for _ in range(2)]
    model = bench.load(workers[0], fake("hang"))
    placed = bench.place([FOUR], [0])
    batch = bench.dispatch(workers[0], model, placed)
    ends = [os.pidfd_open(bench.pids[worker]) for worker in workers]
    os.kill(bench.pool.statistics().zygote_pid, signal.SIGKILL)
    exits = {exited.worker: exited for exited in (bench.event(WorkerExited) for _ in workers)}
    assert {exited.cause for exited in exits.values()} == {ExitCause.ZYGOTE}
    assert exits[workers[0]].batches == (batch,)
    assert all(_ended(each) for each in ends)
    worker = bench.start()
    model = bench.load(worker, fake())
    assert bench.read(placed, bench.run(worker, model, placed)[0]) == [FOUR.raw]
    assert bench.pool.statistics().zygote_restarts == 1


def test_a_worker_asked_for_while_there_is_no_zygote_starts_later(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    first = bench.start()
    os.kill(bench.pool.statistics().zygote_pid, signal.SIGKILL)
    assert bench.event(WorkerExited).worker == first
    bench.call(bench.pool.start, 500, 0, WorkerSettings(1, (), 0))
    bench.call(bench.pool.load, 500, 600, fake())
    assert bench.event(WorkerStarted).worker == 500
    assert bench.pool.statistics().in_flight == 1


def test_a_zygote_that_does_not_listen_is_replaced(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.workers.daemon.pool.KILL_GRACE_NS", 100_000_000)
    bench = make_bench()
    worker = bench.start()
    os.kill(bench.pool.statistics().zygote_pid, signal.SIGSTOP)
    bench.call(bench.pool.kill, worker, ExitCause.HUNG)
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause) == (worker, ExitCause.HUNG)
    assert bench.start()


DAEMON = """
import sys
from tests.workers.bench import Bench, fake, FOUR
bench = Bench()
busy, idle = bench.start(), bench.start()
model = bench.load(busy, fake("hang"))
bench.load(idle, fake())  # it is told of when it is forked: only then has it seen to its end
bench.dispatch(busy, model, bench.place([FOUR], [0]))
print(bench.pool.statistics().zygote_pid, *bench.pids.values(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_outlives_a_killed_daemon(stopped: bool) -> None:
    """Processes that stand do not see that their daemon has closed what they have in common."""
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        pids = [int(each) for each in daemon.stdout.readline().split()]
        assert len(pids) == 3
        ends = [os.pidfd_open(pid) for pid in pids]
        for pid in pids if stopped else ():
            os.kill(pid, signal.SIGSTOP)
        daemon.kill()
        daemon.wait()
        assert all(_ended(each) for each in ends)


def test_held_outputs_die_with_the_worker(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake())
    placed = bench.place([FOUR], [0], capacity=8)
    (result,) = bench.run(worker, model, placed)
    assert result.status is ItemStatus.TOO_LARGE
    os.kill(bench.pids[worker], signal.SIGKILL)
    bench.event(WorkerExited)
    bench.fetch(worker, result.ticket, placed.slot.offset, 64)  # too late: nothing is said, nothing is raised
    assert bench.events.empty()
    bench.free(placed)


def _ended(pidfd: int) -> bool:
    ready = select.poll()
    ready.register(pidfd, select.POLLIN)
    ended = bool(ready.poll(20_000))
    os.close(pidfd)
    return ended
