"""One request as a line of OpenTelemetry's file format: OTLP/JSON, one TracesData object with one ResourceSpans. Pure.

Field names, the writing of ids (hexadecimal) and of 64-bit numbers (as text), and the kinds of spans are those of the
OTLP specification; ``traceparent`` is that of W3C Trace Context.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

SERVER: Final = 2
INTERNAL: Final = 1
ERROR: Final = 2
TRACE_BITS: Final = 128
SPAN_BITS: Final = 64

STAGES: Final = ("admission", "queue", "hand-over", "gather", "run", "scatter", "reply")
"""What lies between two stamps of a request, in order."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class Parent(NamedTuple):
    """The trace that a client's request belongs to, and the client's span in it."""

    trace_id: str
    span_id: str
    sampled: bool


def parent_of(traceparent: str) -> Parent | None:
    """What a ``traceparent`` says; None when it is none, or not one that the specification allows."""
    found = _PARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & 1))


class Told(NamedTuple):
    """A request for its line, of the trace ``trace_id``, which is its ``parent``'s where there is one. ``stamps_ns``
    stand between the STAGES, one more than these, in Unix time; 0: it never got so far. ``error`` is empty when it was
    answered."""

    name: str
    trace_id: str
    parent: Parent | None
    stamps_ns: Sequence[int]
    attributes: Mapping[str, str | int]
    error: str


def trace_id_of(parent: Parent | None, random_bits: Callable[[int], int]) -> str:
    """The trace that a request belongs to: its client's, or one of its own."""
    return parent.trace_id if parent is not None else _identifier(TRACE_BITS, random_bits)


def trace_line(told: Told, resource: Mapping[str, str | int], random_bits: Callable[[int], int]) -> bytes:
    """The line, its newline included: one span for the request and one below it for each stage that it went through."""
    trace_id = told.trace_id
    root = _identifier(SPAN_BITS, random_bits)
    span: dict[str, object] = {"traceId": trace_id, "spanId": root}
    if told.parent:
        span["parentSpanId"] = told.parent.span_id
    span |= {
        "name": told.name,
        "kind": SERVER,
        "startTimeUnixNano": str(told.stamps_ns[0]),
        "endTimeUnixNano": str(max(told.stamps_ns)),
        "attributes": _attributes(told.attributes),
    }
    if told.error:
        span["status"] = {"code": ERROR, "message": told.error}
    spans = [span]
    for name, start_ns, end_ns in stages(told.stamps_ns):
        spans.append(
            {
                "traceId": trace_id,
                "spanId": _identifier(SPAN_BITS, random_bits),
                "parentSpanId": root,
                "name": name,
                "kind": INTERNAL,
                "startTimeUnixNano": str(start_ns),
                "endTimeUnixNano": str(end_ns),
            }
        )
    scope = {"scope": {"name": "appliance"}, "spans": spans}
    document = {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def stages(stamps_ns: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """The stages as (name, begin, end). Where stamps are missing the stage before them lasts until the next one."""
    known = [(stamp, stage) for stamp, stage in zip(stamps_ns, (*STAGES, ""), strict=True) if stamp]
    for (start_ns, name), (end_ns, _) in pairwise(known):
        yield name, start_ns, max(start_ns, end_ns)


def _identifier(bits: int, random_bits: Callable[[int], int]) -> str:
    return f"{random_bits(bits) or 1:0{bits // 4}x}"


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, object]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: str | int) -> dict[str, str]:
    return {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}
