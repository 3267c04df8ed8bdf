"""Captures of graphs, and runs, that come to nothing on a CUDA device, which is simulated: what a session does then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.devices.cuda import CudaFailed
from appliance.domain.errors import DeviceFull, DeviceHasNoRoom, RunFailed
from appliance.runtimes import onnx_cuda
from appliance.runtimes.onnx_cuda import NO_LIMIT
from appliance.runtimes.runtime import Session
from appliance.tools.conformance.memory import Memory
from tests.runtimes.cuda_bench import BY_ITSELF, BY_OTHERS, Bench, answers, loaded_mlp


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def mlp(bench: Bench, tmp_path: Path) -> Iterator[Session]:
    with loaded_mlp(bench, tmp_path) as session:
        yield session


@pytest.mark.parametrize(("word", "sessions"), [(BY_OTHERS, 3), (BY_ITSELF, 2)])
def test_a_capture_that_fails_has_the_session_made_anew(
    bench: Bench, mlp: Session, capfd: pytest.CaptureFixture[str], word: str, sessions: int
) -> None:
    """One that would fail again is not tried again: that costs a load, and a model whose operators wait for the device
    has the same said of it each time."""
    memory = Memory(np.ones((1, 64), np.float32))
    bench.made[0].fail = bench.fail = f"CUDA failure: {word} ; GPU=0"
    assert len(set(answers(mlp, memory, 12))) == 1
    assert len(bench.made) == sessions
    assert not any(made.captured for made in bench.made)
    *before, last = capfd.readouterr().err.splitlines()
    again = f"model/1 is loaded anew after the capture of a CUDA graph failed: CUDA failure: {word} ; GPU=0"
    assert before == [again] * (sessions - 2)
    assert last == f"model/1 runs without CUDA graphs: CUDA failure: {word} ; GPU=0"


def test_a_capture_that_failed_once_is_tried_again(
    bench: Bench, mlp: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    memory = Memory(np.ones((1, 64), np.float32))
    bench.made[0].fail = BY_OTHERS
    assert len(set(answers(mlp, memory, 8))) == 1
    assert [set(made.captured) for made in bench.made] == [set(), {"1"}]
    assert bench.made[1].replays > 2
    assert "without CUDA graphs" not in capfd.readouterr().err


def test_where_no_session_can_be_made_anew_for_a_moment_the_next_run_makes_it(
    bench: Bench, mlp: Session
) -> None:
    memory = Memory(np.ones((1, 64), np.float32))
    bench.made[0].fail = BY_OTHERS
    expected = answers(mlp, memory, 2)[0]

    def full() -> None:
        raise CudaFailed("out of memory (CUDA error 2 in cudaMalloc)")

    bench.meanwhile = full
    assert answers(mlp, memory, 1) == [expected], "the capture failed after it was there"
    with pytest.raises(RunFailed, match="out of memory"):
        memory.run(mlp, (0,))
    bench.meanwhile = bool
    assert answers(mlp, memory, 8) == [expected] * 8
    assert set(bench.made[1].captured) == {"1"}, "and it is what it was"


def test_what_a_session_that_is_not_made_anew_lacks_is_told_once(bench: Bench, mlp: Session) -> None:
    memory = Memory(np.ones((1, 64), np.float32))
    bench.made[0].fail = BY_OTHERS

    def full() -> None:
        reason = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: "
        raise DeviceHasNoRoom(NO_LIMIT.told(f"{reason}CUDA failure 2: out of memory"))

    bench.meanwhile = full
    answers(mlp, memory, 3)
    with pytest.raises(DeviceFull) as told:
        memory.run(mlp, (0,))
    assert str(told.value).count("its GPU has no memory left") == 1


def test_where_there_is_no_stream_for_a_moment_the_one_before_is_given_back_once(
    bench: Bench, mlp: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, ended = Memory(np.ones((1, 64), np.float32)), list[int]()
    real_end = bench.cuda.end_stream

    def none() -> int:
        raise CudaFailed("out of memory (CUDA error 2 in cudaStreamCreateWithFlags)")

    def end(stream: int) -> None:
        ended.append(stream)
        real_end(stream)

    monkeypatch.setattr(bench.cuda, "end_stream", end)
    bench.made[0].fail = BY_OTHERS
    with monkeypatch.context() as patch:
        patch.setattr(bench.cuda, "stream", none)
        answers(mlp, memory, 3)
        with pytest.raises(RunFailed, match="out of memory"):
            memory.run(mlp, (0,))
        assert ended == []
    answers(mlp, memory, 3)
    assert ended == [1]
    assert len(bench.cuda.streams) == 1


def test_a_session_without_graphs_any_more_leaves_nothing_with_releases_that_take_back_what_graphs_read(
    bench: Bench, mlp: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = mlp._without_graph._replace(holds=onnx_cuda.holds_what_graphs_read("1.26.0"))  # type: ignore[attr-defined]
    monkeypatch.setattr(mlp, "_without_graph", old)
    bench.made[0].fail = bench.fail = BY_OTHERS
    answers(mlp, Memory(np.ones((1, 64), np.float32)), 30)
    assert bench.made[-1].staged == 0


def test_what_was_prepared_for_a_session_that_was_made_anew_raises(bench: Bench, mlp: Session) -> None:
    memory, other = Memory(np.ones((1, 64), np.float32)), Memory(np.ones((2, 64), np.float32))
    bench.made[0].fail = bench.fail = BY_OTHERS
    answers(mlp, memory, 2)
    run = memory.prepared(mlp, (0,))
    assert run is not None
    answers(mlp, other, 4)
    with pytest.raises(onnx_cuda._Elsewhere):
        run()


def test_a_run_that_fails_for_a_moment_costs_its_shapes_nothing_for_good(bench: Bench, mlp: Session) -> None:
    """As where the device was full when a graph was to be launched."""
    memory = Memory(np.ones((1, 64), np.float32))
    expected = answers(mlp, memory, 6)[0]
    real, failed = bench.made[0].run_with_iobinding, list[bool]()

    def once(binding: object, options: Any) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("CUDA failure 2: out of memory")
        real(binding, options)

    bench.made[0].run_with_iobinding = once  # type: ignore[method-assign]
    assert answers(mlp, memory, 8) == [expected] * 8
    assert failed == [True]
    assert set(bench.made[0].captured) == {"1", "2"}, "learned anew, and captured"
    assert len(bench.cuda.held) == 2
