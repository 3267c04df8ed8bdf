"""What a scan asks for, as the engine's catalog. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from appliance.core.rollout.catalog import Catalog, CatalogProblem, CatalogVersion, TrialWish
from appliance.repository.directory import RepositoryScan
from appliance.store.catalog import Trial, TrialMode


def with_fallbacks(found: RepositoryScan, fallbacks: Mapping[str, RepositoryScan]) -> RepositoryScan:
    """``found`` with the fallback versions of its models in their place."""
    if not fallbacks:
        return found
    wanted = [entry for entry in found.servable if entry.model.name not in fallbacks]
    stands = [entry for name in sorted(fallbacks) for entry in fallbacks[name].servable]
    auto = found.auto or any(each.auto for each in fallbacks.values())
    return replace(found, servable=(*wanted, *stands), auto=auto)


def catalog_of(
    found: RepositoryScan,
    trials: Mapping[tuple[str, int], Trial],
    orders: Collection[tuple[str, int]] = (),
    interface_changes: Collection[tuple[str, int]] = (),
) -> Catalog:
    """What a scan asks for; ``trials`` are by name and version, as are ``orders`` and those that
    bring ``interface_changes``."""
    wishes = {key: trial_wish(trial) for key, trial in trials.items()}
    return Catalog(
        versions=tuple(
            CatalogVersion(
                model=entry.model,
                fingerprint=entry.fingerprint,
                trial=wishes.get((entry.model.name, entry.model.version)),
                order=(entry.model.name, entry.model.version) in orders,
                interface_change=(entry.model.name, entry.model.version) in interface_changes,
            )
            for entry in found.servable
        ),
        uninstalled=found.uninstalled,
        problems=tuple(
            CatalogProblem(
                name=broken.name, version=broken.version, reason=broken.reason, device=broken.device.first
            )
            for broken in found.broken
        ),
    )


def trial_wish(trial: Trial) -> TrialWish:
    """What the engine is to do for a trial that the catalog asks for: it lasts as long as the catalog says so."""
    header, _, value = trial.header.partition(":")
    canary = trial.mode is TrialMode.CANARY
    return TrialWish(
        shadow_percent=0.0 if canary else trial.percent,
        canary_percent=trial.percent if canary else 0.0,
        header=header.strip().lower(),
        value=value.strip(),
        hold=True,
    )
