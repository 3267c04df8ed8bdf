"""The ``[scheduling]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingConfig:
    """Bounds of all queues together and of one model. They count what is queued, not what runs, in requests and in
    bytes of input. ``max_queued_per_model`` holds for a priority level whose queue policy has no bound of its own."""

    max_queued_requests: int = field(
        default=20_000, metadata={"min": 1, "help": "requests queued in the whole appliance"}
    )
    max_queued_bytes: int = field(
        default=1 << 30,
        metadata={"min": 1, "unit": "bytes", "help": "input bytes queued in the whole appliance"},
    )
    max_queued_per_model: int = field(
        default=4_000,
        metadata={"min": 1, "help": "requests queued per model and level that has no bound of its own"},
    )
