"""The residency's section of the configuration: how much memory models may take, and which ones stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.core.scheduling.settings import ResidencyPolicy
from appliance.engine.requests.costs import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyConfig(ResidencyPolicy):
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


class ResidencyTerms(NamedTuple):
    """What residency goes by: ``budget_bytes`` is for all models and their workers; ``spare_bytes`` tells what the
    machine has left, ``costs`` what models cost before."""

    config: ResidencyConfig = ResidencyConfig()
    budget_bytes: int = 1 << 62
    spare_bytes: Callable[[], int] = lambda: 1 << 62
    costs: Costs | None = None
