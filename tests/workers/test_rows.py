"""Whether rows change one another's answers, seen by a real worker with ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.domain.load_wish import LoadWish
from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype
from appliance.workers.port import ModelLoaded, WeightsPagedIn, WorkerExited
from models.generators.graph import Node, constant, model_bytes, node, tensor_port
from tests.workers.bench import Bench, spec, version_of

AXIS = constant("axis", np.array(0, np.int64))
PROBE = LoadWish(probe=True)
HALF = constant("half", np.random.default_rng(3).random((4, 4), np.float32))


def mixes(
    bench: Bench, root: Path, nodes: list[Node], row: tuple[int, ...] = (4,), wish: LoadWish = PROBE
) -> bool | None:
    """What a worker says that loads the graph from ``x`` to ``y``, whose rows are ``row`` (-1: free)."""
    dims = ["n", *(f"d{axis}" if size == -1 else size for axis, size in enumerate(row))]
    model = model_bytes(
        "matrix",
        nodes,
        inputs=[tensor_port("x", "FP32", dims)],
        outputs=[tensor_port("y", "FP32", dims)],
        constants=[AXIS, HALF],
    )
    path = root / "model.onnx"
    path.write_bytes(model)
    side = [spec("x", Datatype.FP32, *row)], [spec("y", Datatype.FP32, *row)]
    version = replace(version_of(path, *side), max_batch_size=8, batching=Batching(), rows_assumed=True)
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
