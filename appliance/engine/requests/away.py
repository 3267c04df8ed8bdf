"""Why a request for a model that is not in memory does not wait for it, in words. Pure."""

from __future__ import annotations

from appliance.core.memory.residency_port import Coldness, Refuse
from appliance.domain.errors import CapacityError, ModelAway, QueueFull
from appliance.engine.versions.wording import megabytes


def refusal(name: str, action: Refuse, size_bytes: int, budget: str) -> CapacityError:
    """``size_bytes`` is what the model takes, ``budget`` says what there is."""
    reason, after_ns = action.reason, action.retry_after_ns
    if reason is Coldness.FULL:
        return QueueFull(
            "Exceeds maximum queue size: too many requests wait for models that are loaded", after_ns
        )
    away = f"model '{name}' is not in memory"
    if reason is Coldness.DEADLINE:
        return ModelAway(f"{away} and cannot be loaded before the request's deadline", after_ns)
    if reason is Coldness.NO_ROOM:
        return ModelAway(f"{away}, and there is no room that could be made for it now", after_ns)
    if reason is Coldness.NEVER:
        return ModelAway(f"{away} and cannot be: it takes {megabytes(size_bytes)}, and {budget}", after_ns)
    return ModelAway(f"{away}, and its last loads failed", after_ns)
