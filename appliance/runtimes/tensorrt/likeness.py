"""What two ONNX models have in common that differ in the values of their weights alone, so that an engine of one can
take those of the other. Pure.

Weights are what TensorRT can exchange: the graph's own tensors of floating point, of more than one element. All else is
part of what is in common: nodes and their attributes, names, shapes, tensors of whole numbers, which may be shapes, and
single numbers, which a builder may have computed with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from appliance.domain.digest import digest_of
from appliance.runtimes.relayout import fields, varint

_IR_VERSION, _GRAPH, _OPSETS, _FUNCTIONS = 1, 7, 8, 25
_INITIALIZER, _GRAPH_TEXT = 5, 10
_DIMS, _TYPE = 1, 2
_VALUES: Final = frozenset({4, 5, 9, 10, 13, 14})
"""Of a tensor: its values, in whichever form, and where else they lie."""
_FLOATS: Final = frozenset({1, 10, 16})
"""FLOAT, FLOAT16, BFLOAT16."""


def likeness(model: bytes, *more: str) -> str:
    """A digest that is equal for models which differ in weights alone, and whose engines are built the same way, which
    ``more`` tells. Raises LoadFailed for bytes that are no ONNX model."""
    parts = [repr(more).encode()]
    for number, field, value in fields(memoryview(model)):
        if number == _GRAPH and value is not None:
            parts += _of_graph(value)
        elif number in (_IR_VERSION, _OPSETS, _FUNCTIONS):
            parts.append(bytes(field))
    return digest_of(b"".join(len(part).to_bytes(8, "little") + part for part in parts))


def _of_graph(graph: memoryview) -> Iterator[bytes]:
    for number, field, value in fields(graph):
        if number == _INITIALIZER and value is not None:
            yield b"tensor"
            yield _of_tensor(value)
        elif number != _GRAPH_TEXT:
            yield bytes(field)


def _of_tensor(tensor: memoryview) -> bytes:
    found = list(fields(tensor))
    if not _is_large(tensor) or not any(
        number == _TYPE and varint(field, 1)[0] in _FLOATS for number, field, _ in found
    ):
        return bytes(tensor)
    return b"".join(bytes(field) for number, field, _ in found if number not in _VALUES)


def _is_large(tensor: memoryview) -> bool:
    """Whether it has two elements or more. The product of what dimensions a file can say would take hours."""
    count = 1
    for number, field, value in fields(tensor):
        if number != _DIMS:
            continue
        position = 0
        sizes = field[1:] if value is None else value  # one by one, or all at once
        while position < len(sizes):
            size, position = varint(sizes, position)
            count = min(count * size, 2)
    return count > 1
