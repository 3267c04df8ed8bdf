"""Captures of graphs, and runs, that come to nothing on a CUDA device, which is simulated: what a session does then."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.devices.cuda import CudaFailed
from appliance.domain.errors import DeviceFull, DeviceHasNoRoom, RunFailed
from appliance.process.life import GAVE_UP
from appliance.runtimes import device_graphs, lost_session, onnx_cuda
from appliance.runtimes.lost_session import PAUSE_NS_MAX, SECOND_NS, TRIES_MAX
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


class Clock:
    """Stands still but for what a test has pass."""

    def __init__(self) -> None:
        self.now_ns = SECOND_NS

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: int) -> None:
        """So many seconds pass."""
        self.now_ns += seconds * SECOND_NS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lost_session, "monotonic_ns", clock)
    return clock


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


def test_where_no_session_can_be_made_anew_for_a_moment_a_later_run_makes_it(
    bench: Bench, mlp: Session, clock: Clock
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
    clock.wait(1)
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


def lose(bench: Bench, session: Session, memory: Memory, why: Callable[[], None]) -> list[bool]:
    """Have its capture fail, and its session never made anew for what ``why`` raises; gives what it was tried with."""
    tried = list[bool]()

    def refuse() -> None:
        tried.append(True)
        why()

    bench.made[0].fail = BY_OTHERS
    bench.meanwhile = refuse
    answers(session, memory, 3)
    return tried


def test_a_session_that_is_gone_is_not_tried_to_be_made_with_each_request(
    bench: Bench, mlp: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try is a load, for which others wait. A device that is full ends nothing, however long."""
    monkeypatch.setattr(os, "_exit", lambda _: pytest.fail("a full device is no reason to end the worker"))
    memory = Memory(np.ones((1, 64), np.float32))

    def full() -> None:
        raise DeviceHasNoRoom("model/1: Failed to allocate memory for requested buffer of size 7")

    tried = lose(bench, mlp, memory, full)
    before, pause_s = len(tried), 1
    for _ in range(2 * TRIES_MAX):
        with pytest.raises(DeviceFull) as told:
            memory.run(mlp, (0,))
        assert str(told.value) == (
            "its session went with a capture and cannot be made anew: Failed to allocate memory for requested buffer "
            f"of size 7; the next try is in {pause_s} s"
        )
        assert len(tried) == before
        clock.wait(pause_s)
        with pytest.raises(DeviceFull, match=r"of size 7$"):
            memory.run(mlp, (0,))
        assert len(tried) == before + 1
        before, pause_s = len(tried), min(2 * pause_s, PAUSE_NS_MAX // SECOND_NS)
    bench.meanwhile = bool
    clock.wait(pause_s)
    assert len(set(answers(mlp, memory, 8))) == 1
    assert bench.made[-1].captured


def test_a_worker_in_which_a_session_can_never_be_made_anew_ends_and_no_request_is_to_blame(
    bench: Bench,
    mlp: Session,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended = list[int]()
    monkeypatch.setattr(os, "_exit", ended.append)
    memory = Memory(np.ones((1, 64), np.float32))

    def broken() -> None:
        raise RuntimeError("cuDNN is not there any more")

    tried = lose(bench, mlp, memory, broken)
    while len(tried) < TRIES_MAX:
        assert ended == []
        clock.wait(PAUSE_NS_MAX // SECOND_NS)
        with pytest.raises(RunFailed, match=r"cannot be made anew: cuDNN is not there any more$"):
            memory.run(mlp, (0,))
    assert ended == [GAVE_UP]
    said = capfd.readouterr().err.splitlines()[-1]
    assert said == "model/1 is given up in this process: cuDNN is not there any more"


def test_where_there_is_no_stream_for_a_moment_the_one_before_is_given_back_once(
    bench: Bench, mlp: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
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
    clock.wait(1)
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


def test_what_a_session_keeps_for_shapes_that_came_once_refuses_no_request(
    bench: Bench, mlp: Session
) -> None:
    """It is kept so that they are faster should they come again; others have a request now."""
    often = Memory(np.ones((1, 64), np.float32))
    expected = answers(mlp, often, 4)[0]
    bench.cuda.total = 60_000
    for rows in range(60, 90):
        assert len(answers(mlp, Memory(np.ones((rows, 64), np.float32)), 1)[0]) == rows * 40
    replays = bench.made[0].replays
    assert answers(mlp, often, 3) == [expected] * 3
    assert bench.made[0].replays == replays + 3, "what comes often has its graph still"


def test_a_run_that_finds_no_memory_is_done_once_more_in_what_the_session_kept(
    bench: Bench, mlp: Session
) -> None:
    answers(mlp, Memory(np.ones((60, 64), np.float32)), 1)
    real = bench.made[0].run_with_iobinding

    def full(binding: object, options: Any) -> None:
        if len(bench.cuda.held) > 1:
            raise RuntimeError("CUDA failure 2: out of memory")
        real(binding, options)

    bench.made[0].run_with_iobinding = full  # type: ignore[method-assign]
    assert len(answers(mlp, Memory(np.ones((70, 64), np.float32)), 1)[0]) == 70 * 40
    bench.cuda.total = 0
    with pytest.raises(DeviceFull, match="its GPU has no memory left"):
        answers(mlp, Memory(np.ones((80, 64), np.float32)), 1)


def test_captures_that_fail_for_want_of_memory_are_not_all_tried_in_the_moment_that_lacks_it(
    bench: Bench, mlp: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_graphs, "monotonic_ns", clock)
    memory = Memory(np.ones((1, 64), np.float32))
    bench.made[0].fail = bench.fail = "CUDA failure 2: out of memory ; GPU=0"
    expected = answers(mlp, memory, 12)[0]
    bench.made[-1].fail = bench.fail = ""
    clock.wait(2)
    assert answers(mlp, memory, 8) == [expected] * 8
    assert bench.made[-1].captured
