"""What residency goes by: its section of the configuration, and what the machine has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.config.residency import ResidencyConfig
from appliance.engine.requests.costs import Costs


class ResidencyTerms(NamedTuple):
    """What residency goes by: ``budget_bytes`` is for all models and their workers; ``spare_bytes`` tells what the
    machine has left, ``costs`` what models cost before."""

    config: ResidencyConfig = ResidencyConfig()
    budget_bytes: int = 1 << 62
    spare_bytes: Callable[[], int] = lambda: 1 << 62
    costs: Costs | None = None
