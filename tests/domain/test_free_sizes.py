"""How large free dimensions have been."""

from __future__ import annotations

import pytest

from appliance.domain.free_sizes import is_open_ended, largest, sizes_of
from appliance.domain.session_options import FREE_MAX
from appliance.domain.tensor import Datatype, TensorSpec
from tests.domain.sample import make_version


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, datatype=Datatype.FP32, shape=shape)


TOKENS, PICTURE, FIXED = spec("tokens", -1), spec("picture", 3, -1, -1), spec("fixed", 7)


@pytest.mark.parametrize(
    ("inputs", "parameters", "open_ended"),
    [
        ((TOKENS, FIXED), {}, True),
        ((TOKENS, FIXED), {"tensorrt_free_max": "0"}, True),
        ((TOKENS, FIXED), {"tensorrt_free_max": "9"}, False),
        ((FIXED,), {}, False),
    ],
)
def test_a_model_is_open_ended_where_nothing_says_how_large_its_free_dimensions_can_be(
    inputs: tuple[TensorSpec, ...], parameters: dict[str, str], open_ended: bool
) -> None:
    assert is_open_ended(make_version(inputs=inputs, parameters=parameters)) is open_ended


def test_only_free_dimensions_count_in_their_order() -> None:
    assert sizes_of((TOKENS, PICTURE, FIXED), ((5,), (3, 8, 9), (7,))) == {"tokens": (5,), "picture": (8, 9)}
    assert sizes_of((TOKENS, PICTURE), (None, (3, 8, 9))) == {"picture": (8, 9)}, "one is left out"


def test_what_no_engine_is_built_for_does_not_count() -> None:
    assert sizes_of((TOKENS, PICTURE), ((FREE_MAX,), (3, 8, FREE_MAX + 1))) == {"tokens": (FREE_MAX,)}


def test_the_larger_one_of_each_dimension_is_taken() -> None:
    assert largest({"a": (5, 2)}, {"a": (3, 4), "b": (1,)}) == {"a": (5, 4), "b": (1,)}
    assert largest({"a": (5, 2)}, {"a": (3,)}) == {"a": (3,)}, "the input is another one now"
