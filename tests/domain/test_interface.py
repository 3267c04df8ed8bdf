"""What clients rely on: which versions may take the place of another, case by case and as laws."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from appliance.domain.inference import OutputHead, RequestHead, TensorHead
from appliance.domain.interface import interface_changes
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.versions.wording import change_words
from tests.domain.sample import make_version

FP32, INT64 = Datatype.FP32, Datatype.INT64


def spec(name: str, *shape: int, datatype: Datatype = Datatype.FP32, optional: bool = False) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape, optional=optional)


def model(
    *inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (spec("y", 2),), batch: int = 0
) -> ModelVersion:
    return make_version("m", inputs=inputs, outputs=outputs, max_batch_size=batch)


X = spec("x", 4)
ROW = model(spec("x", 1, 4), outputs=(spec("y", 1, 2),))
ROWS = model(spec("x", -1, 4), outputs=(spec("y", -1, 2),))
BATCHED = model(X, batch=8)


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (BATCHED, BATCHED, []),
        (model(X), model(spec("z", 4)), [("input 'x'", "FP32 [4]", "absent"), ("input 'z'", "absent", "FP32 [4]")]),
        (model(X), model(X, spec("z", 4, optional=True)), []),
        (model(X, spec("z", 4, optional=True)), model(X), [("input 'z'", "FP32 [4] optional", "absent")]),
        (
            model(spec("x", 4, optional=True)),
            model(X),
            [("input 'x'", "FP32 [4] optional", "FP32 [4]")],
        ),
        (model(X), model(spec("x", 4, optional=True)), []),
        (model(X), model(spec("x", 4, datatype=INT64)), [("input 'x'", "FP32 [4]", "INT64 [4]")]),
        (model(spec("x", -1)), model(X), [("input 'x'", "FP32 [-1]", "FP32 [4]")]),
        (model(X), model(spec("x", -1)), []),
        (model(X), model(spec("x", 4, 1)), [("input 'x'", "FP32 [4]", "FP32 [4,1]")]),
        (BATCHED, model(spec("x", 5), batch=8), [("input 'x'", "FP32 [-1,4]", "FP32 [-1,5]")]),
        (BATCHED, model(X, batch=7), [("largest batch", "8", "7")]),
        (BATCHED, model(X, batch=9), []),
        # outputs
        (model(X), model(X, outputs=(spec("z", 2),)), [("output 'y'", "FP32 [2]", "absent")]),
        (model(X), model(X, outputs=(spec("z", 2), spec("y", 2))), []),
        (
            model(X),
            model(X, outputs=(spec("y", 2, datatype=INT64),)),
            [("output 'y'", "FP32 [2]", "INT64 [2]")],
        ),
        (model(X), model(X, outputs=(spec("y", -1),)), [("output 'y'", "FP32 [2]", "FP32 [-1]")]),
        (
            model(X, outputs=(spec("y", 1, -1),)),
            model(X, outputs=(spec("y", 1, 7),)),
            [],
        ),
        (model(X), model(X, outputs=(spec("y"),)), [("output 'y'", "FP32 [2]", "FP32 []")]),
        # the first dimension and the batch
        (ROW, ROWS, []),
        (ROW, BATCHED, []),
        (ROWS, ROW, [("input 'x'", "FP32 [-1,4]", "FP32 [1,4]"), ("output 'y'", "FP32 [-1,2]", "FP32 [1,2]")]),
        (BATCHED, ROWS, []),
        (ROWS, BATCHED, [("largest batch", "as its inputs say", "8")]),
        (
            model(spec("x", 9, 4), outputs=(spec("y", 9, 2),)),
            BATCHED,
            [("largest batch", "as its inputs say", "8")],
        ),
        (
            model(spec("x", 1, 4), spec("z", 2, 4), outputs=(spec("y", 1, 2),)),
            model(X, spec("z", 4), batch=8),
            [("output 'y'", "FP32 [1,2]", "FP32 [-1,2]"), ("largest batch", "as its inputs say", "8")],
        ),
    ],
)  # fmt: skip
def test_what_keeps_clients_of_one_version_from_another(
    old: ModelVersion, new: ModelVersion, changes: list[tuple[str, str, str]]
) -> None:
    assert [change_words(change) for change in interface_changes(new, old)] == changes


SHAPES = st.lists(st.sampled_from([-1, 1, 2]), max_size=2).map(tuple)
SPECS = st.builds(
    TensorSpec,
    name=st.sampled_from("xy"),
    datatype=st.sampled_from([FP32, INT64]),
    shape=SHAPES,
    optional=st.booleans(),
)
INPUTS = st.lists(SPECS, max_size=2, unique_by=lambda each: each.name).map(tuple)
OUTPUTS = st.lists(SPECS, min_size=1, max_size=2, unique_by=lambda each: each.name).map(tuple)
MODELS = st.builds(model, batch=st.sampled_from([0, 0, 1, 2, 4]), outputs=OUTPUTS).flatmap(
    lambda made: INPUTS.map(lambda inputs: model(*inputs, outputs=made.outputs, batch=made.max_batch_size))
)


@st.composite
def near(draw: st.DrawFn, of: ModelVersion) -> ModelVersion:
    """One that differs little, so that it often may take the place of ``of``."""

    def other(each: TensorSpec) -> TensorSpec:
        if draw(st.booleans()):
            return each
        shape = tuple(draw(st.sampled_from([size, -1, size, 1])) for size in each.shape)
        return spec(each.name, *shape, datatype=each.datatype, optional=each.optional or draw(st.booleans()))

    inputs, outputs = (tuple(other(each) for each in specs) for specs in (of.inputs, of.outputs))
    batch = draw(st.sampled_from([of.max_batch_size, of.max_batch_size, 0, 4]))
    if of.max_batch_size and not batch:
        inputs = tuple(spec(e.name, -1, *e.shape, datatype=e.datatype, optional=e.optional) for e in inputs)
        outputs = tuple(spec(e.name, -1, *e.shape, datatype=e.datatype) for e in outputs)
    if batch and not of.max_batch_size and all(e.shape for e in (*inputs, *outputs)):
        inputs = tuple(spec(e.name, *e.shape[1:], datatype=e.datatype, optional=e.optional) for e in inputs)
        outputs = tuple(spec(e.name, *e.shape[1:], datatype=e.datatype) for e in outputs)
    return model(*inputs, outputs=outputs, batch=batch)


@given(MODELS)
def test_a_version_may_take_its_own_place(one: ModelVersion) -> None:
    assert not interface_changes(one, one)


@settings(max_examples=200)
@given(st.data())
def test_what_may_take_the_place_of_a_successor_may_take_that_of_its_predecessor(data: st.DataObject) -> None:
    first = data.draw(MODELS)
    second = data.draw(near(first))
    third = data.draw(near(second))
    assume(not interface_changes(second, first) and not interface_changes(third, second))
    assert not interface_changes(third, first)


@settings(max_examples=200)
@given(st.data())
def test_a_request_for_a_version_is_one_for_what_may_take_its_place(data: st.DataObject) -> None:
    old = data.draw(MODELS)
    new = data.draw(near(old))
    assume(not interface_changes(new, old))
    rows = data.draw(st.integers(0, old.max_batch_size))
    batch = (rows,) if old.max_batch_size else ()
    heads = [
        TensorHead(
            each.name,
            each.datatype.wire,
            (*batch, *(data.draw(st.integers(0, 3)) if size < 0 else size for size in each.shape)),
        )
        for each in old.inputs
        if not each.optional or data.draw(st.booleans())
    ]
    asked = tuple(OutputHead(each.name) for each in old.outputs if data.draw(st.booleans()))
    head = RequestHead(model_name="m", model_version="", inputs=tuple(heads), outputs=asked)
    plan_request(old, head)
    plan_request(new, head)
