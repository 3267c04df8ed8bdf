"""The pool with real processes, when all goes well."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.domain.errors import WorkerError
from appliance.domain.exit_cause import ExitCause
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.workers.messages import MAX_MESSAGE_BYTES
from appliance.workers.port import (
    Fetched,
    ItemStatus,
    ModelLoaded,
    ModelRefused,
    RunFinished,
    WorkerExited,
)
from appliance.workers.settings import WorkerSettings
from models.generate import write_model
from tests.workers.bench import FOUR, FREE, PLAIN, Bench, fake, row, spec, version_of


def test_a_worker_loads_runs_forgets_and_stops(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake())
    placed = bench.place([FOUR], [0])
    (result,) = bench.run(worker, model, placed)
    assert (result.ticket, result.status, result.shapes) == (placed.item.ticket, ItemStatus.OK, ((1, 4),))
    assert bench.read(placed, result) == [FOUR.raw]
    bench.call(bench.pool.unload, worker, model)
    other = bench.load(worker, fake())
    assert bench.read(placed, bench.run(worker, other, placed)[0]) == [FOUR.raw]
    bench.call(bench.pool.stop, worker)
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.batches, exited.loading) == (ExitCause.STOPPED, (), -1)
    assert not os.path.exists(f"/proc/{bench.pids[worker]}")
    bench.free(placed)


def test_what_was_asked_before_stop_is_answered(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake("delay", delay_ms=20))
    placed = bench.place([FOUR], [0])
    batches = [bench.dispatch(worker, model, placed) for _ in range(3)]
    bench.call(bench.pool.stop, worker)
    assert [bench.event(RunFinished).batch for _ in range(3)] == batches
    assert bench.event(WorkerExited).cause is ExitCause.STOPPED
    bench.free(placed)


def test_a_batch_answers_each_item_in_its_own_place(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake())
    placed = [bench.place([row(number, 0, 0, 0)], [0]) for number in range(8)]
    results = bench.run(worker, model, *placed)
    assert [each.ticket for each in results] == [each.item.ticket for each in placed]
    for number, (each, result) in enumerate(zip(placed, results, strict=True)):
        assert bench.read(each, result) == [row(number, 0, 0, 0).raw]
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    bench.free(*placed)


def test_one_bad_request_fails_alone(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake("fail", magic=0x66))
    good, bad = FOUR, row(np.frombuffer(b"\x66\x00\x00\x3f", np.float32)[0], 0, 0, 0)
    placed = [bench.place([each], [0]) for each in (good, bad, good)]
    results = bench.run(worker, model, *placed)
    assert [each.status for each in results] == [ItemStatus.OK, ItemStatus.FAILED, ItemStatus.OK]
    assert results[1].error == "told to fail"
    assert bench.read(placed[2], results[2]) == [good.raw]
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    bench.free(*placed)


def test_outputs_that_do_not_fit_are_fetched(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake())
    placed = [bench.place([row(number, 2, 3, 4)], [0], capacity=8) for number in range(2)]
    results = bench.run(worker, model, *placed)
    assert [each.status for each in results] == [ItemStatus.TOO_LARGE] * 2
    assert [each.needed for each in results] == [64, 64]
    room = bench.arena.allocate(results[1].needed, bench.arena.of_group(0))
    assert room is not None
    bench.fetch(worker, results[1].ticket, room.offset, 32)
    assert bench.event(Fetched).result.status is ItemStatus.TOO_LARGE
    bench.fetch(worker, results[1].ticket, room.offset, 64)
    fetched = bench.event(Fetched).result
    assert (fetched.ticket, fetched.status) == (results[1].ticket, ItemStatus.OK)
    assert bench.read_at(room.offset, fetched, room) == [row(1, 2, 3, 4).raw]
    bench.fetch(worker, results[0].ticket, 0, 0)
    bench.fetch(worker, results[0].ticket, room.offset, 64)
    assert bench.event(Fetched).result.status is ItemStatus.FAILED
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    bench.arena.free(room)
    bench.free(*placed)


def test_a_worker_has_only_its_lane_and_standard_descriptors(shared_bench: Bench) -> None:
    neighbour, worker = shared_bench.start(), shared_bench.start()
    shared_bench.load(worker, fake())
    home = f"/proc/{shared_bench.pids[worker]}"
    targets = {int(name): os.readlink(f"{home}/fd/{name}") for name in os.listdir(f"{home}/fd")}
    pins = {number for number, target in targets.items() if target.startswith("/proc/")}
    for number in pins:  # of nothing but the jail's grants: they name a place and open nothing
        flags = Path(f"{home}/fdinfo/{number}").read_text().split("flags:")[1].split()[0]
        assert int(flags, 8) & os.O_PATH
    assert sorted(targets.keys() - pins) == [0, 1, 2, 3]
    assert targets[0] == targets[1] == "/dev/null"
    assert targets[3].startswith("socket:")
    for each in (neighbour, worker):
        shared_bench.call(shared_bench.pool.stop, each)
        shared_bench.event(WorkerExited)


def test_a_worker_has_no_descriptor_of_a_zygote_that_began_with_large_numbers(
    make_bench: Callable[..., Bench],
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with open(os.devnull, "rb") as spare:
        taken = [os.dup(spare.fileno()) for _ in range(5000)]
    try:
        bench = make_bench()
        worker = bench.start(FREE)
        bench.load(worker, fake())
        assert sorted(map(int, os.listdir(f"/proc/{bench.pids[worker]}/fd"))) == [0, 1, 2, 3]
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_is_confined(shared_bench: Bench) -> None:
    cpu = min(os.sched_getaffinity(0))
    limit = 3 << 30
    worker = shared_bench.start(WorkerSettings(threads=1, cpus=(cpu,), memory_limit_bytes=limit))
    shared_bench.load(worker, fake())
    pid = shared_bench.pids[worker]
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["NoNewPrivs"] == "1"
    assert status["Threads"] == "1"
    assert status["Cpus_allowed_list"] == str(cpu)
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (data,) = (line.split()[3] for line in limits if line.startswith("Max data size"))
    (core,) = (line.split()[4] for line in limits if line.startswith("Max core file size"))
    assert (data, core) == (str(limit), "0")
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) > int(
        Path("/proc/self/oom_score_adj").read_text()
    )
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


def test_loads_measure_seeds(shared_bench: Bench, tmp_path: Path) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    version = version_of(
        path, [spec("x", Datatype.FP32, 64)], [spec("y", Datatype.FP32, 10)], max_batch_size=6
    )
    worker = shared_bench.start()
    loaded = shared_bench.try_load(worker, version)
    assert isinstance(loaded, ModelLoaded)
    rows = [rows for rows, _ in loaded.seeds]
    assert rows
    assert rows == [1, 2, 4, 6][: len(rows)], "as far as the time for it goes"
    assert all(taken > 0 for _, taken in loaded.seeds)
    assert loaded.load_ns > 0
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


def test_a_runtime_that_is_not_enabled_is_refused_by_name(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(runtimes=("fake",))
    worker = bench.start()
    version = version_of("nowhere", [spec("x", Datatype.FP32, 1)], [spec("y", Datatype.FP32, 1)])
    refused = bench.try_load(worker, version)
    assert isinstance(refused, ModelRefused)
    assert "runtime 'onnx', which is not enabled (enabled: fake)" in refused.reason
    assert bench.load(worker, fake())


def test_what_nobody_foresaw_while_a_version_is_asked_for_refuses_that_one(
    shared_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trip(version: object) -> int:
        raise ZeroDivisionError("nobody thought of this")

    worker = shared_bench.start()
    with monkeypatch.context() as patched:
        patched.setattr(shared_bench.pool, "run_timeout_ns", trip)
        refused = shared_bench.try_load(worker, fake())
    assert isinstance(refused, ModelRefused)
    assert "ZeroDivisionError" in refused.reason
    assert shared_bench.load(worker, fake())
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


def test_labels_of_any_size_hinder_no_load(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    labels = dict.fromkeys(map(str, range(5)), ("x" * (MAX_MESSAGE_BYTES // 4),))
    assert shared_bench.load(worker, replace(fake(), labels=labels))
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (fake(padding="x" * MAX_MESSAGE_BYTES), "message of"),
        (fake(padding="\udcff"), "cannot hold this (UnicodeEncodeError)"),
        (replace(fake(), file_bytes=1 << 64), "cannot hold this (TypeError)"),
    ],
    ids=["too much", "no text", "a number of more than 64 bits"],
)
def test_a_version_that_no_message_can_hold_is_refused_and_the_worker_lives(
    shared_bench: Bench, version: ModelVersion, reason: str
) -> None:
    worker = shared_bench.start()
    refused = shared_bench.try_load(worker, version)
    assert isinstance(refused, ModelRefused)
    assert refused.reason.startswith("a Load message")
    assert reason in refused.reason
    assert shared_bench.load(worker, fake())
    shared_bench.call(shared_bench.pool.stop, worker)
    shared_bench.event(WorkerExited)


def test_what_else_no_message_can_hold_costs_the_worker(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    version = fake(padding="x" * MAX_MESSAGE_BYTES)
    shared_bench.call(shared_bench.pool.build_form, worker, 500, version)
    exited = shared_bench.event(WorkerExited)
    assert (exited.cause, exited.loading) == (ExitCause.DIED, 500)
    assert "a Build message of" in exited.detail


def test_an_unknown_runtime_keeps_the_pool_from_opening() -> None:
    with pytest.raises(WorkerError, match="ended with status 2 before it was ready"):
        Bench(runtimes=("no_such_runtime",))


def test_closing_ends_workers_that_do_not_want_to(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    worker = bench.start()
    model = bench.load(worker, fake("hang"))
    placed = bench.place([FOUR], [0])
    batch = bench.dispatch(worker, model, placed)
    pidfd = os.pidfd_open(bench.pids[worker])
    bench.loop.run_until_complete(bench.pool.close(grace_s=0.05))
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.batches) == (ExitCause.STOPPED, (batch,))
    assert _ended(pidfd)


def test_a_worker_that_never_started_can_be_stopped(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()

    def start_and_stop() -> None:
        bench.pool.start(77, 0, PLAIN)
        bench.pool.stop(77)

    os.kill(bench.pool.statistics().zygote_pid, 9)
    bench.call(start_and_stop)
    assert bench.event(WorkerExited).worker == 77


def test_the_daemon_side_imports_no_runtime() -> None:
    code = (
        "import sys, appliance.workers.daemon.pool; "
        "print([name for name in ('numpy', 'onnxruntime', 'appliance.workers.child.worker') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _ended(pidfd: int) -> bool:
    ready = select.poll()
    ready.register(pidfd, select.POLLIN)
    ended = bool(ready.poll(20_000))
    os.close(pidfd)
    return ended


@pytest.mark.parametrize(("told", "cause"), [(True, ExitCause.STOPPED), (False, ExitCause.DIED)])
def test_a_worker_that_is_slow_to_end_has_died_only_if_nobody_told_it_to_end(
    shared_bench: Bench, told: bool, cause: ExitCause
) -> None:
    """It gives much memory back while it yields to everybody on a busy machine."""
    worker = shared_bench.start()
    os.kill(shared_bench.pids[worker], signal.SIGSTOP)
    if told:
        shared_bench.call(shared_bench.pool.stop, worker)
    lane = socket.socket(fileno=os.dup(shared_bench.pool._workers[worker].lane.fileno()))
    lane.shutdown(socket.SHUT_RD)
    lane.close()
    exited = shared_bench.event(WorkerExited)
    assert (exited.worker, exited.cause) == (worker, cause)
