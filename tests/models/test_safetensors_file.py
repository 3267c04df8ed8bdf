"""A safetensors file is read exactly, and a damaged one is an error with a place in it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models.generators.safetensors_file import HEADER_BYTES_MAX, SafetensorsError, read_tensors


def _file(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _entry(datatype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": datatype, "shape": shape, "data_offsets": offsets}


def test_tensors_come_out_as_they_were() -> None:
    floats, integers = np.array([[1.5, -2.0]], np.float32), np.array([1 << 40], np.int64)
    header = {
        "__metadata__": {"format": "pt"},
        "a": _entry(shape=[1, 2]),
        "b": _entry("I64", [1], [8, 16]),
        "empty": _entry(shape=[0, 3], offsets=[8, 8]),
        "scalar": _entry(shape=[], offsets=[4, 8]),
    }
    tensors = read_tensors(_file(header, floats.tobytes() + integers.tobytes()))
    assert set(tensors) == {"a", "b", "empty", "scalar"}
    np.testing.assert_array_equal(tensors["a"], floats)
    np.testing.assert_array_equal(tensors["b"], integers)
    assert tensors["empty"].shape == (0, 3)
    assert tensors["scalar"] == np.float32(-2.0)
    assert not tensors["a"].flags.writeable


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "header of 0 bytes"),
        (b"\x00" * 8, "header of 0 bytes"),
        ((HEADER_BYTES_MAX + 1).to_bytes(8, "little") + b" " * (HEADER_BYTES_MAX + 1), "does not fit"),
        ((100).to_bytes(8, "little") + b"{}", "does not fit"),
        ((2).to_bytes(8, "little") + b"{x", "not JSON"),
        (_file([1]), "not a JSON object"),
        (_file({"a": 3}), "'a'"),
        (_file({"a": _entry("F8")}, b"\x00" * 8), "'a'"),
        (_file({"a": _entry(offsets=[0, 8, 9])}, b"\x00" * 9), "'a'"),
        (_file({"a": _entry()}, b"\x00" * 7), "bytes 0 to 8"),
        (_file({"a": _entry(offsets=[0, 4])}, b"\x00" * 8), "bytes 0 to 4"),
        (_file({"a": _entry(offsets=[-8, 0])}, b"\x00" * 8), "bytes -8 to 0"),
        (_file({"a": _entry(shape=[-1, -2])}, b"\x00" * 8), "shape"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(SafetensorsError, match=says):
        read_tensors(content)
