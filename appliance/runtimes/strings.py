"""BYTES tensors between their wire form and numpy arrays of text, for runtimes whose strings are UTF-8."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.domain.errors import InvalidRequest
from appliance.domain.tensor import encode_bytes, split_bytes


def decode_strings(name: str, raw: memoryview, shape: tuple[int, ...]) -> NDArray[Any]:
    """Object array of str, of ``shape``, from the wire form ``raw`` of input ``name``.

    Raises InvalidRequest, naming the element, when an element is not UTF-8, and when ``raw`` does not hold that many.
    """
    elements: list[str] = []
    try:
        for element in split_bytes(raw):
            elements.append(str(element, "utf-8"))  # noqa: PERF401 - the count so far names the bad one
    except UnicodeDecodeError as problem:
        raise InvalidRequest(
            f"input '{name}': element {len(elements)} is not valid UTF-8 ({problem.reason} at byte {problem.start}); "
            f"strings of this runtime are UTF-8 text"
        ) from problem
    except InvalidRequest as problem:
        raise InvalidRequest(f"input '{name}': {problem}") from problem
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    try:
        return array.reshape(shape)
    except ValueError as problem:
        raise InvalidRequest(
            f"input '{name}': {len(elements)} strings do not fill shape {list(shape)}"
        ) from problem


def encode_strings(array: NDArray[Any]) -> bytes:
    """Wire form of an array of str in row-major order."""
    return encode_bytes(str(element).encode() for element in array.reshape(-1))
