"""What is still to be done on a box, from what is wanted and what was observed. Pure; derived anew after every step.

A step that cannot be done now says why as data. What a person decided on the box stands: a model that is held has no
steps but the one that says so. What the box's own rollout decided stands, too: a version that failed here is not wanted
again before what is wished of its model changes. A model is uninstalled only where the fleet brought it and does not
name it any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import msgspec

from appliance.domain.digest import digest_of
from appliance.fleet.documents import DesiredState, Setting, Transfer, WishedModel, WishedTrial, WishedVersion
from appliance.store.catalog import Catalog, CatalogModel, Hold, Trial, TrialMode


class Reason(StrEnum):
    """What a step waits for."""

    LINK = "link"
    WINDOW = "window"
    BUDGET = "budget"
    HOLD = "hold"
    DISK = "disk"
    TRIAL = "trial"
    FAILED = "failed"
    REFUSED = "refused"
    SERVE = "serve"
    NO_WAY = "no-way"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why a step waits, for programs and for people; in how many seconds it goes on by itself, None: nobody knows."""

    reason: Reason
    text: str
    again_s: float | None = None


Waits = Waiting | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Have the bytes of a version come, by ``way``; ``missing_bytes`` of them are not here yet."""

    name: str
    version: WishedVersion
    way: Transfer | None
    missing_bytes: int
    waits: Waits = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Have a version whose bytes came by ``way`` in the store."""

    name: str
    version: WishedVersion
    way: Transfer
    downgrade: bool
    waits: Waits = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Have an installed version served, by ``order`` or as a proposal. ``wish`` is the digest of what is wished of the
    model; ``again``: although it failed here, because something else is wished now."""

    name: str
    version: int
    order: bool
    interface_change: bool
    wish: str
    again: bool = False
    waits: Waits = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrial:
    """Have an installed version prove itself beside the one that serves."""

    name: str
    trial: Trial
    wish: str
    again: bool = False
    waits: Waits = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTrial:
    """Have no version of the model on trial any more."""

    name: str
    waits: Waits = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove:
    """The daemon brings live what is wanted, or will not: nothing is left for the agent but to wait."""

    name: str
    version: int
    waits: Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninstall:
    """Have nothing of the model here any more."""

    name: str
    waits: Waits = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Something else is wished of the model than a person made of it: it is left alone until he lets it go."""

    name: str
    hold: Hold
    waits: Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySettings:
    """Have these settings in force, all of them."""

    settings: Mapping[str, Setting]
    waits: Waits = None
    name: str = ""


Step = Fetch | Install | Want | StartTrial | StopTrial | Prove | Uninstall | Leave | ApplySettings
_PASSIVE: Final = (Prove, Leave)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """How the box is."""

    catalog: Catalog = field(default_factory=Catalog)
    serving: bool = False
    live: Mapping[str, int] = field(default_factory=dict)
    """The version that answers requests, by model."""
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Versions that the box's rollout gave up or led back, by model, and why."""
    asked: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """With what wish a version was last asked for."""
    spooled: Mapping[str, int] = field(default_factory=dict)
    """The bytes that are here, by the stream's digest."""
    stuck: Mapping[tuple[str, int], Waiting] = field(default_factory=dict)
    """What the store would not do, by model and version."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    settings_problems: tuple[str, ...] = ()
    free_bytes: int = 1 << 62
    """What transfers may take of the disk."""
    transfers: Waits = None
    """Why models may not be transferred now."""
    activation: Waits = None
    """Why they may not be made live now."""


def plan(desired: DesiredState | None, observed: Observed) -> tuple[Step, ...]:
    """All that is still to be done, the most urgent first: nothing where the box is as is wished. The first step that
    does not wait is the next one."""
    if desired is None:
        return ()
    steps: list[Step] = list(_settings(desired, observed))
    for wish in desired.models:
        steps += _model(wish, observed)
    named = {wish.name for wish in desired.models}
    for model in observed.catalog.models:
        if model.managed and model.name not in named:
            steps += _unnamed(model, observed)
    steps = [_unless_stuck(step, observed) for step in steps]
    return tuple(sorted(steps, key=lambda step: _TURNS.index(type(step))))


_TURNS: Final = (ApplySettings, StopTrial, Want, StartTrial, Uninstall, Install, Fetch, Prove, Leave)
"""What is quick and is waited for comes first; what gives room comes before what takes it."""


def subject(step: Step) -> tuple[str, int]:
    """The model and the version that it is about, 0 for all of it; "": the box."""
    match step:
        case Fetch() | Install():
            return step.name, step.version.version
        case Want() | Prove():
            return step.name, step.version
        case StartTrial():
            return step.name, step.trial.version
        case _:
            return step.name, 0


def _unless_stuck(step: Step, observed: Observed) -> Step:
    waits = observed.stuck.get(subject(step)) if step.waits is None else None
    return replace(step, waits=waits) if waits else step


def next_step(steps: tuple[Step, ...]) -> Step | None:
    """The one to do now."""
    return next((each for each in steps if each.waits is None), None)


def streams_to_keep(
    desired: DesiredState | None, observed: Observed, *, for_others: bool = False
) -> frozenset[str]:
    """The streams that may be of use: those of versions that are wished and not installed yet; ``for_others``: of all
    that are wished."""
    return frozenset(
        way.stream
        for wish in (desired.models if desired else ())
        for version in wish.versions()
        if for_others or not _installed(version, wish.name, observed)
        for way in version.transfers
    )


def offers(desired: DesiredState | None) -> dict[tuple[str, int], WishedVersion]:
    """The versions that are wished, and how they can be had, by what is the subject of their steps: one that comes
    otherwise than before, as with other signatures, is tried anew."""
    models = desired.models if desired else ()
    return {(wish.name, version.version): version for wish in models for version in wish.versions()}


def converged(steps: tuple[Step, ...]) -> bool:
    """Whether the box is as is wished, as far as the fleet may decide that."""
    return all(isinstance(each, Leave) for each in steps)


def wish_digest(wish: WishedModel) -> str:
    """Of what is wished to be served and tried of a model, however it can be had."""
    wanted, trial = wish.wanted, wish.trial
    said = (
        wish.name, wanted and (wanted.version, wanted.manifest), wish.order, wish.interface_change,
        trial and (trial.version.version, trial.version.manifest, trial.mode, trial.percent, trial.header),
    )  # fmt: skip
    return digest_of(msgspec.msgpack.encode(said))


def _settings(desired: DesiredState, observed: Observed) -> Iterator[Step]:
    if dict(desired.settings) == dict(observed.settings):
        return
    waits = None
    if observed.settings_problems:
        waits = Waiting(reason=Reason.REFUSED, text="; ".join(observed.settings_problems))
    yield ApplySettings(settings=desired.settings, waits=waits)


def _model(wish: WishedModel, observed: Observed) -> list[Step]:
    steps = [
        *_versions(wish, observed),
        *_activation(wish, observed),
    ]
    return _unless_held(wish.name, steps, observed)


def _unnamed(model: CatalogModel, observed: Observed) -> list[Step]:
    waits = None
    if model.pins:
        waits = Waiting(reason=Reason.HOLD, text=f"version {model.pins[0]} is pinned")
    return _unless_held(model.name, [Uninstall(name=model.name, waits=waits)], observed)


def _unless_held(name: str, steps: list[Step], observed: Observed) -> list[Step]:
    hold = observed.catalog.hold(name)
    if hold is None:
        return steps
    if all(isinstance(each, _PASSIVE) for each in steps):
        return []
    text = f"held by hand ({hold.what}{f' of version {hold.version}' if hold.version else ''} by {hold.who or '?'})"
    return [Leave(name=name, hold=hold, waits=Waiting(reason=Reason.HOLD, text=text))]


def _versions(wish: WishedModel, observed: Observed) -> Iterator[Step]:
    """What has to come of the model."""
    for version in wish.versions():
        if not _installed(version, wish.name, observed):
            yield _coming(wish, version, observed)


def _installed(version: WishedVersion, name: str, observed: Observed) -> bool:
    model = observed.catalog.model(name)
    present = model.version(version.version) if model else None
    return present is not None and present.digest == version.manifest


def _coming(wish: WishedModel, version: WishedVersion, observed: Observed) -> Step:
    refused = _refused(wish, version, observed)
    ways = [
        (way.size - min(observed.spooled.get(way.stream, 0), way.size), way)
        for way in _ways(version, observed)
    ]
    if not ways:
        waits = refused or Waiting(
            reason=Reason.NO_WAY, text="it is offered in no way that fits what is installed"
        )
        return Fetch(
            name=wish.name, version=version, way=None, missing_bytes=version.total_bytes, waits=waits
        )
    missing, way = min(ways, key=lambda each: each[0])
    if not missing:
        return Install(name=wish.name, version=version, way=way, downgrade=wish.downgrade, waits=refused)
    waiting = refused or observed.transfers
    if waiting is None and missing > observed.free_bytes:
        text = f"{missing} bytes are to come, and the disk has room for {max(observed.free_bytes, 0)}"
        waiting = Waiting(reason=Reason.DISK, text=text)
    return Fetch(name=wish.name, version=version, way=way, missing_bytes=missing, waits=waiting)


def _ways(version: WishedVersion, observed: Observed) -> Iterator[Transfer]:
    """The transfers that can be applied to what is installed."""
    digests = {each.digest for _, each in observed.catalog.installed()}
    return (way for way in version.transfers if not way.base or way.base in digests)


def _refused(wish: WishedModel, version: WishedVersion, observed: Observed) -> Waits:
    """What the store would say, before anything is fetched in vain."""
    model, floor = observed.catalog.model(wish.name), observed.catalog.floor(wish.name)
    present = model.version(version.version) if model else None
    if present is not None:
        text = f"version {version.version} is installed with other contents; a version never changes"
        return Waiting(reason=Reason.REFUSED, text=text)
    if version.version < floor.newest and not wish.downgrade:
        text = f"it is older than version {floor.newest}, which was wanted here, and no downgrade is wished"
        return Waiting(reason=Reason.REFUSED, text=text)
    return None


def _activation(wish: WishedModel, observed: Observed) -> Iterator[Step]:
    """What has to change of what is served, of versions that are here."""
    model = observed.catalog.model(wish.name)
    if model is None:
        return
    digest = wish_digest(wish)
    if wish.wanted and _installed(wish.wanted, wish.name, observed):
        yield from _wanting(wish, model, wish.wanted.version, digest, observed)
    trial = _trial(wish.trial) if wish.trial else None
    if trial is None or trial.version == (wish.wanted.version if wish.wanted else model.wanted):
        if model.trial is not None:
            yield StopTrial(name=wish.name)
    elif wish.trial and _installed(wish.trial.version, wish.name, observed):
        yield from _trying(wish, model, trial, digest, observed)


def _wanting(
    wish: WishedModel, model: CatalogModel, number: int, digest: str, observed: Observed
) -> Iterator[Step]:
    failed, again = _failure(wish.name, number, digest, observed)
    is_live = observed.live.get(wish.name) == number
    lacks = (wish.interface_change and not model.interface_change) or (
        wish.order and not model.order and not is_live
    )
    want = Want(
        name=wish.name, version=number, order=wish.order, interface_change=wish.interface_change, wish=digest,
        again=again, waits=None if wish.order else observed.activation,
    )  # fmt: skip
    below = observed.catalog.floor(wish.name).minimum
    if model.wanted == number and not (again or lacks):
        if not is_live:
            yield Prove(name=wish.name, version=number, waits=_proving(failed, observed))
    elif number < below:
        text = f"a signed package says that {below} is the lowest version to be served"
        yield replace(want, waits=Waiting(reason=Reason.REFUSED, text=text))
    elif failed is not None and not again:
        yield replace(want, waits=Waiting(reason=Reason.FAILED, text=failed))
    else:
        yield want


def _failure(name: str, number: int, digest: str, observed: Observed) -> tuple[str | None, bool]:
    """Why the version failed here, if it did, and whether something else was wished then: it is tried once more."""
    failed = observed.failed.get(name, {}).get(number)
    return failed, failed is not None and observed.asked.get((name, number)) != digest


def _proving(failed: str | None, observed: Observed) -> Waiting:
    if failed is not None:
        return Waiting(reason=Reason.FAILED, text=failed)
    if not observed.serving:
        return Waiting(reason=Reason.SERVE, text="no daemon serves from this store")
    return Waiting(reason=Reason.TRIAL, text="the daemon loads it and has it prove itself")


def _trying(
    wish: WishedModel, model: CatalogModel, trial: Trial, digest: str, observed: Observed
) -> Iterator[Step]:
    failed, again = _failure(wish.name, trial.version, digest, observed)
    start = StartTrial(name=wish.name, trial=trial, wish=digest, again=again, waits=observed.activation)
    if wish.wanted is not None and model.wanted != wish.wanted.version:
        text = f"version {wish.wanted.version} is to be wanted first"
        yield replace(start, waits=Waiting(reason=Reason.TRIAL, text=text))
    elif failed is not None and not again:
        if model.trial != trial:
            yield replace(start, waits=Waiting(reason=Reason.FAILED, text=failed))
    elif model.trial != trial or again:
        yield start


def _trial(wish: WishedTrial) -> Trial:
    return Trial(
        version=wish.version.version, mode=TrialMode(wish.mode), percent=wish.percent, header=wish.header
    )
