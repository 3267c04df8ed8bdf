"""The ``[residency]`` section of the configuration: how much memory models may take, and which ones stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    waiting_bytes_max: int = field(
        default=256 << 20,
        metadata={
            "min": 0,
            "unit": "bytes",
            "help": "input bytes of requests that wait for models to be loaded",
        },
    )
    pins: tuple[str, ...] = field(default=(), metadata={"help": "models that are always in memory"})
    keep_warm_s: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"unit": "s", "help": "how long models, by name, stay in memory after their last request"},
    )
