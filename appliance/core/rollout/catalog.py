"""What is wanted on this box, as the rollout is told, and what one version has to prove before it serves all."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.device import CPU, DeviceName
from appliance.domain.interface import allows_change
from appliance.domain.model import ModelVersion


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogVersion:
    """A version that is wanted. ``fingerprint`` changes when its files do, also where they are the same as before: a
    package that was repaired. ``trial`` is what it has to go through before it serves; None: what the configuration
    says. ``by_hand``: an operator gave it, whatever is installed. ``order``: where it
    is proven here it is to serve at once, and is compared with nothing; else it is proposed. ``interface_change``: its
    clients change along with it."""

    model: ModelVersion
    fingerprint: str
    trial: TrialWish | None = None
    by_hand: bool = False
    order: bool = False
    interface_change: bool = False

    @property
    def identity(self) -> str:
        """See ``identity_of``."""
        return identity_of(self.model, self.fingerprint)

    @property
    def may_change_interface(self) -> bool:
        """Whether somebody said that its clients change along with it."""
        return self.by_hand or self.interface_change or allows_change(self.model)


def is_on_trial(entry: CatalogVersion) -> bool:
    """Whether it is wanted only beside another version, for as long as the catalog says so."""
    return entry.trial is not None and entry.trial.hold


def identity_of(model: ModelVersion, fingerprint: str) -> str:
    """What a version is, for records that outlive the process: a package's digest, or the state of its files."""
    return f"{model.key}@{model.digest or fingerprint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogProblem:
    """A version (or, with ``version`` "", a whole model) that cannot be served, and why; ``device`` is the one that it
    would be tried on first."""

    name: str
    version: str
    reason: str
    device: DeviceName = CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Everything that is wanted on this box at one moment. ``aside`` is there as well and not wanted, which is only
    told: requests know nothing of it. ``uninstalled`` are the digests of packages that may still serve, and are not to
    any more."""

    versions: tuple[CatalogVersion, ...]
    problems: tuple[CatalogProblem, ...] = ()
    aside: tuple[CatalogProblem, ...] = ()
    uninstalled: frozenset[str] = frozenset()
