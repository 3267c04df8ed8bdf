"""The ``[frontend]`` section of the configuration: which front end listens for gRPC and HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class FrontEndKind(Enum):
    """Implementations. AUTO is NATIVE where that was built, and PYTHON elsewhere."""

    AUTO = "auto"
    NATIVE = "native"
    PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndConfig:
    """The ``[frontend]`` section."""

    kind: FrontEndKind = field(
        default=FrontEndKind.AUTO,
        metadata={
            "help": "who listens for gRPC and HTTP: native ('make native' builds it), python (grpcio and aiohttp), or "
            "auto: native where it was built"
        },
    )
