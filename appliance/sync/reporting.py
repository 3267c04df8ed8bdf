"""How a box stands, as its controller is told: from what is wanted, what was observed and what is still to be done.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from appliance import __version__
from appliance.fleet.documents import DesiredState
from appliance.fleet.messages import Drift, ModelReport, Report
from appliance.store.catalog import CatalogModel
from appliance.sync.plan import (
    Fetch,
    Install,
    Leave,
    Observed,
    Prove,
    Reason,
    StartTrial,
    Step,
    Uninstall,
    Waiting,
    Want,
    converged,
)

MODELS_MAX: Final = 1024
TEXT_MAX: Final = 1024
PROBLEMS_MAX: Final = 64
_PHASES: Final[Mapping[type[Step], str]] = {
    Fetch: "transfer",
    Install: "install",
    Want: "activate",
    StartTrial: "activate",
    Prove: "prove",
    Uninstall: "uninstall",
    Leave: "held",
}


class Standing(NamedTuple):
    """What a report tells beside the box's models: who it is, what it trusts, how fresh that is, what is wrong, and the
    settings in force."""

    device: str
    trusted_generation: int
    freshness: str
    problems: Sequence[str]
    settings: dict[str, str]


def report_of(
    standing: Standing, desired: DesiredState | None, observed: Observed, steps: tuple[Step, ...]
) -> Report:
    """How the box stands, but for what changes all the time."""
    return Report(
        device=standing.device,
        agent=__version__,
        generation=desired.generation if desired else 0,
        trusted_generation=standing.trusted_generation,
        converged=converged(steps) and desired is not None,
        freshness=standing.freshness,
        serving=observed.serving,
        models=model_reports(desired, observed, steps),
        drift=drifts(steps),
        problems=tuple(each[:TEXT_MAX] for each in standing.problems if each)[:PROBLEMS_MAX],
        settings=standing.settings,
    )


def without_figures(report: Report) -> Report:
    """The report as ``report_of`` gives it: without what changes all the time."""
    return structs.replace(report, wall_ms=0, outbox_bytes=0, budget_left_bytes=-1)


def phase_of(step: Step | None) -> str:
    """What is at the model, in one word for programs: "done" where nothing is."""
    if step is None:
        return "done"
    if step.waits is not None and step.waits.reason in (Reason.FAILED, Reason.REFUSED):
        return step.waits.reason.value
    return _PHASES.get(type(step), "activate")


def model_reports(
    desired: DesiredState | None, observed: Observed, steps: tuple[Step, ...]
) -> tuple[ModelReport, ...]:
    """Every model that is here or wished."""
    wished = {wish.name for wish in desired.models} if desired else set()
    names = sorted(wished | {model.name for model in observed.catalog.models})
    return tuple(_model(name, observed, steps) for name in names[:MODELS_MAX])


def _model(name: str, observed: Observed, steps: tuple[Step, ...]) -> ModelReport:
    model = observed.catalog.model(name) or CatalogModel(name=name, versions=())
    own = [step for step in steps if step.name == name]
    first = first_of(own)
    waits = first.waits if first else None
    return ModelReport(
        name=name,
        wanted=model.wanted,
        serving=observed.live.get(name, 0),
        installed=tuple(each.version for each in model.versions),
        phase=phase_of(first),
        code=waits.reason.value if waits else "",
        reason=waits.text[:TEXT_MAX] if waits else "",
        missing_bytes=sum(step.missing_bytes for step in own if isinstance(step, Fetch)),
        managed=model.managed,
    )


def first_of(steps: list[Step]) -> Step | None:
    """The one that tells most of a model: what failed or is refused, else what comes next."""
    bad = (Reason.FAILED, Reason.REFUSED)
    wrong = [step for step in steps if step.waits and step.waits.reason in bad]
    return next(iter([*wrong, *steps]), None)


def drifts(steps: tuple[Step, ...]) -> tuple[Drift, ...]:
    """Where the box differs because a person decided so."""
    return tuple(
        Drift(
            model=step.name,
            what=step.hold.what.value,
            version=step.hold.version,
            who=step.hold.who,
            since_ms=step.hold.since_ms,
        )
        for step in steps
        if isinstance(step, Leave)
    )


def words(step: Step) -> str:
    """What the step is, for people."""
    match step:
        case Fetch():
            what = f"transfer {step.name}/{step.version.version}: {step.missing_bytes} bytes to come"
        case Install():
            what = f"install {step.name}/{step.version.version}"
        case Want():
            what = f"have {step.name}/{step.version} served{' again' if step.again else ''}"
        case StartTrial():
            what = f"have {step.name}/{step.trial.version} on trial ({step.trial.mode})"
        case Prove():
            what = f"see {step.name}/{step.version} live"
        case Uninstall():
            what = f"uninstall {step.name}"
        case Leave():
            what = f"leave {step.name} alone"
        case _:
            what = "end the trial of " + step.name if step.name else "apply settings"
    return what


def waiting_words(waits: Waiting | None) -> str:
    """Why it waits, for people."""
    if waits is None:
        return "next"
    again = "" if waits.again_s is None else f"; again in {_span(waits.again_s)}"
    return f"{waits.text}{again}"


def _span(seconds: float) -> str:
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"
