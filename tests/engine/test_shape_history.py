"""What is remembered of the shapes of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.engine.versions import shape_history
from appliance.engine.versions.shape_history import SETTLED_NS, ShapeHistory
from tests.domain.sample import make_version

TEXT = replace(
    make_version("m", inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(-1,)),)), runtime="tensorrt"
)


class Clock:
    ns = 5

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(clock: Clock) -> ShapeHistory:
    return ShapeHistory(clock)


def test_the_largest_of_a_model_counts_from_when_it_last_grew(history: ShapeHistory, clock: Clock) -> None:
    assert (history.sizes("m"), history.settled_ns("m")) == ({}, 0)
    for ns, size in ((5, 3), (6, 9), (7, 4), (8, 9)):
        clock.ns = ns
        history.note(TEXT, ((size,),))
    assert (history.sizes("m"), history.settled_ns("m")) == ({"x": (9,)}, 6 + SETTLED_NS)


def test_one_version_tells_for_the_next(history: ShapeHistory) -> None:
    history.note(TEXT, ((9,),))
    history.note(replace(TEXT, version=2), ((12,),))
    history.note(replace(TEXT, name="other"), ((99,),))
    assert history.sizes("m") == {"x": (12,)}


@pytest.mark.parametrize(
    "model", [replace(TEXT, runtime="onnx"), replace(TEXT, parameters={"tensorrt_free_max": "8"})]
)
def test_nothing_is_kept_of_models_whose_engines_it_does_not_bound(
    history: ShapeHistory, model: ModelVersion
) -> None:
    history.note(model, ((9,),))
    assert history.sizes("m") == {}


def test_so_many_models_are_remembered(history: ShapeHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_history, "MODELS_MAX", 2)
    for name in ("a", "b", "a", "c"):
        size = 9 if history.sizes(name) else 3
        history.note(replace(TEXT, name=name), ((size,),))
    assert [name for name in "abc" if history.sizes(name)] == ["a", "c"]
