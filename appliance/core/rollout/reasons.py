"""What is to be said of versions, as data: what one waits for, why it was given up, what it showed. Words are found
elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from appliance.core.memory.budget import WaitsForMemory
from appliance.domain.assessment import Assessment
from appliance.domain.interface import InterfaceChange
from appliance.domain.model import Unlike


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForServing:
    """It is only to be tried beside a version that serves, and none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForTrialOf:
    """Another version is on trial beside the one that it is to be tried beside."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForWanted:
    """The version that is wanted is tried first."""


WaitReason = WaitsForMemory | WaitsForServing | WaitsForTrialOf | WaitsForWanted


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseBroken:
    """99 of 100 of its runs of ``rows`` rows take longer than its golden set promises."""

    rows: int
    p99_ns: int
    promised_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRefused:
    """The runtime will not have it; ``detail`` is the worker's. ``homeless``: nor is there a device for it, and devices
    are found when the appliance starts alone. ``unsupported``: the installed runtime does not know what its files are
    made of, and runtimes are imported when the appliance starts alone."""

    detail: str
    homeless: bool = False
    unsupported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSlow:
    """A run takes over ``factor`` times as long as one of the version that it would replace."""

    run_ns: int
    before_ns: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlower:
    """Its engine takes ``ratio`` times as long as the session that it has without, and ``factor`` times is allowed.
    Medians of ``pairs`` runs of each in turns, of ``rows`` rows; 0 of both: they were measured apart."""

    rows: int
    pairs: int
    engine_ns: int
    session_ns: int
    ratio: float
    factor: float

    @property
    def may_pass(self) -> bool:
        """Whether it can have been something else that made it slow: it was measured at another time than its
        session."""
        return not self.pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotBeTried:
    """It is only to be tried beside the version that serves. ``unlike``: they have other tensors; else no requests are
    asked for."""

    unlike: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersDiffer:
    """Too many answers to mirrored requests; ``last`` is how the last one did."""

    differing: int
    compared: int
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """It failed ``failed`` of ``total`` requests, the version before the share ``before``; ``percent`` more may be."""

    failed: int
    total: int
    before: float
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Nine of ten of its runs on requests take over ``factor`` times as long as those of the version before. Not
    ``alike``: as that takes, or would, without its engine."""

    run_ns: int
    before_ns: int
    factor: float
    alike: bool = True


COMPARED: Final = (AnswersDiffer, EngineSlower, Slow, TooSlow)
"""What a version is given up for only beside another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """A worker ended because of it. ``repeated``: once too often."""

    detail: str
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCounted:
    """Its attempt cannot be counted on the disk."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedAgain:
    """An operator wants the version before again: nothing failed."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """It refused requests that version ``before`` would have taken, and ``why`` besides."""

    why: Verdict
    missed: int
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAgain:
    """An operator can ask for version ``key`` again; how, depends on whether it came in a package."""

    key: str
    packaged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceChanged:
    """Clients of ``version``, which serves, could not talk to it, and the wish does not say that they change along.
    ``again``: see Rejected."""

    changes: tuple[InterfaceChange, ...]
    version: int
    again: AskAgain


Verdict = (
    PromiseBroken
    | LoadRefused
    | TooSlow
    | EngineSlower
    | CannotBeTried
    | AnswersDiffer
    | Fails
    | Slow
    | Crashed
    | NotCounted
    | WantedAgain
    | Missed
    | InterfaceChanged
)
"""Why a version does not serve, or does no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It was refused, quarantined, or did not pass its trial."""

    why: Verdict

    @property
    def lasting(self) -> bool:
        """Whether another try of the same files comes to the same before the appliance starts anew."""
        return isinstance(self.why, LoadRefused) and (self.why.homeless or self.why.unsupported)

    @property
    def homeless(self) -> bool:
        """Whether no device was found for it."""
        return isinstance(self.why, LoadRefused) and self.why.homeless


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """It served, and the version before does again."""

    why: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """It is not tried again: ``why`` is what its records keep. ``again`` is what asks for it all the same."""

    why: str
    again: AskAgain


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfTries:
    """It was tried so often and did not prove itself. ``again``: see Rejected."""

    tries: int
    again: AskAgain


Setback = Failed | RolledBack | Rejected | OutOfTries | InterfaceChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """It went live without the trial that is configured: its tensors are not those of ``version``."""

    what: Unlike
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unheld:
    """It went live with no golden answers to be held to, which ``version``, the one before, has."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Showed:
    """What it went through until it served; ``run_ns``: how long a run takes, None: not known."""

    untried: Untried | None
    unheld: Unheld | None
    compared: int
    differing: int
    run_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServesAgain:
    """It is proven, and was given up or withdrawn meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLongerWanted:
    """Nobody wants it any more. ``at_start``: nor any version of its model, when the appliance started; ``model``: nor
    any version of its model."""

    model: bool = False
    at_start: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTry:
    """Nothing else of its model serves; ``at_ms`` is by the wall clock."""

    at_ms: int


Remark = Verdict | Setback | Untried | Unheld | Showed | ServesAgain | NoLongerWanted | NextTry
"""What a line of history or of the log says besides."""


class Outlook(StrEnum):
    """What a version that serves is to what is wanted in its place."""

    AS_WANTED = "as wanted"
    BY_HAND = "by hand"
    """What was given by hand serves instead of what is installed."""
    SUCCESSOR_WAITS = "successor waits"
    SUCCESSOR_LOADS = "successor loads"
    SUCCESSOR_ON_TRIAL = "successor on trial"
    SUCCESSOR_FAILED = "successor failed"
    FILES_BROKEN = "files broken"

    @property
    def is_coming(self) -> bool:
        """Whether the files that were asked for last are on their way."""
        return self in (Outlook.SUCCESSOR_WAITS, Outlook.SUCCESSOR_LOADS, Outlook.SUCCESSOR_ON_TRIAL)


def broken_promise(proof: Assessment) -> PromiseBroken | None:
    """Which promise of its golden set a version did not keep; None: it kept them, or none was made."""
    if not proof.is_broken:
        return None
    return PromiseBroken(rows=proof.rows, p99_ns=proof.p99_ns, promised_ns=proof.promised_ns)
