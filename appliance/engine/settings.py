"""The engine's section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine promises and how patient it is."""

    default_deadline_ms: int = field(
        default=0, metadata={"min": 0, "unit": "ms", "help": "deadline of requests that bring none; 0: none"}
    )
    slow_request_ms: int = field(
        default=100,
        metadata={"min": 0, "unit": "ms", "help": "answers slower than this are logged; 0: never"},
    )
    shapes_per_model: int = field(
        default=64,
        metadata={"min": 1, "help": "distinct request shapes whose run times are remembered per version"},
    )
