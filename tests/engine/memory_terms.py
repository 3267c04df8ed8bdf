"""What residency goes by in tests: one device, and a machine with so much memory left."""

from __future__ import annotations

from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.engine.control.model_cache import HOST, ResidencyTerms

PLENTY = 1 << 62


def terms_of(config: ResidencyPolicy, budget_bytes: int, free_bytes: int = PLENTY) -> ResidencyTerms:
    """A budget for the host's memory."""
    budget = Budget(HOST, budget_bytes, configured=bool(config.budget_bytes))
    return ResidencyTerms(config, (budget,), lambda device: free_bytes)
