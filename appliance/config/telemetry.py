"""What is told of requests: the sections ``[log]``, ``[metrics]`` and ``[trace]``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from appliance.domain.address import address_problems


class LogFormat(Enum):
    """How a line looks. AUTO is CONSOLE on a terminal and JSON elsewhere."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class LogLevel(Enum):
    """The least urgent level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The ``[log]`` section."""

    format: LogFormat = field(
        default=LogFormat.AUTO, metadata={"help": "console for people, json for machines, auto by terminal"}
    )
    level: LogLevel = field(default=LogLevel.INFO, metadata={"help": "least urgent level that is written"})
    file: str = field(default="", metadata={"help": "file to append to; empty: standard error"})
    max_file_bytes: int = field(
        default=64 << 20,
        metadata={"min": 4096, "unit": "bytes", "help": "the file moves to NAME.1 at this size"},
    )
    request_lines_per_s: int = field(
        default=200, metadata={"min": 0, "help": "lines about requests in a second at most; 0: no bound"}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The ``[metrics]`` section: what ``/metrics`` says, where it can be had beside ``http.addresses``, and what energy
    costs."""

    addresses: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "where to answer /metrics and the probes of health, and nothing else, without TLS: host:port, "
            "[v6]:port or unix:/path, bounded as [http] says; for monitoring without a certificate for http.addresses",
            "check": address_problems,
        },
    )

    triton_names: bool = field(
        default=False, metadata={"help": "add the nv_inference_* names that Triton dashboards use"}
    )
    stage_histograms: bool = field(
        default=True,
        metadata={"help": "a latency histogram per stage (queue, gather, run, scatter) and version"},
    )
    kwh_price: float = field(
        default=0.0,
        metadata={
            "min": 0,
            "max": 1_000_000,
            "help": "what a kWh costs, in any currency: where joules per inference are known, what a million cost is "
            "told in that; 0: no cost is told",
        },
    )


TRACES: Final = "traces.jsonl"


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
        default=TRACES,
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
