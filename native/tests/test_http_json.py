"""Tensors as JSON, by the front end and by the edge: what the front end reads and writes is what the edge does, to
the last byte; what the edge refuses the front end leaves to it."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

import pytest
from edge_appliance_native import json_read, json_written
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.domain.errors import InvalidRequest
from appliance.domain.tensor import Datatype
from appliance.frontend.http.json_document import parse_json
from appliance.frontend.http.json_tensor import json_pieces, raw_from_json
from tests.steps import finished

NUMBERS = [datatype for datatype in Datatype if datatype.code and datatype is not Datatype.FP16]
FLOATS = [Datatype.FP32, Datatype.FP64]
EXAMPLES = 300
FLOATS_TRIED = 100_000

digits = st.text("0123456789", max_size=24)
numbers = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-", "+"]),
    digits,
    st.one_of(st.just(""), digits.map(".{}".format)),
    st.one_of(
        st.just(""), st.builds("{}{}".format, st.sampled_from(["e", "E", "e-", "e+"]), st.integers(0, 400))
    ),
)
literals = st.sampled_from(
    [
        "true",
        "false",
        "null",
        "NaN",
        "Infinity",
        "-Infinity",
        '"NaN"',
        '"-Infinity"',
        '"x"',
        "{}",
        "[]",
        "-0",
        "-0.0",
    ]
)
elements = st.one_of(
    numbers,
    literals,
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.floats().map(json.dumps),
    st.floats(width=32).map(json.dumps),
)


def edge_read(text: bytes, datatype: Datatype, count: int) -> bytes | None:
    """What the edge makes of an array; None when it refuses it."""
    try:
        return bytes(finished(raw_from_json(parse_json(b"[" + text + b"]"), datatype, count, "x")))
    except InvalidRequest:
        return None


def agree(text: bytes, datatype: Datatype, count: int) -> bool:
    """Whether the edge takes the array, and then the front end does, alike."""
    expected = edge_read(text, datatype, count)
    assert json_read(datatype.code, text, count) == expected, (text, datatype)
    return expected is not None


def edge_written(raw: bytes, datatype: Datatype) -> bytes:
    return ",".join(json_pieces(datatype, raw, "x")).encode()


@pytest.mark.parametrize("datatype", NUMBERS, ids=str)
@settings(max_examples=EXAMPLES, deadline=None)
@given(values=st.lists(elements, min_size=1, max_size=4))
def test_the_front_end_reads_what_the_edge_reads(datatype: Datatype, values: list[str]) -> None:
    for value in values:
        agree(value.encode(), datatype, 1)
    agree(",".join(values).encode(), datatype, len(values))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    document=st.recursive(
        st.integers(0, 9), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=9
    ),
    space=st.sampled_from(["", " ", "\t\r\n "]),
)
def test_arrays_are_nested_as_at_the_edge(document: Any, space: str) -> None:
    text = json.dumps([document]).replace(",", space + "," + space)[1:-1].encode()
    for count in (1, 2, 3, 4, 8, 9):
        agree(text, Datatype.INT8, count)


@settings(max_examples=EXAMPLES, deadline=None)
@given(text=st.text('[]{}",: \n0123456789.eE+-truefalsNIy', max_size=30))
def test_what_is_no_array_is_left_to_the_edge(text: str) -> None:
    for datatype in (Datatype.FP32, Datatype.BOOL, Datatype.INT16):
        for count in (1, 2):
            agree(text.encode(), datatype, count)


@pytest.mark.parametrize("datatype", NUMBERS, ids=str)
@settings(max_examples=EXAMPLES, deadline=None)
@given(raw=st.binary(min_size=8, max_size=256))
@example(raw=bytes(8))
@example(raw=b"\xff" * 16)
def test_the_front_end_writes_what_the_edge_writes(datatype: Datatype, raw: bytes) -> None:
    raw = raw[: len(raw) // datatype.size * datatype.size]
    assert json_written(datatype.code, raw) == edge_written(raw, datatype)


@settings(max_examples=EXAMPLES, deadline=None)
@given(values=st.lists(st.floats(), min_size=1, max_size=64))
def test_doubles_are_written_alike(values: list[float]) -> None:
    raw = struct.pack(f"<{len(values)}d", *values)
    assert json_written("d", raw) == edge_written(raw, Datatype.FP64)


def test_powers_and_their_neighbours_are_read_and_written_alike() -> None:
    """Where a float changes its spacing or its spelling, algorithms differ first."""
    powers = [math.ldexp(1.0, exponent) for exponent in range(-1074, 1024)]
    powers += [float(f"1e{exponent}") for exponent in range(-323, 309)]
    near = [
        value
        for power in powers
        for value in (math.nextafter(power, 0.0), power, math.nextafter(power, math.inf))
    ]
    for values, datatype in ((near, Datatype.FP64), ([v for v in near if v <= 3e38], Datatype.FP32)):
        raw = struct.pack(f"<{len(values)}{datatype.code}", *values)
        text = edge_written(raw, datatype)
        assert json_written(datatype.code, raw) == text
        assert agree(text, datatype, len(values)) or not all(map(math.isfinite, values))
        assert agree(
            ",".join(f"{value:.30g}" for value in values if value < 1e20).encode(),
            datatype,
            sum(value < 1e20 for value in values),
        )


@pytest.mark.parametrize("datatype", FLOATS, ids=str)
def test_floats_of_every_day_are_written_alike(datatype: Datatype) -> None:
    """Floats that are doubles for a while have few digits more than a double needs: often two spellings are as near."""
    chance = random.Random(7)
    values = [math.ldexp(chance.getrandbits(24), chance.randrange(-40, 20)) for _ in range(FLOATS_TRIED)]
    raw = struct.pack(f"<{len(values)}{datatype.code}", *values)
    assert json_written(datatype.code, raw) == edge_written(raw, datatype)
