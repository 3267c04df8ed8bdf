"""Inputs of an ONNX graph that none of its nodes reads, found in the file itself: ONNX Runtime does not tell them from
those that it reads on the processor. Pure, and bounded in time: attributes may have numbers without end, which are a
field each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from appliance.runtimes.relayout import fields

FIELDS_MAX: Final = 500_000
"""That are looked at, half a second's worth: graphs of 40,000 nodes have as many."""

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _OUTPUT, _NAME = range(6)
_INSIDE: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {
        (_MODEL, 7): _GRAPH,
        (_GRAPH, 1): _NODE,
        (_GRAPH, 12): _OUTPUT,
        (_OUTPUT, 1): _NAME,
        (_NODE, 1): _NAME,
        (_NODE, 5): _ATTRIBUTE,
        (_ATTRIBUTE, 6): _GRAPH,
        (_ATTRIBUTE, 11): _GRAPH,
    }
)
"""What a field (message, number) of onnx.proto is, on the way to names of what is read, or given out."""
_Part = tuple[int, Iterator[tuple[int, memoryview, memoryview | None]]]


def unread(model: bytes, names: Sequence[str]) -> tuple[str, ...]:
    """Those of ``names`` that no node reads, subgraphs included, and that are no outputs either; none of a model that
    has too many fields to look for them. Raises LoadFailed for bytes that are no ONNX model."""
    left = {name.encode() for name in names}
    parts: list[_Part] = [(_MODEL, fields(memoryview(model)))]
    seen = 0
    while parts and left:
        kind, part = parts[-1]
        for number, _, value in part:
            seen += 1
            if seen > FIELDS_MAX:
                return ()
            inside = _INSIDE.get((kind, number))
            if inside is None or value is None:
                continue
            if inside == _NAME:
                left.discard(bytes(value))
            else:
                parts.append((inside, fields(value)))
                break
        else:
            parts.pop()
    return tuple(name for name in names if name.encode() in left)
