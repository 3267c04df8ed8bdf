"""Sessions on a CUDA device, whose device is simulated: memory of this process, and ONNX Runtime on the processor."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.devices.cuda import CudaFailed
from appliance.domain.errors import RunFailed
from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype
from appliance.runtimes import onnx_cuda
from appliance.runtimes.device_graphs import GRAPHS_MAX
from appliance.runtimes.runtime import Region, RuntimeSettings, Session, batch_sizes, region_maker
from appliance.tools.conformance.cases import Rig
from appliance.tools.conformance.identity import INPUTS, OUTPUTS
from appliance.tools.conformance.memory import Memory
from appliance.workers.child.execution import Executor, LoadedModel
from appliance.workers.port import ItemStatus, RunItem
from models.generate import write_model
from models.generators.graph import model_bytes, node, tensor_port
from tests.runtimes.cuda_bench import MLP, Bench, answers, loaded_mlp, write_two
from tests.runtimes.runtime_conformance import RuntimeConformance
from tests.runtimes.test_runtimes import write_identity
from tests.workers.bench import spec, version_of


class TestSimulatedCudaSession(RuntimeConformance):
    """The conformance suite of runtimes."""

    left_out = ("weights",)

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Rig:
        version = version_of(write_identity(tmp_path), INPUTS, OUTPUTS)
        return Rig(Bench(), version, replace(version, path=str(tmp_path / "nosuch.onnx")))


class TestSimulatedCudaSessionWithoutGraphs(TestSimulatedCudaSession):
    """The same."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Rig:
        version = version_of(write_identity(tmp_path), INPUTS, OUTPUTS)
        return Rig(Bench(graphs=False), version, replace(version, path=str(tmp_path / "nosuch.onnx")))


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def mlp(bench: Bench, tmp_path: Path) -> Iterator[Session]:
    with loaded_mlp(bench, tmp_path) as session:
        yield session


def test_shapes_that_come_again_are_captured_once_each(bench: Bench, mlp: Session) -> None:
    one, two = (Memory(np.full((rows, 64), rows, np.float32)) for rows in (1, 2))
    (first, *others) = answers(mlp, one, 6)
    assert set(others) == {first}
    answers(mlp, two, 6)
    assert bench.made[0].captured[:1] == ["1"]
    assert sorted(set(bench.made[0].captured)) == ["1", "2"]
    assert bench.made[0].replays > 2


def test_a_run_is_one_copy_in_and_one_out(bench: Bench, tmp_path: Path) -> None:
    version = version_of(write_identity(tmp_path), INPUTS, OUTPUTS)
    session = bench.load(version, RuntimeSettings())
    memory = Memory(np.ones((2, 3), np.float32), np.ones((4, 1), np.float32))
    for _ in range(5):
        memory.run(session, (0, 1))
    before = bench.cuda.copies
    memory.run(session, (0, 1))
    assert bench.cuda.copies - before in (
        2,
        3,
    )  # the identity's outputs may be its inputs, each then copied alone
    session.close()


def test_a_graph_that_gives_nothing_is_not_used(
    bench: Bench, mlp: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    memory = Memory(np.ones((1, 64), np.float32))
    bench.made[0].lie = True
    assert len(set(answers(mlp, memory, 6))) == 1
    assert bench.made[0].replays == 1, "it was tried once"
    assert (
        "model/1 runs without CUDA graphs: a graph gave another answer than the run before"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize("how", ["lie", "fail"])
def test_an_answer_outside_of_its_place_is_not_spoilt_by_a_graph_that_comes_to_nothing(
    bench: Bench, mlp: Session, how: str
) -> None:
    setattr(bench.made[0], how, True)
    assert len(set(answers(mlp, Memory(np.ones((1, 64), np.float32), capacity=0), 6))) == 1


def test_a_graph_of_another_thread_is_captured_anew(bench: Bench, mlp: Session) -> None:
    """ONNX Runtime keeps graphs by thread."""
    memory = Memory(np.ones((1, 64), np.float32))
    thread = threading.Thread(target=answers, args=(mlp, memory, 5))
    thread.start()
    thread.join()
    bench.made[
        0
    ].captured.clear()  # of that thread, with which ONNX Runtime keeps them for as long as the session lives
    answers(mlp, memory, 3)
    assert bench.made[0].captured[0] == "1"


def test_the_graphs_that_a_load_in_another_thread_leaves_are_bounded_as_are_those_that_serve(
    bench: Bench, mlp: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there twice then, and the second ones are in no word of the session: what is bounded is their number."""
    monkeypatch.setattr(onnx_cuda, "GRAPHS_MAX", 3)

    def every_shape() -> None:
        for rows in range(1, 7):
            answers(mlp, Memory(np.ones((rows, 64), np.float32)), 4)

    loading = threading.Thread(target=every_shape)
    loading.start()
    loading.join()
    left = set(bench.made[0].captured)
    bench.made[0].captured.clear()
    every_shape()
    assert left == set(bench.made[0].captured) == {"1", "2", "3"}, (
        "the same numbers, by which each thread has its own"
    )


def test_what_operators_leave_for_copies_is_taken_back_also_without_graphs(tmp_path: Path) -> None:
    bench = Bench(graphs=False)
    session = bench.load(
        version_of(write_model("mlp", tmp_path) / "1" / "model.onnx", *MLP), RuntimeSettings()
    )
    for rows in (1, 2, 3) * 5:
        answers(session, Memory(np.ones((rows, 64), np.float32)), 2)
    assert bench.made[0].staged == 0
    session.close()


def test_shapes_beyond_all_graphs_leave_nothing(
    bench: Bench, mlp: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_cuda, "GRAPHS_MAX", 1)
    answers(mlp, Memory(np.ones((1, 64), np.float32)), 5)
    answers(mlp, Memory(np.ones((2, 64), np.float32)), 50)
    assert bench.made[0].staged == 0


def test_graphs_of_releases_that_take_back_what_they_read_stay_right(
    bench: Bench, mlp: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = mlp._without_graph._replace(holds=onnx_cuda.holds_what_graphs_read("1.26.0"))  # type: ignore[attr-defined]
    monkeypatch.setattr(mlp, "_without_graph", old)
    bench.made[0].reads_on = True
    one, two = (Memory(np.full((rows, 64), rows, np.float32)) for rows in (1, 2))
    first = answers(mlp, one, 1)
    answers(mlp, one, 5)
    answers(mlp, two, 2)
    one.put(np.full((1, 64), 3, np.float32))
    changed = answers(mlp, one, 3)
    one.put(np.full((1, 64), 1, np.float32))
    assert set(answers(mlp, one, 3)) == set(first)
    assert len({*changed, *first}) == 2


@pytest.mark.parametrize(
    ("release", "holds"),
    [("1.26.0", False), ("1.31.0", False), ("1.31.1", True), ("1.32.0.dev20261101", True), ("2.0.0", True)],
)
def test_releases_are_told_apart(release: str, holds: bool) -> None:
    assert onnx_cuda.holds_what_graphs_read(release) is holds


def test_it_is_closed_on_its_device_in_whatever_thread(bench: Bench, mlp: Session) -> None:
    closing = threading.Thread(target=mlp.close)
    closing.start()
    closing.join()
    assert closing.ident in bench.cuda.entered


def test_memory_is_kept_for_so_many_shapes(bench: Bench, mlp: Session) -> None:
    for rows in range(1, onnx_cuda.STAGES_MAX + 10):
        answers(mlp, Memory(np.ones((rows, 64), np.float32)), 2)
    assert len(bench.cuda.held) == 2 * onnx_cuda.STAGES_MAX
    assert len(set(bench.made[0].captured)) == 0


def test_no_more_than_so_many_graphs(bench: Bench, mlp: Session) -> None:
    for rows in range(1, GRAPHS_MAX + 5):
        answers(mlp, Memory(np.ones((rows, 64), np.float32)), 5)
    assert len(set(bench.made[0].captured)) == GRAPHS_MAX


def test_pinned_memory_is_copied_from_and_to_directly(bench: Bench, mlp: Session) -> None:
    make = region_maker(mlp)
    assert make is not None
    memory = Memory(np.ones((1, 64), np.float32))
    expected = answers(mlp, memory, 3)[0]
    source, place = make(4096), make(4096)
    source.view[64 : 64 + 256] = memory.source.view[64 : 64 + 256]
    memory.source, memory.place = source, memory.place._replace(region=place)
    staged = mlp._copies._in.view  # type: ignore[attr-defined]
    staged[:] = bytes(len(staged))
    produced = memory.run(mlp, (0,))
    assert produced.parts is None
    assert memory.outputs(produced)[0] == expected


def test_a_batch_is_gathered_in_pinned_memory(mlp: Session, tmp_path: Path) -> None:
    path = tmp_path / "mlp" / "1" / "model.onnx"
    model = LoadedModel(
        version=replace(version_of(path, *MLP), max_batch_size=8, batching=Batching()), session=mlp
    )
    memory = Memory(np.arange(64, dtype=np.float32).reshape(1, 64), np.ones((1, 64), np.float32))
    items = tuple(
        RunItem(ticket, 1, ((1, 64),), (256,), feed.offset, (0,), 32 << 10, 4096)
        for ticket, feed in enumerate(memory.feeds)
        if feed is not None
    )
    executor = Executor(memory.source)
    for _ in range(3):
        results, _ = executor.run(model, items)
        assert [each.status for each in results] == [ItemStatus.OK, ItemStatus.OK]
    assert executor._gathered[0].at_least(1).pinned is not None
    assert executor._spread[0].at_least(1).pinned is not None


def test_no_room_on_the_device_is_told_and_passes(bench: Bench, mlp: Session) -> None:
    memory = Memory(np.ones((1, 64), np.float32))
    held = bench.cuda.allocate(bench.cuda.memory()[0])
    with pytest.raises(RunFailed, match="out of memory"):
        memory.run(mlp, (0,))
    bench.cuda.free(held)
    assert answers(mlp, memory, 2)


def test_an_answer_is_given_where_there_is_no_room_to_keep_its_shapes(
    bench: Bench, mlp: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there by then; the next run like it learns them anew."""
    memory, allocate = Memory(np.ones((1, 64), np.float32)), bench.cuda.allocate
    for fail_at in (2, 0):
        taken = list[int]()

        def take(nbytes: int, fail_at: int = fail_at, taken: list[int] = taken) -> int:
            taken.append(nbytes)
            if len(taken) == fail_at:
                raise CudaFailed("out of memory (CUDA error 2 in cudaMalloc)")
            return allocate(nbytes)

        monkeypatch.setattr(bench.cuda, "allocate", take)
        found = answers(mlp, memory, 1)
        assert len(found[0]) == 40
        assert len(bench.cuda.held) == (0 if fail_at else 2)


def test_memory_is_what_the_device_has_less(bench: Bench, mlp: Session) -> None:
    assert mlp.memory() == 0
    answers(mlp, Memory(np.ones((4, 64), np.float32)), 2)
    assert mlp.memory() >= 4 * 64 * 4


def test_a_lost_context_ends_the_process(
    bench: Bench, mlp: Session, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append(number))
    memory = Memory(np.ones((1, 64), np.float32))
    answers(mlp, memory, 2)
    bench.cuda.broken = True
    with pytest.raises(RunFailed, match="illegal memory access"):
        memory.run(mlp, (0,))
    assert ended
    assert "CUDA is lost to this process: an illegal memory access" in capfd.readouterr().err
    bench.cuda.broken = False


def test_shapes_that_follow_from_values_are_never_kept(bench: Bench, tmp_path: Path) -> None:
    model = model_bytes(
        "nonzero",
        [node("NonZero", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n"])],
        outputs=[tensor_port("y", "INT64", [1, "k"])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    version = version_of(path, [spec("x", Datatype.FP32, -1)], [spec("y", Datatype.INT64, 1, -1)])
    session = bench.load(version, RuntimeSettings())
    for values in ([1, 0, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 0, 1]):
        memory = Memory(np.array(values, np.float32))
        (found,) = memory.outputs(memory.run(session, (0,)))
        assert np.frombuffer(found, np.int64).tolist() == np.flatnonzero(values).tolist()
    session.close()
    assert not bench.cuda.held


def test_regions_of_a_session_outlive_it(bench: Bench, tmp_path: Path) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    session = bench.load(version_of(path, *MLP), RuntimeSettings())
    make = region_maker(session)
    assert make is not None
    region: Region = make(64)
    session.close()
    region.view[:] = b"y" * 64


@pytest.fixture
def batched(bench: Bench, tmp_path: Path) -> Iterator[Session]:
    session = bench.load(write_two(tmp_path), RuntimeSettings())
    yield session
    session.close()
    assert not bench.cuda.held


def test_batches_are_filled_up_to_a_few_sizes(bench: Bench, batched: Session) -> None:
    random = np.random.default_rng(3)
    make = region_maker(batched)
    assert make is not None
    for pinned in (False, True):
        for rows in (1, 2, 3, 4, 5, 6, 7, 8) * 4:
            a, b = random.random((rows, 3), np.float32), random.random((rows, 20), np.float32)
            memory = Memory(a, b)
            if pinned:
                source = make(len(memory.source.view))
                source.view[:] = memory.source.view
                memory.source = source
                memory.place = memory.place._replace(region=make(8192))
            found = memory.outputs(memory.run(batched, (0, 1)))
            assert found == [(a + a).tobytes(), (b * b).tobytes()]
    assert sorted(set(bench.made[0].captured), key=int) == ["1", "2", "3", "4", "5", "6"], "1, 2, 3, 4, 6, 8"


def test_a_filled_batch_is_prepared_for_its_rows(batched: Session) -> None:
    memory = Memory(np.ones((5, 3), np.float32), np.ones((5, 20), np.float32))
    for _ in range(5):
        memory.run(batched, (0, 1))
    run = memory.prepared(batched, (0, 1))
    assert run is not None
    memory.put(np.full((5, 3), 4, np.float32), np.full((5, 20), 3, np.float32))
    memory.mark()
    run()
    assert memory.in_place((60, 400)) == [
        np.full((5, 3), 8, np.float32).tobytes(), np.full((5, 20), 9, np.float32).tobytes(),
    ]  # fmt: skip
    assert memory.spoilt() is None


def test_what_has_no_row_for_each_row_is_not_filled_up(bench: Bench, tmp_path: Path) -> None:
    model = model_bytes(
        "whole",
        [node("ReduceSum", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n", 4])],
        outputs=[tensor_port("y", "FP32", [1, 1])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    version = version_of(
        path,
        [spec("x", Datatype.FP32, 4)],
        [spec("y", Datatype.FP32, 1)],
        max_batch_size=8,
        batching=Batching(),
    )
    session = bench.load(version, RuntimeSettings())
    for rows in (5, 7, 5):
        memory = Memory(np.ones((rows, 4), np.float32))
        assert memory.outputs(memory.run(session, (0,))) == [np.float32(rows * 4).tobytes()]
    session.close()
    assert not bench.cuda.held


def test_rows_that_fill_up_are_nothing_of_earlier_requests(bench: Bench, tmp_path: Path) -> None:
    """What a model finds over all rows of a batch is the same whatever was there before."""
    model = model_bytes(
        "over_all",
        [node("ReduceMax", ["x"], ["m"], keepdims=1), node("Sub", ["x", "m"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n", 4])],
        outputs=[tensor_port("y", "FP32", ["n", 4])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    tensors = [spec("x", Datatype.FP32, 4)], [spec("y", Datatype.FP32, 4)]
    session = bench.load(version_of(path, *tensors, max_batch_size=8, batching=Batching()), RuntimeSettings())
    for rows, value in ((8, 900), (7, 2), (8, 800), (7, 3), (7, 1), (5, 9), (6, 700), (5, 4)):
        x = np.full((rows, 4), value, np.float32)
        x[0, 0] += 1
        memory = Memory(x)
        (found,) = memory.outputs(memory.run(session, (0,)))
        assert np.frombuffer(found, np.float32).tolist() == (x - x.max()).ravel().tolist()
    session.close()


def test_requests_that_are_never_merged_are_not_filled_up(bench: Bench, tmp_path: Path) -> None:
    path = write_model("mlp", tmp_path) / "1" / "model.onnx"
    session = bench.load(
        version_of(path, [spec("x", Datatype.FP32, 64)], [spec("y", Datatype.FP32, 10)], max_batch_size=8),
        RuntimeSettings(),
    )
    assert batch_sizes(session) == ()
    for rows in (5, 7):
        answers(session, Memory(np.ones((rows, 64), np.float32)), 4)
    assert [key[0] for key in session._stages] == [((5, 64),), ((7, 64),)]  # type: ignore[attr-defined]
    session.close()


def test_an_output_without_rows_costs_those_with_rows_nothing(bench: Bench, tmp_path: Path) -> None:
    model = model_bytes(
        "both",
        [node("Add", ["x", "x"], ["y"]), node("ReduceSum", ["x"], ["z"])],
        inputs=[tensor_port("x", "FP32", ["n", 4])],
        outputs=[tensor_port("y", "FP32", ["n", 4]), tensor_port("z", "FP32", [1, 1])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    outputs = [spec("y", Datatype.FP32, 4), spec("z", Datatype.FP32, 1)]
    version = version_of(path, [spec("x", Datatype.FP32, 4)], outputs, max_batch_size=8, batching=Batching())
    session = bench.load(version, RuntimeSettings())
    eight, five = Memory(np.ones((8, 4), np.float32)), Memory(np.ones((5, 4), np.float32))
    for _ in range(3):
        assert eight.outputs(eight.run(session, (0,))) == [np.full((8, 4), 2, np.float32).tobytes()]
    assert five.outputs(five.run(session, (1,))) == [np.float32(20).tobytes()]
    assert eight.run(session, (0,)).parts is None, "its memory is still kept"
    session.close()
