"""Inputs to run versions with."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from appliance.domain.errors import ArtefactError
from appliance.domain.tensor import Datatype, TensorSpec, encode_bytes, split_bytes
from appliance.tools.evaluation.inputs import Tensor, random_inputs, rows_of, with_rows
from tests.domain.sample import EVERYTHING

VERSION = replace(
    EVERYTHING,
    inputs=tuple(
        TensorSpec(name=datatype.wire, datatype=datatype, shape=(3,), optional=datatype is Datatype.FP64)
        for datatype in Datatype
    ),
    max_batch_size=8,
)


def test_random_values_depend_on_the_seed_only() -> None:
    first = random_inputs(VERSION, 2, {}, 1)
    assert first == random_inputs(VERSION, 2, {}, 1)
    assert first != random_inputs(VERSION, 2, {}, 2)
    assert set(first) == {spec.name for spec in VERSION.inputs if not spec.optional}
    for name, tensor in first.items():
        assert tensor.shape == (2, 3)
        size = Datatype[name].size
        assert len(tensor.raw) == (6 * size if size else len(encode_bytes([b"12345678"])) * 6)


def test_random_integers_are_valid_in_any_vocabulary() -> None:
    raw = random_inputs(VERSION, 2, {}, 1)["INT64"].raw
    assert set(struct.unpack("<6q", raw)) <= {0, 1}


def test_a_free_dimension_must_be_said() -> None:
    free = replace(VERSION, inputs=(TensorSpec(name="ids", datatype=Datatype.INT64, shape=(-1,)),))
    with pytest.raises(ArtefactError, match="give --shape ids=N with a number"):
        random_inputs(free, 1, {}, 1)
    assert random_inputs(free, 2, {"ids": (5,)}, 1)["ids"].shape == (2, 5)
    with pytest.raises(ArtefactError, match="does not fit"):
        random_inputs(free, 1, {"ids": (5, 1)}, 1)


def test_all_inputs_with_free_dimensions_are_named_at_once() -> None:
    ids, image, mask = (
        TensorSpec(name="ids", datatype=Datatype.INT64, shape=(-1,)),
        TensorSpec(name="image", datatype=Datatype.FP32, shape=(3, -1, -1)),
        TensorSpec(name="mask", datatype=Datatype.INT64, shape=(-1,), optional=True),
    )
    version = replace(VERSION, inputs=(ids, *VERSION.inputs, image, mask))
    with pytest.raises(ArtefactError, match="give --shape ids=N --shape image=3,N,N with a number"):
        random_inputs(version, 1, {}, 1)
    with pytest.raises(ArtefactError, match="give --shape image=3,N,N with a number"):
        random_inputs(version, 1, {"ids": (4,)}, 1)


def test_rows_are_repeated_or_cut() -> None:
    inputs = {
        "x": Tensor(Datatype.UINT8, (2, 2), b"abcd"),
        "s": Tensor(Datatype.BYTES, (2, 1), encode_bytes([b"one", b"two"])),
    }
    more = with_rows(VERSION, inputs, 3)
    assert more["x"] == Tensor(Datatype.UINT8, (3, 2), b"abcdab")
    assert [bytes(each) for each in split_bytes(memoryview(more["s"].raw))] == [b"one", b"two", b"one"]
    assert with_rows(VERSION, inputs, 1)["x"] == Tensor(Datatype.UINT8, (1, 2), b"ab")
    assert rows_of(VERSION, more) == 3
    whole = replace(VERSION, max_batch_size=0)
    assert with_rows(whole, inputs, 3) is inputs
    assert rows_of(whole, inputs) == 1
