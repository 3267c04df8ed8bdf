"""plan_request: what fits gives a plan, what does not is named in the words clients match on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import OutputHead, RequestHead, TensorHead
from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype, TensorSpec, encode_bytes
from appliance.domain.validation import BYTES_ELEMENTS_MAX, check_raw, plan_request
from tests.domain.sample import make_version
from tests.steps import finished

TWO = (
    TensorSpec(name="a", datatype=Datatype.INT32, shape=(-1, 3)),
    TensorSpec(name="b", datatype=Datatype.BYTES, shape=(2,), optional=True),
)


def head(*inputs: TensorHead, **rest: Any) -> RequestHead:
    return RequestHead(model_name="m", model_version="", inputs=inputs, **rest)


def test_a_plan_is_in_the_models_order_whatever_the_requests_order() -> None:
    model = make_version(inputs=TWO)
    plan = plan_request(model, head(TensorHead("b", "BYTES", (5, 2)), TensorHead("a", "INT32", (5, 7, 3))))
    assert plan.rows == 5
    assert [(planned.name, planned.source, planned.nbytes) for planned in plan.inputs] == [
        ("a", 1, 420),
        ("b", 0, -1),
    ]
    assert plan.merge_shape == ((7, 3), (2,))
    assert [planned.position for planned in plan.outputs] == [0]


def test_a_missing_input_is_told_with_how_many_there_may_be() -> None:
    text = "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], but missing"
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        plan_request(make_version(inputs=TWO), head())


def test_an_optional_input_may_be_left_out() -> None:
    plan = plan_request(make_version(inputs=TWO), head(TensorHead("a", "INT32", (1, 1, 3))))
    assert plan.inputs[1].source == -1
    assert plan.merge_shape == ((1, 3), None)


def test_no_rows_and_empty_tensors_are_requests_like_others() -> None:
    plan = plan_request(make_version(inputs=TWO), head(TensorHead("a", "INT32", (0, 0, 3))))
    assert (plan.rows, plan.inputs[0].nbytes) == (0, 0)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([("x", "FP16", (1, 4))], "inference input 'x' data-type is 'FP16', but model 'm' expects 'FP32'"),
        ([("x", "FP32", (1, 5))], "unexpected shape for input 'x' for model 'm'. Expected [-1,4], got [1,5]"),
        ([("x", "FP32", (4,))], "unexpected shape for input 'x' for model 'm'. Expected [-1,4], got [4]"),
        ([("x", "FP32", ())], "Expected [-1,4], got []"),
        ([("x", "FP32", (9, 4))], "inference request batch-size must be <= 8"),
        ([("x", "FP32", (-1, 4))], "negative dimension"),
        ([("x", "FP32", (1,) * 9)], "rank 9"),
        ([("x", "FP32", (1 << 40, 1 << 40))], "more elements than can be addressed"),
        ([("z", "FP32", (1, 4))], "unexpected inference input 'z' for model 'm'"),
        ([("x", "FP32", (1, 4)), ("x", "FP32", (1, 4))], "already exists"),
        (
            [],
            "expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) ['x']",
        ),
    ],
)
def test_what_does_not_fit_is_named(inputs: list[tuple[str, str, tuple[int, ...]]], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan_request(make_version(), head(*(TensorHead(*entry) for entry in inputs)))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ((OutputHead("nope"),), "unexpected inference output 'nope' for model 'm'"),
        ((OutputHead("y"), OutputHead("y")), "requested twice"),
        ((OutputHead("y", -1),), "classification"),
    ],
)
def test_outputs_that_cannot_be_given(outputs: tuple[OutputHead, ...], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan_request(make_version(), head(TensorHead("x", "FP32", (1, 4)), outputs=outputs))
    assert text in str(caught.value)


def test_rows_must_agree_between_inputs() -> None:
    both = head(TensorHead("a", "INT32", (2, 1, 3)), TensorHead("b", "BYTES", (3, 2)))
    with pytest.raises(InvalidRequest, match="batch size does not match"):
        plan_request(make_version(inputs=TWO), both)


def test_priority_must_be_a_level_of_the_model() -> None:
    model = make_version(batching=Batching(priority_levels=2, default_priority_level=1))
    plan_request(model, head(TensorHead("x", "FP32", (1, 4)), priority=2))
    with pytest.raises(InvalidRequest, match="above the 2 priority levels"):
        plan_request(model, head(TensorHead("x", "FP32", (1, 4)), priority=3))


@pytest.mark.parametrize("length", [15, 17, 0])
def test_raw_bytes_must_be_exactly_as_many_as_the_shape_says(length: int) -> None:
    plan = plan_request(make_version(), head(TensorHead("x", "FP32", (1, 4))))
    check_raw(plan, plan.inputs[0], bytes(16))
    with pytest.raises(
        InvalidRequest, match=f"byte size mismatch for input 'x' for model 'm'. Expected 16, got {length}"
    ):
        check_raw(plan, plan.inputs[0], bytes(length))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (encode_bytes([b"a"]), "expected 2 string elements for inference input 'b' for model 'm', got 1"),
        (encode_bytes([b"a", b"b", b""]), "unexpected number of string elements 3"),
        (encode_bytes([b"a", b"bc"])[:-1], "incomplete string data"),
        (encode_bytes([b"a"]) + b"\x01\x00", "incomplete string length indicator"),
    ],
)
def test_bytes_must_be_as_many_whole_elements_as_the_shape_says(raw: bytes, text: str) -> None:
    plan = plan_request(
        make_version(inputs=TWO), head(TensorHead("a", "INT32", (1, 0, 3)), TensorHead("b", "BYTES", (1, 2)))
    )

    def check(raw: bytes) -> None:
        steps = check_raw(plan, plan.inputs[1], raw)
        assert steps is not None
        finished(steps)

    check(encode_bytes([b"", b"\xff"]))
    with pytest.raises(InvalidRequest) as caught:
        check(raw)
    assert text in str(caught.value)


def test_elements_beyond_the_shape_are_not_walked_and_there_are_not_too_many() -> None:
    inputs = (TensorSpec(name="b", datatype=Datatype.BYTES, shape=(-1,)),)
    model = make_version(inputs=inputs)
    plan = plan_request(model, head(TensorHead("b", "BYTES", (1, 2))))
    steps = check_raw(plan, plan.inputs[0], bytes(4 * 100_000))
    assert steps is not None
    with pytest.raises(InvalidRequest, match=r"string elements 3 .*, expecting 2"):
        next(steps)
    most = BYTES_ELEMENTS_MAX
    assert plan_request(model, head(TensorHead("b", "BYTES", (1, most)))).inputs[0].elements == most
    with pytest.raises(InvalidRequest, match=f"at most {most} are accepted"):
        plan_request(model, head(TensorHead("b", "BYTES", (1, most + 1))))
