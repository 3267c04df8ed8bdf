"""What a device should run, from what was wished for it and its group. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.controller.schemas import Wish
from appliance.fleet.documents import DesiredState, Setting, WishedModel, WishedTrial, WishedVersion

VersionOf = Callable[[str, int], WishedVersion]
"""A release by model and version, with the ways to get it. Raises KeyError for one that is not there."""


def desired(
    device: str, wishes: Mapping[str, Wish], settings: Mapping[str, Setting], version_of: VersionOf
) -> DesiredState:
    """The document's contents; its generation is 1, until it is known that it is another one than before."""
    models = []
    for name in sorted(wishes):
        wish = wishes[name]
        trial = wish.trial
        if not (wish.version or trial or wish.prefetch):
            continue
        models.append(
            WishedModel(
                name=name,
                wanted=version_of(name, wish.version) if wish.version else None,
                trial=WishedTrial(
                    version=version_of(name, trial.version),
                    mode=trial.mode,
                    percent=trial.percent,
                    header=trial.header,
                )
                if trial
                else None,
                prefetch=tuple(version_of(name, each) for each in wish.prefetch),
                order=wish.order,
                interface_change=wish.interface_change,
                downgrade=wish.downgrade,
            )
        )
    return DesiredState(
        device=device, generation=1, models=tuple(models), settings=dict(sorted(settings.items()))
    )


def same(one: DesiredState, other: DesiredState) -> bool:
    """Whether both ask for the same."""
    return (one.models, dict(one.settings)) == (other.models, dict(other.settings))
