"""The ``[residency]`` section of the configuration: how much memory models may take, and which ones stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPolicy:
    """Bounds of loading and waiting."""

    loads_at_once: int = field(
        default=2, metadata={"min": 1, "help": "models that are loaded at the same time while requests wait"}
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
    hold_factor: float = field(
        default=1.0,
        metadata={
            "min": 0,
            "max": 100,
            "help": "how many times its load time a model stays after it was loaded",
        },
    )
    retry_ns: int = field(
        default=5_000_000,
        metadata={
            "min": 1,
            "unit": "ns",
            "help": "how often a load looks for room when all models are in use",
        },
    )
    backoff_ns: int = field(
        default=1_000_000_000,
        metadata={"min": 1, "unit": "ns", "help": "pause after failed loads of a model; doubled by each"},
    )
    backoff_ns_max: int = field(
        default=60_000_000_000, metadata={"min": 1, "unit": "ns", "help": "longest pause after failed loads"}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyConfig(ResidencyPolicy):
    """What models may take. Names are those of models, whatever their version is."""

    FORMER: ClassVar[Mapping[str, str]] = MappingProxyType({"hollow": "is called evict_weights"})

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
    evict_weights: bool = field(
        default=True,
        metadata={"help": "keep the sessions of models whose weights leave memory, where that is possible"},
    )
    early_bytes: int = field(
        default=32 << 20,
        metadata={
            "min": 0,
            "unit": "bytes",
            "help": "models with at least so much in a file of weights answer while their fast session is still made",
        },
    )
    verify: bool = field(
        default=True, metadata={"help": "hold weights that come back to memory against their digests"}
    )
    pins: tuple[str, ...] = field(default=(), metadata={"help": "models that are always in memory"})
    keep_warm_s: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"unit": "s", "help": "how long models, by name, stay in memory after their last request"},
    )
