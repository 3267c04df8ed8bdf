"""A line of a trace file as typed values: the request's span, and the stages below it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """One stage; times are nanoseconds from the request's arrival on."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request. ``attributes`` are by their names in the file; ``arrived_ns`` is Unix time."""

    trace_id: str
    arrived_ns: int
    total_ns: int
    error: str
    attributes: Mapping[str, str]
    stages: tuple[StageSpan, ...]

    @property
    def request_id(self) -> str:
        """The client's id, or ""."""
        return self.attributes.get("appliance.request.id", "")


def traced_request(line: str) -> TracedRequest | None:
    """What ``line`` says; None when it is no line of a trace file, for instance one that was cut."""
    try:
        document = json.loads(line)
        root, *stages = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
        arrived_ns = int(root["startTimeUnixNano"])
        return TracedRequest(
            trace_id=root["traceId"],
            arrived_ns=arrived_ns,
            total_ns=int(root["endTimeUnixNano"]) - arrived_ns,
            error=root.get("status", {}).get("message", ""),
            attributes=_attributes(root["attributes"]),
            stages=tuple(
                StageSpan(
                    name=span["name"],
                    start_ns=int(span["startTimeUnixNano"]) - arrived_ns,
                    end_ns=int(span["endTimeUnixNano"]) - arrived_ns,
                )
                for span in stages
            ),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None


def _attributes(pairs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {pair["key"]: str(next(iter(pair["value"].values()))) for pair in pairs}
