"""The ``[reload]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadConfig:
    """When models are looked at again. With ``watch`` off only SIGHUP does it."""

    watch: bool = field(
        default=True, metadata={"help": "serve new, changed and removed versions without being told"}
    )
    quiet_ms: int = field(
        default=1_000,
        metadata={
            "min": 10,
            "max": 3_600_000,
            "unit": "ms",
            "help": "how long a model's files must have been left alone before they are read: a copy under way "
            "must not pause for longer; renaming complete files into place is always safe",
        },
    )
    poll_s: float = field(
        default=30.0,
        metadata={
            "min": 0.1,
            "max": 86_400,
            "unit": "s",
            "help": "how often to look without having been notified: network file systems send no notices",
        },
    )
