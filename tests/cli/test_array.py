"""Values as a person types them, and as they go over the wire."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cli.array import Array, decode, encode, fit_shape, nested, parse_values, read_npy, zeros
from appliance.cli.failure import CommandFailed
from appliance.domain.tensor import Datatype


@pytest.mark.parametrize(
    ("text", "values", "shape"),
    [
        ("3", [3], ()),
        ("-1.5", [-1.5], ()),
        ("1, 2,3", [1, 2, 3], (3,)),
        ("[[1,2],[3,4]]", [1, 2, 3, 4], (2, 2)),
        ("[]", [], (0,)),
        ("[[],[]]", [], (2, 0)),
        ("true,false", [True, False], (2,)),
        ("hello", ["hello"], (1,)),
        ("hello,2", ["hello", 2], (2,)),
        ('["a,b","c"]', ["a,b", "c"], (2,)),
    ],
)
def test_values_as_typed(text: str, values: list[Any], shape: tuple[int, ...]) -> None:
    assert parse_values(text) == Array(values=values, shape=shape)


@pytest.mark.parametrize("text", ["[1,2", "[[1],[2,3]]", '{"a":1}', "[null]", "null"])
def test_values_that_are_none(text: str) -> None:
    with pytest.raises(CommandFailed):
        encode(parse_values(text), Datatype.FP32, "x")


@pytest.mark.parametrize(
    ("shape", "wanted", "full"),
    [
        ((2, 3), (2, 3), (2, 3)),
        ((2, 3), (-1, 3), (2, 3)),
        ((3,), (-1, 3), (1, 3)),
        ((6,), (-1, 3), (2, 3)),
        ((64,), (-1, 8, 8), (1, 8, 8)),
        ((4,), (-1, -1), (1, 4)),
        ((), (), ()),
        ((), (1,), (1,)),
        ((), (-1, 1), (1, 1)),
        ((6,), (2, 3), (2, 3)),
    ],
)
def test_shapes_that_fit(shape: tuple[int, ...], wanted: tuple[int, ...], full: tuple[int, ...]) -> None:
    count = int(np.prod(shape))
    assert fit_shape(Array(values=[0] * count, shape=shape), wanted, "x") == full


@pytest.mark.parametrize(("shape", "wanted"), [((5,), (-1, 3)), ((2, 2), (4,)), ((4,), (-1, -1, -1))])
def test_shapes_that_do_not(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    with pytest.raises(CommandFailed, match="'x' takes shape"):
        fit_shape(Array(values=[0] * int(np.prod(shape)), shape=shape), wanted, "x")


NUMBERS = [d for d in Datatype if d not in (Datatype.BYTES, Datatype.BF16, Datatype.BOOL)]


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda datatype: datatype.wire)
def test_numbers_are_little_endian_and_come_back(datatype: Datatype) -> None:
    raw = encode(parse_values("[0,1,2,100]"), datatype, "x")
    assert raw == struct.pack(f"<4{datatype.code}", 0, 1, 2, 100)
    assert list(decode(raw, datatype)) == [0, 1, 2, 100]


@given(st.lists(st.text()))
def test_texts_come_back(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    raw = encode(Array(values=texts, shape=(len(texts),)), Datatype.BYTES, "x")
    assert list(decode(raw, Datatype.BYTES)) == texts


@given(st.floats(width=32, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100))
def test_bf16_is_the_nearest(value: float) -> None:
    (back,) = decode(encode(Array(values=[value], shape=()), Datatype.BF16, "x"), Datatype.BF16)
    assert abs(back - value) <= max(abs(value) * 2**-8, 2.0**-133)


@pytest.mark.parametrize(
    ("text", "datatype"),
    [
        ("256", Datatype.UINT8),
        ("-1", Datatype.UINT64),
        ("1.5", Datatype.INT32),
        ("abc", Datatype.FP32),
        ("2", Datatype.BOOL),
        ("1e999", Datatype.INT64),
        ("1e39", Datatype.FP32),
        ("1e39", Datatype.BF16),
    ],
)
def test_values_that_the_datatype_cannot_hold(text: str, datatype: Datatype) -> None:
    with pytest.raises(CommandFailed, match=f"'x' is {datatype.wire}"):
        encode(parse_values(text), datatype, "x")


def test_zeros_fill_free_dimensions_with_one() -> None:
    assert zeros((-1, 2), Datatype.FP32) == Array(values=[0, 0], shape=(1, 2))
    assert encode(zeros((-1,), Datatype.BYTES), Datatype.BYTES, "x") == b"\0\0\0\0"


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files_are_read_in_row_major_order(tmp_path: Path, order: Any) -> None:
    array = np.asarray([[1, 2, 3], [4, 5, 6]], np.float32, order=order)
    np.save(tmp_path / "a.npy", array)
    assert read_npy(tmp_path / "a.npy") == Array(values=[1, 2, 3, 4, 5, 6], shape=(2, 3))


def test_npy_files_with_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(CommandFailed, match="cannot be read"):
        read_npy(tmp_path / "a.npy")


def test_nested_lists_of_any_rank() -> None:
    assert nested([7], ()) == 7
    assert nested([1, 2, 3, 4], (2, 1, 2)) == [[[1, 2]], [[3, 4]]]
