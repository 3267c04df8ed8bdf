"""How far answers are from the right ones: the rules, and that both ways of comparing agree."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.golden import EXACT, Tolerance
from appliance.domain.output_difference import Difference, Values, difference
from appliance.domain.tensor import Datatype, encode_bytes
from appliance.runtimes.arrays import PLAIN_VALUES_MAX, numpy_difference

NAN, INF = math.nan, math.inf
LOOSE = Tolerance(absolute=0.5, relative=0.1)
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.25, -1.0, 10.0, 11.5, 12.0, 1e30, INF, -INF, NAN, 1e-30])


def fp32(values: Sequence[float]) -> Values:
    return Values(datatype=Datatype.FP32, shape=(len(values),), raw=struct.pack(f"<{len(values)}f", *values))


@pytest.mark.parametrize(
    ("found", "right", "held"),
    [
        (1.5, 1.0, True),
        (1.61, 1.0, False),
        (0.4, 1.0, True),
        (0.39, 1.0, False),
        (11.5, 10.0, True),
        (11.6, 10.0, False),
        (0.0, -0.0, True),
        (NAN, NAN, True),
        (NAN, 0.0, False),
        (0.0, NAN, False),
        (INF, INF, True),
        (-INF, INF, False),
        (3e38, INF, False),
        (INF, 3e38, False),
    ],
)
def test_what_is_near_enough(found: float, right: float, held: bool) -> None:
    told = difference(fp32([0.0, found]), fp32([0.0, right]), LOOSE)
    assert (told.held, told.outside, told.worst) == (held, int(not held), -1 if held else 1)


def test_the_worst_value_is_named() -> None:
    told = difference(fp32([1.0, 3.0, 9.0]), fp32([1.0, 1.0, 1.0]), LOOSE)
    assert told == Difference(
        values=3,
        outside=2,
        absolute=8.0,
        relative=8.0,
        worst=2,
        reason="has 2 of 3 values outside its tolerance; the worst is value 2: 9 instead of 1",
    )


def test_how_far_off_is_told_within_the_tolerance_too() -> None:
    told = difference(fp32([2.25, 0.25]), fp32([2.0, 0.0]), LOOSE)
    assert (told.absolute, told.relative, told.held) == (0.25, 0.125, True)


@pytest.mark.parametrize(
    ("datatype", "found", "right"),
    [
        (Datatype.INT64, struct.pack("<2q", 1, 2), struct.pack("<2q", 1, 3)),
        (Datatype.UINT8, b"\1\2", b"\1\3"),
        (Datatype.BOOL, b"\1\0", b"\1\1"),
        (Datatype.BYTES, encode_bytes([b"a", b"b"]), encode_bytes([b"a", b"c"])),
        (Datatype.BYTES, encode_bytes([b"a"]), encode_bytes([b"a", b"c"])),
    ],
)
def test_all_but_floating_point_is_exact(datatype: Datatype, found: bytes, right: bytes) -> None:
    wide = Tolerance(absolute=10.0, relative=10.0)
    one, other = (Values(datatype=datatype, shape=(2,), raw=raw) for raw in (found, right))
    told = difference(one, other, wide)
    assert (told.held, told.outside, told.worst) == (False, 1, 1)
    assert difference(other, other, EXACT) == Difference(values=2)


def test_another_shape_or_type_is_wrong_as_a_whole() -> None:
    right = fp32([1.0, 2.0])
    for found in (
        Values(datatype=Datatype.FP32, shape=(2, 1), raw=right.raw),
        Values(datatype=Datatype.INT32, shape=(2,), raw=right.raw),
        Values(datatype=Datatype.FP32, shape=(2,), raw=b""),
    ):
        told = difference(found, right, LOOSE)
        assert (told.outside, told.absolute, told.held) == (2, INF, False)
        assert "instead of" in told.reason
        assert numpy_difference(found, right, LOOSE) == told


def test_halves() -> None:
    for datatype, one, near in ((Datatype.FP16, 0x3C00, 0x3C01), (Datatype.BF16, 0x3F80, 0x3F81)):
        right, found = (
            Values(datatype=datatype, shape=(1,), raw=struct.pack("<H", bits)) for bits in (one, near)
        )
        told = difference(found, right, EXACT)
        assert told.absolute == (2**-10 if datatype is Datatype.FP16 else 2**-7)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=2 * PLAIN_VALUES_MAX), st.booleans())
def test_both_ways_agree_on_floating_point(pairs: list[tuple[float, float]], padded: bool) -> None:
    if padded:  # else the one calls the other
        pairs = pairs + [(5.0, 5.0)] * PLAIN_VALUES_MAX
    found, right = (fp32([pair[side] for pair in pairs]) for side in (0, 1))
    for tolerance in (EXACT, LOOSE):
        assert numpy_difference(found, right, tolerance) == difference(found, right, tolerance)


@pytest.mark.parametrize("datatype", [each for each in Datatype if each.size], ids=lambda each: each.wire)
def test_both_ways_agree_on_every_datatype(datatype: Datatype) -> None:
    count = 3 * PLAIN_VALUES_MAX
    right = bytes(index % 2 for index in range(count * datatype.size))
    found = bytearray(right)
    found[100 * datatype.size] ^= 1
    one, other = (Values(datatype=datatype, shape=(count,), raw=bytes(raw)) for raw in (found, right))
    told = numpy_difference(one, other, EXACT)
    assert (told.outside, told.worst) == (1, 100)
    assert told == difference(one, other, EXACT)
    assert numpy_difference(other, other, EXACT) == difference(other, other, EXACT)


def test_an_empty_output_is_near_enough() -> None:
    assert difference(fp32([]), fp32([]), EXACT).held
    assert numpy_difference(fp32([]), fp32([]), EXACT).held
