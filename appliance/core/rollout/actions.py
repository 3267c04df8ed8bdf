"""What the rollout wants done, in this order. Versions are named by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from appliance.core.rollout.catalog import TrialWish
from appliance.core.rollout.reasons import Remark, Verdict, WaitReason
from appliance.core.rollout.records import Change, Ending, Proof
from appliance.core.rollout.version import Version
from appliance.domain.model import ModelVersion


class Add(NamedTuple):
    """A version is here from now on. ``like``: what was counted of that one is counted on."""

    version: Version
    like: int | None = None


class Route(NamedTuple):
    """A name and number mean this version from now on. ``counted``: what was counted of both is one."""

    version: int
    counted: bool = False


class Unroute(NamedTuple):
    """A name and number mean nothing any more."""

    version: int


class Touch(NamedTuple):
    """Requests may go elsewhere than before."""


class ReserveMemory(NamedTuple):
    """See whether there is memory for a version in the place of ``before``: with ``rest``, whether it is to begin
    without; with ``reserve``, whether it can be loaded, for which memory is kept."""

    version: int
    before: int | None
    rest: bool
    reserve: bool


class Rest(NamedTuple):
    """A version serves out of memory from now on."""

    version: int


class RecordAttempts(NamedTuple):
    """Count one more attempt of each, on the disk. ``again``: see Standing."""

    versions: tuple[int, ...]
    keys: tuple[str, ...]
    again: bool


class Load(NamedTuple):
    """Load these; ``alone``: in processes of their own."""

    versions: tuple[int, ...]
    alone: bool


class Unload(NamedTuple):
    """A version leaves its workers."""

    version: int


class Close(NamedTuple):
    """A version takes no requests any more."""

    version: int


class Forget(NamedTuple):
    """A version has gone."""

    version: int


class Split(NamedTuple):
    """Requests for ``before`` concern a version from now on: a share of them is its own, or, ``mirrored``, it answers
    copies of that share."""

    version: int
    before: int
    wish: TrialWish
    percent: float
    mirrored: bool


class Resplit(NamedTuple):
    """Other requests concern it than before."""

    version: int
    before: int
    wish: TrialWish
    percent: float


class Unsplit(NamedTuple):
    """Requests concern it no more."""

    version: int
    before: int


class FallBack(NamedTuple):
    """What fails on a version goes to another one; None: it fails."""

    version: int
    to: int | None


class ReadFigures(NamedTuple):
    """Answer with FiguresRead at once. ``reference``: the version before stops serving with that."""

    version: int
    before: int | None
    reference: bool = False


class LimitRuns(NamedTuple):
    """A run of a version may take so long before it counts as hanging (0: too little is known)."""

    version: int
    limit_ns: int


class Forgive(NamedTuple):
    """Forget the attempts of a version."""

    key: str


class GiveBack(NamedTuple):
    """The attempt that was counted last showed nothing. ``again``: see Standing."""

    key: str
    again: bool


class Reject(NamedTuple):
    """A version is not to be tried again."""

    key: str
    reason: Verdict


class GiveUp(NamedTuple):
    """A version serves no more, or never will."""

    key: str


class Prove(NamedTuple):
    """Remember what a version proved."""

    key: str
    model: ModelVersion
    proof: Proof


class Seat(NamedTuple):
    """A version serves a model, and is proven."""

    name: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line of history, but for when it is and what ``remark`` says in words. ``counted``: it is the end of an
    attempt."""

    change: Change
    remark: Remark | None = None
    counted: bool = True


class Retried(NamedTuple):
    """A version that was given up is tried again, for nothing else of its model serves."""

    version: str


class ConsiderForm(NamedTuple):
    """A packed form of a version is worth building."""

    version: int


class RefuseForm(NamedTuple):
    """A version failed; the packed form that it ran from is not used again. ``serving`` is the version that runs
    without; None: none does. ``passing``: one may be built anew when the daemon starts anew."""

    version: int
    reason: Verdict
    serving: int | None = None
    passing: bool = False


class ForgetForm(NamedTuple):
    """What has this identity is here no more."""

    identity: str


class Report(NamedTuple):
    """A line for the log. ``reason`` is to be in words."""

    what: str
    fields: Mapping[str, object]
    reason: Remark | WaitReason | None = None


class WakeAt(NamedTuple):
    """Send a Tick at this time at the latest; 0: at once."""

    at_ns: int


Action = (
    Add
    | Route
    | Unroute
    | Touch
    | ReserveMemory
    | Rest
    | RecordAttempts
    | Load
    | Unload
    | Close
    | Forget
    | Split
    | Resplit
    | Unsplit
    | FallBack
    | ReadFigures
    | LimitRuns
    | Forgive
    | GiveBack
    | Reject
    | GiveUp
    | Prove
    | Seat
    | Note
    | Retried
    | ConsiderForm
    | RefuseForm
    | ForgetForm
    | Report
    | WakeAt
)


def note(
    version: Version, ending: Ending, remark: Remark | None = None, *, counted: bool = True, **more: object
) -> Note:
    """A line of the history of ``version``; ``more`` is as for Change."""
    name, number = version.slot
    change = Change(
        at_ms=0,
        name=name,
        version=number,
        identity=version.identity,
        artifact=version.spec.artifact,
        ending=ending,
        **more,  # type: ignore[arg-type]
    )
    return Note(change=change, remark=remark, counted=counted)


def report(
    what: str, version: Version, reason: Remark | WaitReason | None = None, **fields: object
) -> Report:
    """A line for the log, of ``version``."""
    return Report(what, {"model": version.model.key, **fields}, reason)
