"""The ``[supervisor]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """Patience with crashing workers."""

    quarantine_after: int = field(
        default=2, metadata={"min": 1, "help": "crashes of one model version before it is quarantined"}
    )
    crash_window_s: int = field(
        default=600, metadata={"min": 1, "unit": "s", "help": "crashes older than this are forgiven"}
    )
    restart_delay_ms: int = field(
        default=50,
        metadata={"min": 0, "unit": "ms", "help": "wait before the second restart in a row; doubles"},
    )
    restart_delay_max_ms: int = field(
        default=30_000, metadata={"min": 0, "unit": "ms", "help": "longest wait before a restart"}
    )
    stable_after_s: int = field(
        default=10, metadata={"min": 1, "unit": "s", "help": "a worker that lived this long restarts at once"}
    )
