"""Whether rows change one another's answers, seen by a real worker with ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, write_golden
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import Batching, ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.arrays import random_tensor
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import Feed, Produced, Region, RuntimeSettings, Session
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.loading import Loader
from appliance.workers.child.rows import mixes_rows
from appliance.workers.messages import Load
from appliance.workers.port import ModelLoaded, WeightsPagedIn, WorkerExited
from models.generators.graph import Constant, Node, constant, model_bytes, node, tensor_port
from tests.runtimes.cuda_bench import Bench as DeviceBench
from tests.workers.bench import Bench, spec, version_of

AXIS = constant("axis", np.array(0, np.int64))
PROBE = LoadWish(probe=True)
HALF = constant("half", np.random.default_rng(3).random((4, 4), np.float32))


def mixes(
    bench: Bench,
    root: Path,
    nodes: list[Node],
    row: tuple[int, ...] = (4,),
    wish: LoadWish = PROBE,
    more: Sequence[Constant] = (),
    most: int = 8,
    golden: str = "",
) -> bool | None:
    """What a worker says that loads the graph from ``x`` to ``y``, whose rows are ``row`` (-1: free), at ``most`` so
    many at once."""
    dims = ["n", *(f"d{axis}" if size == -1 else size for axis, size in enumerate(row))]
    model = model_bytes(
        "matrix",
        nodes,
        inputs=[tensor_port("x", "FP32", dims)],
        outputs=[tensor_port("y", "FP32", dims)],
        constants=[AXIS, HALF, *more],
    )
    path = root / "model.onnx"
    path.write_bytes(model)
    side = [spec("x", Datatype.FP32, *row)], [spec("y", Datatype.FP32, *row)]
    version = version_of(
        path, *side, max_batch_size=most, batching=Batching(), rows_assumed=True, golden=golden
    )
    worker = bench.start()
    bench.call(bench.pool.load, worker, 100, version, wish)
    loaded = bench.event(ModelLoaded)
    if wish.early:
        bench.event(WeightsPagedIn)
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    return loaded.mixes


SCORES = [
    node("Transpose", ["x"], ["t"]),
    node("MatMul", ["x", "t"], ["scores"]),
    node("Softmax", ["scores"], ["shares"], axis=1),
    node("MatMul", ["shares", "x"], ["y"]),
]
"""Attention over the first dimension: a sequence that comes first."""


@pytest.mark.parametrize(
    "nodes",
    [
        [node("CumSum", ["x", "axis"], ["y"])],
        [node("Softmax", ["x"], ["y"], axis=0)],
        SCORES,
        [node("NonZero", ["x"], ["found"]), node("Cast", ["found"], ["y"], to=1)],
    ],
    ids=["sum", "softmax", "attention", "as many rows as it finds"],
)
def test_rows_that_change_one_another_are_seen(
    shared_bench: Bench, tmp_path: Path, nodes: list[Node]
) -> None:
    assert mixes(shared_bench, tmp_path, nodes)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("MatMul", ["x", "half"], ["h"]), node("Softmax", ["h"], ["y"], axis=1)],
        [node("RandomNormalLike", ["x"], ["noise"]), node("Add", ["x", "noise"], ["y"])],
    ],
    ids=["apart", "random"],
)
def test_rows_that_answer_for_themselves(shared_bench: Bench, tmp_path: Path, nodes: list[Node]) -> None:
    assert not mixes(shared_bench, tmp_path, nodes)


def test_other_free_dimensions_are_made_up(shared_bench: Bench, tmp_path: Path) -> None:
    assert mixes(shared_bench, tmp_path, [node("CumSum", ["x", "axis"], ["y"])], row=(-1, 4))
    assert not mixes(shared_bench, tmp_path, [node("Neg", ["x"], ["y"])], row=(-1, 4))


@pytest.mark.parametrize("size", [1, 2])
def test_a_size_that_a_trace_has_fixed_is_found(shared_bench: Bench, tmp_path: Path, size: int) -> None:
    """Exporters that trace name a dimension free and write the size that they saw into a Reshape."""
    traced = [
        node("Constant", [], ["shape"], value=constant("", np.array([0, size, 4], np.int64))),
        node("Reshape", ["x", "shape"], ["whole"]),
        node("CumSum", ["whole", "axis"], ["y"]),
    ]
    assert mixes(shared_bench, tmp_path, [*traced], row=(-1, 4))


def test_a_model_that_takes_no_made_up_request_is_not_refused(shared_bench: Bench, tmp_path: Path) -> None:
    seven = [
        node("Constant", [], ["shape"], value=constant("", np.array([-1, 7, 3], np.int64))),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    assert not mixes(shared_bench, tmp_path, seven, row=(7, -1))


def test_a_load_that_serves_before_its_weights_are_there_does_not_wait_for_them(
    shared_bench: Bench, tmp_path: Path
) -> None:
    nodes = [node("Softmax", ["x"], ["y"], axis=0)]
    assert mixes(shared_bench, tmp_path, nodes, wish=LoadWish(probe=True, quick=True)) is None


def test_it_is_looked_at_only_where_that_is_asked_for(shared_bench: Bench, tmp_path: Path) -> None:
    assert mixes(shared_bench, tmp_path, [node("Softmax", ["x"], ["y"], axis=0)], wish=LoadWish()) is None


@pytest.mark.parametrize(("off", "seen"), [(1e-6, False), (0.01, True)], ids=["rounding", "another answer"])
def test_an_answer_that_rounding_decides_says_nothing(
    shared_bench: Bench, tmp_path: Path, off: float, seen: bool
) -> None:
    """Sums are off by a share for each row beside them, and the last row's lies so that this decides."""
    values = np.frombuffer(random_tensor(Datatype.FP32, 12), np.float32)[8:]
    more = [
        constant("off", np.array(off, np.float32)),
        constant("limit", np.array(values.sum(dtype=np.float64) * (1 + 2 * off), np.float32)),
        constant("last", np.array([1], np.int64)),
    ]
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "axis"], ["rows"], axis=0),
        node("Cast", ["rows"], ["beside"], to=1),
        node("ReduceSum", ["x", "last"], ["sum"]),
        node("Mul", ["sum", "off"], ["part"]),
        node("Mul", ["part", "beside"], ["error"]),
        node("Add", ["sum", "error"], ["rounded"]),
        node("Greater", ["rounded", "limit"], ["found"]),
        node("Cast", ["found"], ["share"], to=1),
        node("Mul", ["x", "share"], ["y"]),
    ]
    assert mixes(shared_bench, tmp_path, nodes, more=more) is seen


def golden_of(root: Path, *cases: NDArray[Any]) -> str:
    """A golden set of these requests; what it says of their answers is of no account here."""
    file = TensorFile()
    put = [
        GoldenCase(
            name=f"case {number}",
            inputs=(file.add("x", Datatype.FP32, each.shape, each.tobytes()),),
            outputs=(file.add("y", Datatype.FP32, each.shape, each.tobytes()),),
        )
        for number, each in enumerate(cases)
    ]
    write_golden(str(root / "golden"), GoldenSet(cases=tuple(put), tolerances={}), file.data())
    return str(root / "golden" / "set.json")


ABOVE_NINE = [
    node("Greater", ["x", "nine"], ["large"]),
    node("Cast", ["large"], ["shares"], to=1),
    node("CumSum", ["shares", "axis"], ["sums"]),
    node("Sub", ["sums", "shares"], ["before"]),
    node("Add", ["x", "before"], ["y"]),
]
"""Rows count those before them that are larger than any made-up value."""


@pytest.mark.parametrize("cases", [[2], [1, 1], [1]], ids=["one case", "two cases", "beside a made-up row"])
def test_rows_of_the_golden_set_are_tried(shared_bench: Bench, tmp_path: Path, cases: list[int]) -> None:
    nine = [constant("nine", np.array(9, np.float32))]
    assert not mixes(shared_bench, tmp_path, ABOVE_NINE, more=nine)
    requests = [np.full((rows, 4), 10, np.float32) for rows in cases]
    assert mixes(shared_bench, tmp_path, ABOVE_NINE, more=nine, golden=golden_of(tmp_path, *requests))


def test_no_more_rows_are_tried_than_requests_may_have(shared_bench: Bench, tmp_path: Path) -> None:
    """This model takes no three rows."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "axis"], ["rows"], axis=0),
        node("Gather", ["pair", "rows"], ["fits"], axis=0),
        node("CumSum", ["x", "axis"], ["sums"]),
        node("Add", ["sums", "fits"], ["y"]),
    ]
    pair = [constant("pair", np.zeros(3, np.float32))]
    assert mixes(shared_bench, tmp_path, nodes, more=pair, most=2)
    assert not mixes(shared_bench, tmp_path, nodes, more=pair, most=1)


class SlowSession:
    """Answers rows with themselves, each after a while."""

    measurable = True

    def __init__(self, row_s: float) -> None:
        self.row_s = row_s
        self.runs: list[int] = []

    def run(self, region: Region, feeds: Sequence[Feed | None], wanted: object, place: object) -> Produced:
        (feed,) = feeds
        assert feed is not None
        self.runs.append(feed.shape[0])
        time.sleep(self.row_s * feed.shape[0])
        raw = region.view[feed.offset : feed.offset + feed.nbytes]
        return Produced((feed.shape,), (feed.nbytes,), (raw,))


@pytest.mark.parametrize(("row_s", "runs"), [(0.0, [1, 3, 1, 1] * 2), (0.11, [1, 2])], ids=["quick", "slow"])
def test_a_slow_model_runs_no_more_rows_than_it_takes(row_s: float, runs: list[int]) -> None:
    side = [spec("x", Datatype.FP32, 4)], [spec("y", Datatype.FP32, 4)]
    session = SlowSession(row_s)
    version = version_of("", *side, max_batch_size=8, batching=Batching(), rows_assumed=True)
    assert mixes_rows(LoadedModel(version=version, session=cast(Session, session))) is False
    assert session.runs == runs


class FullSession(SlowSession):
    """One for which there is no memory but for a request of one row."""

    def run(self, region: Region, feeds: Sequence[Feed | None], wanted: object, place: object) -> Produced:
        (feed,) = feeds
        assert feed is not None
        if feed.shape[0] > 1:
            raise MemoryError
        return super().run(region, feeds, wanted, place)


def test_what_cannot_be_tried_now_is_not_taken_for_seen() -> None:
    side = [spec("x", Datatype.FP32, 4)], [spec("y", Datatype.FP32, 4)]
    version = version_of("", *side, max_batch_size=8, batching=Batching(), rows_assumed=True)
    assert mixes_rows(LoadedModel(version=version, session=cast(Session, FullSession(0.0)))) is None


class OnSimulatedDevice(OnnxRuntime):
    """Its sessions fill batches up, as on a GPU."""

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        return DeviceBench().load(version, settings)


def test_batches_of_a_model_that_mixes_rows_are_not_filled_up(tmp_path: Path) -> None:
    """The rows that fill up are zeros, which would be the largest here."""
    nodes = [node("ReduceMax", ["x"], ["most"], keepdims=1), node("Sub", ["x", "most"], ["y"])]
    path = tmp_path / "model.onnx"
    inputs, outputs = ([tensor_port(name, "FP32", ["n", 4])] for name in "xy")
    path.write_bytes(model_bytes("over_all", nodes, inputs=inputs, outputs=outputs))
    side = [spec("x", Datatype.FP32, 4)], [spec("y", Datatype.FP32, 4)]
    version = version_of(path, *side, max_batch_size=8, batching=Batching(), rows_assumed=True)
    asked = np.linspace(-9, -4, 20, dtype=np.float32).reshape(5, 4)
    right = asked - asked.max()
    file = TensorFile()
    case = GoldenCase(
        name="five rows",
        inputs=(file.add("x", Datatype.FP32, asked.shape, asked.tobytes()),),
        outputs=(file.add("y", Datatype.FP32, right.shape, right.tobytes()),),
    )
    write_golden(str(tmp_path / "golden"), GoldenSet(cases=(case,), tolerances={}), file.data())
    golden = str(tmp_path / "golden" / "set.json")
    loader = Loader(1, {"onnx": OnSimulatedDevice()}, 1)
    load = Load(1, replace(version, golden=golden), LoadWish(probe=True, assess=True))
    opened = loader.load(load, alone=True, tell=lambda *said: None, judge=lambda *said: None)
    assert opened.said.mixes
    opened.model.session.close()
