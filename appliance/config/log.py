"""The ``[log]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


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
