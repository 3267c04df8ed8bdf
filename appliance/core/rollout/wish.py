"""What one version has to prove before it serves all."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.core.rollout.policy import RolloutPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWish:
    """What one version has to go through before it serves all. With a ``header`` the canary's share is of clients, by
    the value of that header, and with a ``value`` as well it is the requests that bring just this one. ``hold``: it
    stays on trial until the catalog wants otherwise."""

    shadow_percent: float = 0.0
    canary_percent: float = 0.0
    header: str = ""
    value: str = ""
    hold: bool = False


def configured_trial(config: RolloutPolicy) -> TrialWish:
    """The trial of versions for which the catalog wishes nothing."""
    return TrialWish(
        shadow_percent=config.shadow_percent,
        canary_percent=config.canary_percent,
        header=config.canary_header,
    )
