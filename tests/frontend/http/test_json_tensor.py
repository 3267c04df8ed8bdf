"""Tensors as JSON: what goes in comes out, and what does not fit is refused."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.errors import InvalidRequest
from appliance.domain.tensor import Datatype, encode_bytes
from appliance.frontend.http import json_tensor
from appliance.frontend.http.json_tensor import PIECE_ELEMENTS, RAW_ONLY, json_pieces
from tests.steps import finished


def raw_from_json(data: object, datatype: Datatype, elements: int, name: str) -> bytes:
    return bytes(finished(json_tensor.raw_from_json(data, datatype, elements, name)))


INTEGERS = {
    Datatype.UINT8: (0, 2**8 - 1),
    Datatype.UINT16: (0, 2**16 - 1),
    Datatype.UINT32: (0, 2**32 - 1),
    Datatype.UINT64: (0, 2**64 - 1),
    Datatype.INT8: (-(2**7), 2**7 - 1),
    Datatype.INT16: (-(2**15), 2**15 - 1),
    Datatype.INT32: (-(2**31), 2**31 - 1),
    Datatype.INT64: (-(2**63), 2**63 - 1),
}
ELEMENTS: dict[Datatype, st.SearchStrategy[Any]] = {
    Datatype.BOOL: st.booleans(),
    Datatype.FP32: st.floats(width=32, allow_nan=False, allow_infinity=False),
    Datatype.FP64: st.floats(allow_nan=False, allow_infinity=False),
    Datatype.BYTES: st.text(st.characters(exclude_categories=["Cs"])),
    **{datatype: st.integers(low, high) for datatype, (low, high) in INTEGERS.items()},
}


def _array(datatype: Datatype, raw: bytes) -> list[Any]:
    return list(json.loads("[" + ",".join(json_pieces(datatype, raw, "y")) + "]"))


@pytest.mark.parametrize("datatype", list(ELEMENTS), ids=str)
@given(data=st.data())
def test_values_survive_the_way_in_and_out(datatype: Datatype, data: st.DataObject) -> None:
    values = data.draw(st.lists(ELEMENTS[datatype], max_size=40))
    raw = raw_from_json(json.loads(json.dumps(values)), datatype, len(values), "x")
    assert _array(datatype, raw) == values


def test_long_tensors_come_out_in_pieces_that_join() -> None:
    count = 2 * PIECE_ELEMENTS + 7
    raw = struct.pack(f"<{count}i", *range(count))
    pieces = list(json_pieces(Datatype.INT32, raw, "y"))
    assert len(pieces) == 3
    assert json.loads("[" + ",".join(pieces) + "]") == list(range(count))
    texts = [str(number) for number in range(count)]
    assert _array(Datatype.BYTES, encode_bytes(text.encode() for text in texts)) == texts


@pytest.mark.parametrize("nested", [[[1, 2], [3, 4]], [1, 2, 3, 4], [[[1], [2]], [[3], [4]]]])
def test_arrays_may_be_nested_or_flat(nested: list[Any]) -> None:
    assert raw_from_json(nested, Datatype.INT32, 4, "x") == struct.pack("<4i", 1, 2, 3, 4)


def test_rank_0_may_be_a_bare_value() -> None:
    assert raw_from_json(2.5, Datatype.FP32, 1, "x") == struct.pack("<f", 2.5)


@pytest.mark.parametrize("datatype", list(INTEGERS), ids=str)
def test_integers_out_of_range_are_refused(datatype: Datatype) -> None:
    low, high = INTEGERS[datatype]
    raw_from_json([low, high], datatype, 2, "x")
    for value in (low - 1, high + 1, 10**400):
        with pytest.raises(InvalidRequest, match=f"outside the range of {datatype.wire}"):
            raw_from_json([value], datatype, 1, "x")


def test_fractions_too_large_for_fp32_are_refused_and_not_made_infinite() -> None:
    with pytest.raises(InvalidRequest, match="outside the range of FP32"):
        raw_from_json([1e300], Datatype.FP32, 1, "x")
    with pytest.raises(InvalidRequest, match="outside the range of FP64"):
        raw_from_json([10**400], Datatype.FP64, 1, "x")


@pytest.mark.parametrize(
    ("data", "datatype", "reason"),
    [
        ([1.5], Datatype.INT32, "must hold INT32 values; found a fraction"),
        ([True], Datatype.INT32, "found a boolean"),
        (["1"], Datatype.INT32, "found a string"),
        ([None], Datatype.FP32, "found null"),
        ([{}], Datatype.FP32, "found an object"),
        (["1.0"], Datatype.FP32, "found a string"),
        ([2], Datatype.BOOL, "true, false, 1 or 0"),
        ([0.0], Datatype.BOOL, "found a fraction"),
        ([1], Datatype.BYTES, "must hold strings"),
        (["\ud800"], Datatype.BYTES, "not valid Unicode"),
        ([[1], [2, 3]], Datatype.INT32, "ragged"),
        ([[1], 2], Datatype.INT32, "ragged"),
        ({"a": 1}, Datatype.INT32, "must be an array"),
        (None, Datatype.INT32, "must be an array"),
    ],
)
def test_what_is_not_of_the_datatype_is_refused(data: object, datatype: Datatype, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        raw_from_json(data, datatype, 1, "x")


def test_the_wrong_number_of_elements_is_refused_in_the_words_clients_know() -> None:
    with pytest.raises(InvalidRequest, match="Unable to parse 'data': shape does not match true shape"):
        raw_from_json([1, 2, 3], Datatype.INT32, 4, "x")


def test_data_nested_without_end_is_refused() -> None:
    data: list[Any] = []
    for _ in range(150):
        data = [data]
    with pytest.raises(InvalidRequest, match="nested deeper"):
        raw_from_json(data, Datatype.INT32, 0, "x")


@pytest.mark.parametrize("datatype", sorted(RAW_ONLY, key=str))
def test_datatypes_without_a_json_form_say_what_to_do(datatype: Datatype) -> None:
    with pytest.raises(InvalidRequest, match="binary_data_size"):
        raw_from_json([1.0], datatype, 1, "x")
    with pytest.raises(InvalidRequest, match="binary_data_output"):
        list(json_pieces(datatype, b"\0\0", "y"))


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.FP64])
def test_not_finite_values_are_strings_that_numpy_reads(datatype: Datatype) -> None:
    raw = struct.pack(f"<4{datatype.code}", 1.5, math.nan, math.inf, -math.inf)
    values = _array(datatype, raw)
    assert values == [1.5, "NaN", "Infinity", "-Infinity"]
    read = np.array(values, dtype=np.float32)
    assert read[0] == 1.5
    assert np.isnan(read[1])
    assert (read[2], read[3]) == (np.inf, -np.inf)
    assert raw_from_json(values, datatype, 4, "x") == raw


def test_bytes_that_are_not_text_have_no_json_form() -> None:
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        list(json_pieces(Datatype.BYTES, encode_bytes([b"\xff\xfe"]), "y"))
