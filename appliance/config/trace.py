"""The ``[trace]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FILE: Final = "traces.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """The ``[trace]`` section."""

    one_in: int = field(
        default=0,
        metadata={
            "min": 0,
            "help": "trace one request in so many, and those whose client says so by a W3C traceparent; 0: none",
        },
    )
    file: str = field(
        default=FILE,
        metadata={
            "help": "file to append traces to, a line of OTLP JSON for each; 'appliance trace' reads it"
        },
    )
    max_file_bytes: int = field(
        default=64 << 20,
        metadata={"min": 4096, "unit": "bytes", "help": "the file moves to NAME.1 at this size"},
    )
    traces_per_s: int = field(
        default=100, metadata={"min": 1, "help": "traces written in a second at most; more are left out"}
    )
