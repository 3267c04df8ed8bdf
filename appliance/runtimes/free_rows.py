"""A graph whose outputs have as many rows as they have, where it says how many.

ONNX Runtime does not write in place what has another shape than the graph says, and a run elsewhere takes a small model
many times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.runtimes.relayout import fields, message_field

_GRAPH: Final = 7
_OUTPUT: Final = 12
_TYPE: Final = 2
_TENSOR: Final = 1
_SHAPE: Final = 2
_DIMENSION: Final = 1
"""Fields of onnx.proto's messages, each in the one before."""


def with_free_rows(model: bytes) -> bytes:
    """A copy of an ONNX model that does not say what the first dimension of its outputs is. Raises LoadFailed for bytes
    that are no such model."""
    change: Callable[[memoryview], bytes] = _first_free
    for number in (_SHAPE, _TENSOR, _TYPE, _OUTPUT, _GRAPH):
        change = partial(_within, number, change)
    return change(memoryview(model))


def _within(number: int, change: Callable[[memoryview], bytes], data: memoryview) -> bytes:
    """The message with ``change`` made of each of its fields ``number``."""
    return b"".join(
        message_field(number, change(value)) if key == number and value is not None else field
        for key, field, value in fields(data)
    )


def _first_free(shape: memoryview) -> bytes:
    dimensions = [field for key, field, _ in fields(shape) if key == _DIMENSION]
    return b"".join([message_field(_DIMENSION, b""), *dimensions[1:]]) if dimensions else bytes(shape)
