"""What models take of memory, whatever their workers say."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.exit_cause import ExitCause
from appliance.workers.daemon.held_memory import GROWN_BYTES, HeldMemory
from appliance.workers.lane import FrameWriter
from appliance.workers.messages import FromWorker
from appliance.workers.port import (
    ItemStatus,
    ModelLoaded,
    Run,
    RunFinished,
    RunResult,
    WorkerExited,
)
from tests.faults.gate import Gate
from tests.workers.bench import FOUR, Bench, fake

BATCH, TICKET, MODEL = 1 << 40, 1 << 41, 1 << 42


@pytest.mark.parametrize("said", [0, 1 << 46])
def test_what_a_load_takes_is_seen_and_not_believed(shared_bench: Bench, tmp_path: Path, said: int) -> None:
    """It counts for all models: for too much of it others would leave memory, for too little none would."""
    bench, gate = shared_bench, Gate(tmp_path / "gate")
    worker = bench.start()
    loaded = ModelLoaded(worker, MODEL, (), 60_000_000_000, said)
    right = RunResult(TICKET, ItemStatus.OK, ((1, 4),), (16,), 0, "")
    words: tuple[FromWorker, ...] = (RunFinished(worker, BATCH, (right,), 1, 1, 1), loaded)
    lie = b"".join(FrameWriter().frame(each) for each in words).hex()
    model = bench.load(worker, fake("wrong", say=lie, bytes=100 << 20, gate=tmp_path / "gate"))
    placed = bench.place([FOUR], [0], capacity=64)

    def ask() -> None:
        bench.pool.dispatch(worker, Run(BATCH, model, (placed.item._replace(ticket=TICKET),)))
        bench.pool.load(worker, MODEL, fake())

    begin = time.monotonic_ns()
    with gate:
        bench.call(ask)
        gate.reached()
    assert bench.event(RunFinished).batch == BATCH
    event = bench.event(ModelLoaded)
    assert event.memory_bytes == pytest.approx(120 << 20, abs=40 << 20)
    assert event.load_ns <= time.monotonic_ns() - begin
    assert bench.event(WorkerExited).cause is ExitCause.NONSENSE
    bench.free(placed)


def test_what_models_take_in_one_process_is_told_apart(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    sizes = [90 << 20, 0, 60 << 20]

    def load() -> None:
        for number, size in enumerate(sizes):
            bench.pool.load(worker, MODEL + number, fake(hold_bytes=size))

    def exchange() -> None:
        bench.pool.unload(worker, MODEL)
        bench.pool.load(worker, MODEL + 9, fake(hold_bytes=sizes[0]))

    bench.call(load)
    taken = [bench.event(ModelLoaded).memory_bytes for _ in sizes]
    assert sum(taken) == pytest.approx(sum(sizes), abs=20 << 20)
    bench.call(exchange)
    assert bench.event(ModelLoaded).memory_bytes == pytest.approx(sizes[0], abs=10 << 20)
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)


def test_what_a_model_takes_with_its_runs_is_told_once(shared_bench: Bench) -> None:
    bench = shared_bench
    worker = bench.start()
    model = bench.load(worker, fake("eat_memory", bytes=30 << 20))
    other = bench.load(worker, fake())

    assert bench.pool.grown(worker) == {}
    for _ in range(2):
        placed = bench.place([FOUR], [0], capacity=64)
        bench.run(worker, model, placed)
        bench.free(placed)
    told = bench.pool.grown(worker)
    assert set(told) == {model, other}
    assert sum(told.values()) == pytest.approx(60 << 20, abs=10 << 20)
    assert bench.pool.grown(worker) == {}
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    assert bench.pool.grown(worker) == {}


def test_no_model_has_what_another_took_or_what_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    holds = {1: 10, 7: 10}
    monkeypatch.setattr("appliance.workers.daemon.held_memory.private_bytes", holds.__getitem__)
    memory, much = HeldMemory(), 1 << 40
    memory.weigh()  # there is no process yet
    memory.begin(7, zygote=1)
    holds[7] = 110
    assert memory.took(100, fake(), 100) == 100
    holds[7] = 150
    memory.weigh()
    holds[7] = 170
    assert memory.took(200, fake(), 20) == 20
    assert [memory.took(300, fake(), said) for said in (much, much, 40, 0)] == [50, 50, 40, 0]
    memory.left(100)
    assert memory.took(300, fake(), much) == 150
    assert memory.took(300, replace(fake(), device=ON_CUDA), much) == much


def test_growth_is_told_from_a_few_pages_and_shared_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    holds = {1: 10, 7: 10}
    monkeypatch.setattr("appliance.workers.daemon.held_memory.private_bytes", holds.__getitem__)
    memory = HeldMemory()
    memory.begin(7, zygote=1)
    holds[7] = 10 + GROWN_BYTES
    assert memory.grown() == {}, "there is no model yet"
    for model in (100, 200):
        memory.weigh()
        holds[7] += 50
        assert memory.took(model, fake(), 50) == 50
    assert memory.grown() == {100: 50 + GROWN_BYTES // 2, 200: 50 + GROWN_BYTES // 2}
    holds[7] += GROWN_BYTES - 1
    assert memory.grown() == {}
    holds[7] += 1
    assert memory.grown() == {100: 50 + GROWN_BYTES, 200: 50 + GROWN_BYTES}
    memory.left(100)
    assert memory.grown() == {200: 100 + 2 * GROWN_BYTES}, "its process did not give it back"
