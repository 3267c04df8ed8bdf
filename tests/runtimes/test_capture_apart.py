"""Captures of graphs, and what waits for a whole device, beside each other in one process: sessions that are made and
closed. The device is simulated; as CUDA does, it forbids to wait for all while something is captured, and spoils it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from appliance.domain.errors import RunFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes import device_graphs, onnx
from appliance.runtimes.device_graphs import QUIET_NS, NotNow, capturing, whole_device
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.tools.conformance.memory import Memory
from models.generate import write_model
from tests.runtimes.cuda_bench import ANY_DEVICE, BY_OTHERS, Bench
from tests.workers.bench import spec, version_of

MLP = [spec("x", Datatype.FP32, -1, 64)], [spec("y", Datatype.FP32, -1, 10)]
MOMENT_S = 0.2
PATIENCE_S = 20.0


class Pair:
    """A session that is run, and how others are made."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench()
        self.version = version_of(write_model("mlp", folder) / "1" / "model.onnx", *MLP)
        self.session = self.make()

    def make(self) -> Session:
        """Another one."""
        return self.bench.load(self.version, RuntimeSettings())

    def run(self, times: int = 6) -> set[bytes]:
        """What it answers the same request."""
        memory = Memory(np.ones((1, 64), np.float32))
        return {memory.outputs(memory.run(self.session, (0,)))[0] for _ in range(times)}

    @property
    def captured(self) -> list[str]:
        """What of it was captured."""
        return sorted(set(self.bench.made[0].captured))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What it is by the clock, as a test has it."""
    now_ns = [QUIET_NS]
    monkeypatch.setattr(device_graphs, "monotonic_ns", lambda: now_ns[0])
    return now_ns


def beside_a_capture(pair: Pair, do: Callable[[], object]) -> bool:
    """Whether what is done in another thread, begun while a run is captured, waits until that was."""
    threads, waited = list[threading.Thread](), list[bool]()

    def meanwhile() -> None:
        pair.bench.made[0].meanwhile = bool
        threads.append(threading.Thread(target=do))
        threads[0].start()
        threads[0].join(MOMENT_S)
        waited.append(threads[0].is_alive())

    pair.bench.made[0].meanwhile = meanwhile
    assert len(pair.run()) == 1
    threads[0].join(PATIENCE_S)
    assert not threads[0].is_alive()
    return waited[0]


def test_a_session_that_is_made_waits_for_a_capture_and_both_come_to_be(
    pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    made = list[Session]()
    assert beside_a_capture(pair, lambda: made.append(pair.make()))
    assert pair.captured == ["1"]
    assert len(made) == 1
    assert "without CUDA graphs" not in capfd.readouterr().err


def test_a_session_that_is_closed_waits_for_a_capture(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    other = pair.make()
    del pair.bench.made[1:]
    assert beside_a_capture(pair, other.close)
    assert pair.captured == ["1"]
    assert "without CUDA graphs" not in capfd.readouterr().err


def test_while_a_session_is_made_runs_go_without_a_graph_and_later_ones_have_it(pair: Pair) -> None:
    meanwhile = list[object]()

    def run() -> None:
        thread = threading.Thread(target=lambda: meanwhile.extend((pair.run(), pair.captured)))
        thread.start()
        thread.join(PATIENCE_S)

    pair.bench.meanwhile = run
    pair.make()
    answer, captured = meanwhile
    assert captured == []
    assert pair.run() == answer
    assert pair.captured == ["1"]


def another_that_fails(pair: Pair) -> Callable[[], None]:
    """Have another session, whose runs find no memory; what runs it."""
    other, memory = pair.make(), Memory(np.ones((1, 64), np.float32))
    pair.bench.made[1].full = True

    def fail() -> None:
        with pytest.raises(RunFailed, match="out of memory"):
            memory.run(other, (0,))

    return fail


def test_a_run_that_fails_beside_a_capture_costs_nobody_a_graph(
    pair: Pair, clock: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime waits for the whole device for the words of an error, and nothing can know that before."""
    fail = another_that_fails(pair)
    assert not beside_a_capture(pair, fail), "who serves is not kept waiting"
    assert pair.captured == [], "it was spoilt"
    clock[0] += QUIET_NS
    answer = pair.run()
    assert len(answer) == 1
    assert pair.bench.made[2].captured[:1] == ["1"]
    assert pair.bench.made[2].replays
    assert "without CUDA graphs" not in capfd.readouterr().err


def test_while_runs_fail_for_want_of_memory_nothing_is_captured(
    pair: Pair, clock: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    """One after the other they would spoil each try."""
    fail = another_that_fails(pair)
    pair.bench.made[0].meanwhile = fail
    answer = pair.run(3)
    pair.bench.made[2].meanwhile = fail
    for _ in range(8):
        assert pair.run(1) == answer
        clock[0] += QUIET_NS // 2
        fail()
    assert pair.bench.made[2].captured == []
    pair.bench.made[2].meanwhile = bool
    clock[0] += QUIET_NS
    assert pair.run() == answer
    assert pair.bench.made[2].captured[:1] == ["1"]
    assert "without CUDA graphs" not in capfd.readouterr().err


def test_a_capture_that_fails_leaves_later_sessions_to_be_made(pair: Pair) -> None:
    pair.bench.made[0].fail = BY_OTHERS
    assert len(pair.run()) == 1
    assert not pair.make().memory()


def test_a_session_that_takes_texts_is_made_apart_from_captures_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made as those on the processor are, as this one is."""
    version = version_of(write_model("mlp", tmp_path) / "1" / "model.onnx", *MLP)
    real, refused = onnxruntime.InferenceSession, list[bool]()

    def make(*arguments: object, **options: object) -> object:
        with pytest.raises(NotNow), capturing(ANY_DEVICE):
            pass
        refused.append(True)
        return real(*arguments, **options)

    runtime = onnx.OnnxRuntime()
    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    session = runtime.load(version, RuntimeSettings())
    assert refused == [True]
    thread = threading.Thread(target=session.close)
    with capturing(ANY_DEVICE):
        thread.start()
        thread.join(MOMENT_S)
        assert thread.is_alive(), "it is closed apart from them, too"
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_two_may_wait_at_once_and_the_last_one_lets_captures_go_on() -> None:
    with whole_device():
        with whole_device():
            pass
        with pytest.raises(NotNow), capturing(ANY_DEVICE):
            pass
    with capturing(ANY_DEVICE), capturing(ANY_DEVICE):
        pass


def test_captures_one_after_the_other_keep_nobody_waiting() -> None:
    """Who waits is let in once those that are under way have ended: nothing else is captured before."""
    waits, over = threading.Event(), threading.Event()

    def wait() -> None:
        with whole_device():
            waits.set()
            over.wait(PATIENCE_S)

    thread = threading.Thread(target=wait)
    with capturing(ANY_DEVICE):
        thread.start()
        with suppress(NotNow):  # once it has come to wait
            while thread.is_alive():
                with capturing(ANY_DEVICE):
                    thread.join(0.001)
        assert not waits.is_set()
    assert waits.wait(PATIENCE_S)
    over.set()
    thread.join(PATIENCE_S)


def test_a_refusal_that_leads_back_to_itself_ends() -> None:
    """As one that was raised from itself, or from what came of it."""
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(RuntimeError, match="first"), whole_device():
        raise first
