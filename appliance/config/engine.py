"""What requests are promised and what they may take: the sections ``[engine]``, ``[scheduling]`` and
``[residency]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.config.workers import class_problems


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
    lease_limit: int = field(
        default=512,
        metadata={
            "min": 0,
            "max": 1024,
            "help": "requests that the native front end may have in flight to one worker by itself; 0: none",
        },
    )
    lease_slots: tuple[tuple[int, int], ...] = field(
        default=((4 << 10, 1024), (64 << 10, 128), (256 << 10, 96), (1 << 20, 32), (8 << 20, 16)),
        metadata={
            "help": "slots of the arena that the native front end keeps for them, as [bytes, slots], ascending",
            "shape": "a list of pairs [bytes per slot, slots], such as [[4096, 1024], [65536, 64]]",
            "check": class_problems,
        },
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyConfig:
    """What models may take. Names are those of models, whatever their version is."""

    budget_bytes: int = field(
        default=0,
        metadata={
            "min": 0,
            "unit": "bytes",
            "help": "memory for models and workers; 0: what machine or control group have, less reserve_bytes",
        },
    )
    reserve_bytes: int = field(
        default=512 << 20,
        metadata={"min": 0, "unit": "bytes", "help": "memory for everything else, where budget_bytes is 0"},
    )
    waiting_requests_max: int = field(
        default=1_000, metadata={"min": 0, "help": "requests that wait for models to be loaded"}
    )
    pins: tuple[str, ...] = field(default=(), metadata={"help": "models that are always in memory"})
    keep_warm_s: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"unit": "s", "help": "how long models, by name, stay in memory after their last request"},
    )
