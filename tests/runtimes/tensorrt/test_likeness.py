"""What models have in common whose engines can take each other's weights."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.domain.errors import LoadFailed
from appliance.runtimes.tensorrt.likeness import likeness
from models.generators.graph import constant, external_constant, model_bytes, node, tensor_port
from tests.workers.in_time import in_time


def model(
    weights: NDArray[np.generic],
    *,
    operator: str = "MatMul",
    name: str = "w",
    shape: tuple[int, ...] = (1, 4),
) -> bytes:
    return model_bytes(
        "m",
        [node(operator, ["x", name], ["h"]), node("Reshape", ["h", "s"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["n", 4])],
        outputs=[tensor_port("y", "FP32", [1, 4])],
        constants=[constant(name, weights), constant("s", np.array(shape, np.int64))],
    )


ONES, TWOS = np.ones((4, 4), np.float32), np.full((4, 4), 2, np.float32)


def field(number: int, value: bytes) -> bytes:
    return encoded(number << 3 | 2) + encoded(len(value)) + value


def encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def test_dimensions_without_end_take_no_time() -> None:
    """The builder would be with them for hours, and all other versions wait for it."""
    dimensions, one = field(1, encoded((1 << 63) - 1) * 300_000), field(1, encoded(0))
    floats, values = encoded(2 << 3) + encoded(1), (field(9, b"\0\1"), field(9, b"\0\2"))
    large, none = (
        [field(7, field(5, each + floats + value)) for value in values]
        for each in (dimensions, dimensions + one)
    )
    found, other = in_time(lambda: [[likeness(each) for each in models] for models in (large, none)])
    assert found[0] == found[1]
    assert other[0] != other[1], "it has no element"


def test_values_of_weights_are_not_part_of_it() -> None:
    assert likeness(model(ONES)) == likeness(model(TWOS))
    assert likeness(model(ONES.astype(np.float16))) == likeness(model(TWOS.astype(np.float16)))


@pytest.mark.parametrize(
    "other",
    [
        model(ONES, operator="Add"),
        model(ONES, name="v"),
        model(np.ones((4, 5), np.float32)),
        model(np.ones((4, 4), np.float16)),
        model(ONES, shape=(4, 1)),
    ],
    ids=["operator", "name", "shape of weights", "type of weights", "a shape that is a tensor"],
)
def test_all_else_is(other: bytes) -> None:
    assert likeness(model(ONES)) != likeness(other)


def test_single_numbers_are_as_builders_compute_with_them() -> None:
    one, two = (np.array(value, np.float32) for value in (1, 2))
    assert likeness(model(one, operator="Mul")) != likeness(model(two, operator="Mul"))
    assert likeness(model(np.array([1], np.float32))) != likeness(model(np.array([2], np.float32)))


def test_whole_numbers_are() -> None:
    assert likeness(model(ONES.astype(np.int8))) != likeness(model(TWOS.astype(np.int8)))


def test_how_engines_are_built_is() -> None:
    assert likeness(model(ONES), "a") == likeness(model(TWOS), "a")
    assert likeness(model(ONES), "a") != likeness(model(ONES), "b")
    assert likeness(model(ONES), "ab", "c") != likeness(model(ONES), "a", "bc")


def test_where_weights_lie_in_a_file_of_their_own_is_not_part_of_it() -> None:
    def beside(location: str, offset: int) -> bytes:
        return model_bytes(
            "m",
            [node("MatMul", ["x", "w"], ["y"])],
            inputs=[tensor_port("x", "FP32", ["n", 4])],
            outputs=[tensor_port("y", "FP32", ["n", 4])],
            constants=[external_constant("w", ONES, location=location, offset=offset)],
            check=False,
        )

    assert likeness(beside("a.bin", 0)) == likeness(beside("b.bin", 4096))


@pytest.mark.parametrize("data", [b"\x07", b"\x3a\x05ab"])
def test_what_is_no_model_is_told_of(data: bytes) -> None:
    with pytest.raises(LoadFailed):
        likeness(data)
