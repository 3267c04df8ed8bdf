"""The ``[daemon]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """How the daemon stops."""

    drain_grace_s: float = field(
        default=25.0,
        metadata={"min": 0, "unit": "s", "help": "how long accepted requests may take after SIGTERM"},
    )
    drain_notice_s: float = field(
        default=1.0,
        metadata={"min": 0, "unit": "s", "help": "how long to go on serving after health turned NOT_SERVING"},
    )
