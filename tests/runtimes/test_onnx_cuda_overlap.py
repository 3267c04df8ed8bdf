"""Runs on a simulated CUDA device that are begun before the one before them has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance.devices.cuda import CudaFailed
from appliance.runtimes import onnx_cuda
from appliance.runtimes.runtime import Feed, OverlappedRun, Place, RuntimeSettings, Session, region_maker
from appliance.tools.conformance.memory import Memory
from tests.runtimes.cuda_bench import Bench, write_two


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def batched(bench: Bench, tmp_path: Path) -> Iterator[Session]:
    session = bench.load(write_two(tmp_path), RuntimeSettings())
    yield session
    session.close()
    assert not bench.cuda.held


class Turn:
    """A place of pinned memory where batches for ``batched`` are gathered, and one for their outputs."""

    def __init__(self, session: Session) -> None:
        make = region_maker(session)
        assert make is not None
        self._session = session
        self._source, self._place = make(4096), Place(make(4096), 0, 4096)

    def put(self, rows: int, value: float) -> tuple[Feed, ...]:
        """Lay out a batch, whose inputs begin where those of eight rows would."""
        feeds = []
        for start, columns in ((0, 3), (128, 20)):
            raw = np.full((rows, columns), value, np.float32).tobytes()
            self._source.view[start : start + len(raw)] = raw
            feeds.append(Feed((rows, columns), start, len(raw)))
        return tuple(feeds)

    def run(self, rows: int) -> None:
        """Run it once."""
        self._session.run(self._source, self.put(rows, 1), (0, 1), self._place)

    def prepared(self, rows: int) -> Callable[[], None] | None:
        """Make that run ready."""
        return self._session.prepared(self._source, self.put(rows, 1), (0, 1), self._place)

    def outputs(self, rows: int) -> tuple[set[float], set[float]]:
        """What there is in both outputs."""
        view = self._place.region.view
        first, start = rows * 12, (rows * 12 + 63) // 64 * 64
        one, other = (
            np.frombuffer(raw, np.float32) for raw in (view[:first], view[start : start + rows * 80])
        )
        return set(one.tolist()), set(other.tolist())


def overlapped(session: Session, rows: int) -> tuple[Turn, OverlappedRun]:
    """A turn, and the run that is ready there."""
    turn = Turn(session)
    for _ in range(4):
        turn.run(rows)
    run = turn.prepared(rows)
    assert isinstance(run, OverlappedRun)
    return turn, run


def test_a_run_is_begun_before_the_one_before_it_has_ended(bench: Bench, batched: Session) -> None:
    (one, first), (other, second) = overlapped(batched, 8), overlapped(batched, 5)
    for value in (2, 3):
        one.put(8, value)
        first.begin()
        other.put(5, 10 * value)
        second.begin()
        one.put(8, 99)
        while not first.ended():
            pass
        first.finish()
        assert one.outputs(8) == ({2.0 * value}, {float(value**2)})
        second.finish()
        assert other.outputs(5) == ({20.0 * value}, {100.0 * value**2})
    first()
    assert one.outputs(8) == ({198.0}, {99.0**2})
    del first, second
    assert not bench.cuda.events, "given back with the runs"


def test_no_run_is_begun_until_its_graph_is_captured_and_where_memory_is_not_pinned(batched: Session) -> None:
    turn, ordinary = Turn(batched), Memory(np.ones((4, 3), np.float32), np.ones((4, 20), np.float32))
    turn.run(4)
    turn.run(4)
    assert turn.prepared(4) is None
    for _ in range(4):
        turn.run(4)
    assert isinstance(turn.prepared(4), OverlappedRun)
    assert ordinary.prepared(batched, (0, 1)) is not None
    assert not isinstance(ordinary.prepared(batched, (0, 1)), OverlappedRun)


def test_a_session_that_may_have_parts_on_the_processor_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(graphs=False)
    session = bench.load(write_two(tmp_path), RuntimeSettings())
    turn = Turn(session)
    for _ in range(4):
        turn.run(4)
    run = turn.prepared(4)
    assert run is not None
    assert not isinstance(run, OverlappedRun)
    session.close()


def test_what_was_prepared_for_a_session_that_is_closed_is_not_begun(bench: Bench, tmp_path: Path) -> None:
    session = bench.load(write_two(tmp_path), RuntimeSettings())
    _, run = overlapped(session, 4)
    session.close()
    with pytest.raises(onnx_cuda._Elsewhere):
        run.begin()


def test_a_context_that_is_lost_while_a_run_is_under_way_ends_the_process(
    bench: Bench, batched: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append(number))
    _, run = overlapped(batched, 2)
    run.begin()
    bench.cuda.broken = True
    with pytest.raises(CudaFailed, match="illegal memory access"):
        run.finish()
    assert ended == [signal.SIGABRT]
    bench.cuda.broken = False


def test_nothing_is_under_way_of_a_run_that_could_not_be_begun(
    bench: Bench, batched: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs would come to a place that is another batch's by then."""
    _, run = overlapped(batched, 4)
    waiting: list[Callable[[], object]] = []

    def finish(stream: int) -> None:
        while waiting:
            waiting.pop(0)()

    def refuse(event: int, stream: int) -> None:
        raise CudaFailed("no more resources (CUDA error 304 in cudaEventRecord)")

    monkeypatch.setattr(bench.cuda, "begin", waiting.append)
    monkeypatch.setattr(bench.cuda, "finish", finish)
    monkeypatch.setattr(bench.cuda, "record", refuse)
    with pytest.raises(CudaFailed, match="no more resources"):
        run.begin()
    assert not waiting


def test_releases_that_wait_for_every_replay_begin_nothing_behind_it(
    batched: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun there would have run before the batch in front of it is told."""
    overlapped(batched, 4)
    old = batched._without_graph._replace(holds=onnx_cuda.holds_what_graphs_read("1.26.0"))  # type: ignore[attr-defined]
    monkeypatch.setattr(batched, "_without_graph", old)
    turn = Turn(batched)
    turn.run(4)
    run = turn.prepared(4)
    assert run is not None
    assert not isinstance(run, OverlappedRun)
    turn.put(4, 3)
    run()
    assert turn.outputs(4) == ({6.0}, {9.0})
