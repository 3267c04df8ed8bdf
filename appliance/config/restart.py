"""The ``[restart]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConfig:
    """Patience with crashing workers."""

    quarantine_after: int = field(
        default=2, metadata={"min": 1, "help": "crashes of one model version before it is quarantined"}
    )
    restart_delay_ms: int = field(
        default=50,
        metadata={"min": 0, "unit": "ms", "help": "wait before the second restart in a row; doubles"},
    )
