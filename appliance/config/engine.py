"""The ``[engine]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.config.arena import class_problems


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
        default=((4 << 10, 1024), (64 << 10, 128), (1 << 20, 32)),
        metadata={
            "help": "slots of the arena that the native front end keeps for them, as [bytes, slots], ascending",
            "shape": "a list of pairs [bytes per slot, slots], such as [[4096, 1024], [65536, 64]]",
            "check": class_problems,
        },
    )
