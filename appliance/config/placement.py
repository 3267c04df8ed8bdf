"""The ``[placement]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """Limits of sharing."""

    max_processes: int = field(
        default=32, metadata={"min": 1, "help": "worker processes before small models start to share one"}
    )
    share_below_bytes: int = field(
        default=4 << 20,
        metadata={"min": 0, "unit": "bytes", "help": "only model files below this size may share"},
    )
