"""Weights that leave memory and come back, with real workers and ONNX Runtime."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion
from appliance.workers.daemon.process import EXIT_GRACE_NS
from appliance.workers.port import (
    ModelLoaded,
    ModelRefused,
    PoolEvent,
    RunFinished,
    WeightsPagedIn,
    WorkerExited,
)
from appliance.workers.settings import WorkerSettings
from tests.faults.gate import Gate
from tests.workers.bench import FOUR, Bench, Clock, fake
from tests.workers.mapped_files import resident_bytes
from tests.workers.transformers import (
    ANSWER_BYTES,
    PIECES,
    REQUEST,
    answer,
    evict_weights,
    flip_bit,
    load,
    page_in,
    private_bytes,
    stop,
    write_version,
)

QUICK = LoadWish(quick=True)


def refused(bench: Bench, worker: int, version: ModelVersion, wish: LoadWish, rotten: bool = False) -> str:
    bench.call(bench.pool.load, worker, 100, version, wish)
    refusal = bench.event(ModelRefused)
    assert refusal.not_as_stored is rotten
    return refusal.reason


def test_evicting_lets_every_page_go_and_paging_in_brings_all_back(
    shared_bench: Bench, version: ModelVersion
) -> None:
    worker = shared_bench.start()
    pid, weights = shared_bench.pids[worker], version.weights
    assert weights is not None
    loaded = load(shared_bench, worker, version, QUICK)
    assert weights.size - 4096 * 64 <= loaded.evictable_bytes <= weights.size
    before = answer(shared_bench, worker, 100)
    assert resident_bytes(pid, weights.path) >= loaded.evictable_bytes
    for _ in range(2):
        evict_weights(shared_bench, worker)
        assert resident_bytes(pid, weights.path) == 0
        filled = page_in(shared_bench, worker)
        assert (filled.nbytes, filled.failure) == (loaded.evictable_bytes, None)
        assert resident_bytes(pid, weights.path) >= loaded.evictable_bytes
        assert answer(shared_bench, worker, 100) == before
    stop(shared_bench, worker)


def test_a_run_on_evicted_weights_is_only_slow(shared_bench: Bench, version: ModelVersion) -> None:
    worker = shared_bench.start()
    load(shared_bench, worker, version, QUICK)
    before = answer(shared_bench, worker, 100)
    evict_weights(shared_bench, worker)
    assert answer(shared_bench, worker, 100) == before
    stop(shared_bench, worker)


def test_a_session_without_weights_costs_little(shared_bench: Bench, version: ModelVersion) -> None:
    worker = shared_bench.start()
    before = private_bytes(shared_bench.pids[worker])
    load(shared_bench, worker, version, QUICK)
    answer(shared_bench, worker, 100)
    evict_weights(shared_bench, worker)
    assert private_bytes(shared_bench.pids[worker]) - before < 3 << 20
    stop(shared_bench, worker)


def test_one_model_of_a_shared_worker_is_evicted_alone(shared_bench: Bench, tmp_path: Path) -> None:
    first, second = (write_version(tmp_path, name) for name in ("first", "second"))
    assert first.weights is not None
    assert second.weights is not None
    worker = shared_bench.start()
    load(shared_bench, worker, first, QUICK, 101)
    load(shared_bench, worker, second, QUICK, 102)
    right = answer(shared_bench, worker, 102)
    evict_weights(shared_bench, worker, 101)
    pid = shared_bench.pids[worker]
    assert resident_bytes(pid, first.weights.path) == 0
    assert resident_bytes(pid, second.weights.path) > 0
    assert answer(shared_bench, worker, 102) == right
    assert page_in(shared_bench, worker, model=101).failure is None
    assert answer(shared_bench, worker, 101) == right
    stop(shared_bench, worker)


def test_a_quick_session_answers_as_the_fast_one_does(shared_bench: Bench, version: ModelVersion) -> None:
    worker = shared_bench.start()
    load(shared_bench, worker, version, QUICK, 101)
    load(shared_bench, worker, version, LoadWish(), 102)
    quick, fast = (np.frombuffer(answer(shared_bench, worker, model), np.float32) for model in (101, 102))
    np.testing.assert_allclose(quick, fast, rtol=1e-4, atol=1e-5)
    stop(shared_bench, worker)


def test_a_session_that_came_early_is_exchanged_for_the_fast_one(
    shared_bench: Bench, version: ModelVersion
) -> None:
    worker = shared_bench.start()
    pid, weights = shared_bench.pids[worker], version.weights
    assert weights is not None
    load(shared_bench, worker, version, QUICK)
    quick = answer(shared_bench, worker, 100)
    fast = load(shared_bench, worker, version, LoadWish(background=True))
    assert fast.seeds
    assert fast.memory_bytes > weights.size / 2
    assert resident_bytes(pid, weights.path) < weights.size / 2
    exchanged = answer(shared_bench, worker, 100)
    load(shared_bench, worker, version, LoadWish(), 102)
    assert exchanged == answer(shared_bench, worker, 102)
    np.testing.assert_allclose(
        np.frombuffer(quick, np.float32), np.frombuffer(exchanged, np.float32), rtol=1e-4, atol=1e-5
    )
    stop(shared_bench, worker)


def test_a_session_that_came_early_stays_when_the_fast_one_is_refused(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path
) -> None:
    worker = shared_bench.start()
    load(shared_bench, worker, version, QUICK)
    right = answer(shared_bench, worker, 100)
    gone = replace(version, path=str(tmp_path / "gone.onnx"))
    reason = refused(shared_bench, worker, gone, LoadWish(background=True))
    assert "Load model from gone.onnx failed" in reason
    assert answer(shared_bench, worker, 100) == right
    stop(shared_bench, worker)


def test_only_what_came_early_is_exchanged(shared_bench: Bench, version: ModelVersion) -> None:
    worker = shared_bench.start()
    load(shared_bench, worker, version, LoadWish())
    right = answer(shared_bench, worker, 100)
    assert "is loaded already" in refused(shared_bench, worker, version, LoadWish(background=True))
    assert answer(shared_bench, worker, 100) == right
    stop(shared_bench, worker)


def test_weights_inside_the_model_file_are_not_evicted(shared_bench: Bench) -> None:
    worker = shared_bench.start()
    assert load(shared_bench, worker, fake(), QUICK).evictable_bytes == 0
    evict_weights(shared_bench, worker)
    assert page_in(shared_bench, worker).failure is None
    shared_bench.call(shared_bench.pool.page_in, worker, 999)
    assert shared_bench.event(WeightsPagedIn).failure == "the model is not loaded"
    stop(shared_bench, worker)


# --- rot


@pytest.mark.parametrize(
    "wish", [LoadWish(quick=True, assess=True), LoadWish(), LoadWish(background=True, assess=True)]
)
def test_a_bit_flipped_before_the_load_refuses_it(
    shared_bench: Bench, tmp_path: Path, wish: LoadWish
) -> None:
    version = write_version(tmp_path)
    assert version.weights is not None
    flip_bit(version.weights.path, (5 << 20) + 17)
    worker = shared_bench.start()
    reason = refused(shared_bench, worker, version, wish, rotten=True)
    assert reason.startswith("weights.bin: piece 1 (bytes 4194304 to 8388608) is not what it was")
    assert str(tmp_path) not in reason
    without_digests = replace(version, weights=replace(version.weights, pieces=()))
    load(shared_bench, worker, without_digests, wish)
    stop(shared_bench, worker)


def test_no_answer_of_an_early_load_leaves_before_its_weights_are_verified(
    shared_bench: Bench, tmp_path: Path
) -> None:
    version = write_version(tmp_path)
    assert version.weights is not None
    flip_bit(version.weights.path, (5 << 20) + 17)
    worker = shared_bench.start()
    shared_bench.call(shared_bench.pool.load, worker, 100, version, QUICK)
    placed = shared_bench.place([REQUEST], [0], capacity=2 * ANSWER_BYTES)
    shared_bench.dispatch(worker, 100, placed)
    shared_bench.event(ModelLoaded)
    events = [shared_bench.any_event() for _ in range(2)]
    (filled,) = (event for event in events if isinstance(event, WeightsPagedIn))
    (finished,) = (event for event in events if isinstance(event, RunFinished))
    assert "piece 1 (bytes 4194304 to 8388608) is not what it was" in str(filled.failure)
    assert finished.results[0].status.failed
    assert finished.results[0].error in str(filled.failure)
    shared_bench.free(placed)
    stop(shared_bench, worker)


def test_a_bit_flipped_while_mapped_is_found_by_the_next_page_in(shared_bench: Bench, tmp_path: Path) -> None:
    version = write_version(tmp_path)
    assert version.weights is not None
    assert len(version.weights.pieces) == PIECES
    worker = shared_bench.start()
    load(shared_bench, worker, version, QUICK)
    evict_weights(shared_bench, worker)
    flip_bit(version.weights.path, version.weights.size - 5000)
    assert "piece 2 (bytes 8388608 to" in str(page_in(shared_bench, worker).failure)
    stop(shared_bench, worker)


def test_a_file_cut_short_under_a_mapping_ends_the_worker_alone(shared_bench: Bench, tmp_path: Path) -> None:
    version = write_version(tmp_path)
    assert version.weights is not None
    witness, worker = shared_bench.start(), shared_bench.start()
    model = shared_bench.load(witness, fake())
    load(shared_bench, worker, version, QUICK)
    evict_weights(shared_bench, worker)
    os.truncate(version.weights.path, 4096)
    assert "has 4096 bytes where" in str(page_in(shared_bench, worker).failure)
    placed = shared_bench.place([REQUEST], [0], capacity=2 * ANSWER_BYTES)
    batch = shared_bench.dispatch(worker, 100, placed)
    exited = shared_bench.event(WorkerExited)
    assert (exited.worker, exited.cause, exited.batches) == (worker, ExitCause.DIED, (batch,))
    assert exited.detail == f"killed by signal {signal.SIGBUS.value} (SIGBUS)"
    small = shared_bench.place([FOUR], [0])
    shared_bench.dispatch(witness, model, small)
    assert not shared_bench.event(RunFinished).results[0].status.failed
    shared_bench.free(placed, small)
    stop(shared_bench, witness)


def test_weights_that_are_gone_refuse_the_load(shared_bench: Bench, tmp_path: Path) -> None:
    version = write_version(tmp_path)
    assert version.weights is not None
    os.unlink(version.weights.path)
    worker = shared_bench.start()
    assert refused(shared_bench, worker, version, QUICK).startswith(
        "weights.bin cannot be read: No such file"
    )
    stop(shared_bench, worker)


# --- too little memory


def test_a_load_without_the_memory_for_it_is_refused_and_the_worker_lives(
    shared_bench: Bench, version: ModelVersion
) -> None:
    plain = shared_bench.start()
    status = Path(f"/proc/{shared_bench.pids[plain]}/status").read_text()
    stop(shared_bench, plain)
    data = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    worker = shared_bench.start(WorkerSettings(1, (), data + (4 << 20)))
    assert "bad_alloc" in refused(shared_bench, worker, replace(version, weights=None), LoadWish())
    model = shared_bench.load(worker, fake())
    placed = shared_bench.place([FOUR], [0])
    assert not shared_bench.run(worker, model, placed)[0].status.failed
    shared_bench.free(placed)
    stop(shared_bench, worker)


def test_a_model_is_neither_closed_nor_loaded_anew_while_its_weights_come_back(
    shared_bench: Bench, tmp_path: Path
) -> None:
    """In a process that others share: it was put out, and is wanted again, before the disk has given them."""
    bench = shared_bench
    version = fake(evictable_bytes=4096, page_in_gate=tmp_path / "gate")
    worker = bench.start()
    other, model = bench.load(worker, fake()), bench.load(worker, version)
    placed = bench.place([FOUR], [0])
    with Gate(tmp_path / "gate") as gate:
        bench.call(bench.pool.page_in, worker, model)
        gate.reached()
        bench.call(bench.pool.unload, worker, model)
        bench.run(worker, other, placed)  # which does not wait for them
        bench.call(bench.pool.load, worker, model, version)
    assert bench.event(WeightsPagedIn).failure is None
    assert bench.event(ModelLoaded).model == model
    bench.run(worker, model, placed)
    bench.free(placed)
    stop(bench, worker)


def test_a_worker_that_is_told_to_stop_has_its_time_from_the_end_of_what_it_does_aside(
    make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, clock = make_bench(), Clock()
    monkeypatch.setattr("appliance.workers.daemon.pool.time", clock)

    def hear(event: PoolEvent) -> None:
        bench.events.put_nowait(event)
        bench.loop.call_soon(bench.pool._look)  # before the end of the worker can be heard

    monkeypatch.setattr(bench.pool, "_on_event", hear)
    worker = bench.start()
    with Gate(tmp_path / "gate") as filling:
        load(bench, worker, fake(evictable_bytes=4096, page_in_gate=tmp_path / "gate"), QUICK)
        evict_weights(bench, worker)
        bench.call(bench.pool.page_in, worker, 100)
        filling.reached()
        bench.call(bench.pool.stop, worker)
        clock.ahead_ns += EXIT_GRACE_NS + 1
    assert bench.event(WeightsPagedIn).failure is None
    assert bench.event(WorkerExited).detail == "exited with status 0"
