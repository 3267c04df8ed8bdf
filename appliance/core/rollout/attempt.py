"""A version's attempt to take over, with all that is known of it, and what it comes to.

Parts of the rollout give their steps one after the other: actions for the one that performs them, and outcomes, each of
which is carried out before the step that follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.core.rollout import actions as do
from appliance.core.rollout.catalog import TrialWish
from appliance.core.rollout.events import Figures, FiguresRead
from appliance.core.rollout.phase import CHOSEN, SERVING, Phase, stage_of
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import (
    AskAgain,
    InterfaceChanged,
    Missed,
    Remark,
    Showed,
    Unheld,
    Untried,
    Verdict,
    WantedAgain,
)
from appliance.core.rollout.records import Ending, record_key
from appliance.core.rollout.trial import Seen, Trial
from appliance.core.rollout.version import Version
from appliance.domain.histogram import HistogramValue
from appliance.domain.interface import interface_changes
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion, interchangeable, unlike

RUNS_MIN: Final = 20
"""So many runs tell what one takes where nothing was measured."""
MS_NS: Final = 1_000_000


def key_of(version: Version) -> str:
    """Under what name a version has its records."""
    return record_key(version.identity, version.spec.artifact)


def held_back(model: ModelVersion, before: ModelVersion) -> InterfaceChanged | None:
    """Why ``model`` is not to take the place of ``before``, unless it is free to: clients of that could not talk to
    it."""
    changes = interface_changes(model, before)
    if not changes:
        return None
    again = AskAgain(key=model.key, packaged=bool(model.digest))
    return InterfaceChanged(changes=changes, version=before.version, again=again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A version that is to serve, with what is wished and known of that when it begins."""

    version: Version
    before: Version | None = None
    """What it would replace."""
    wish: TrialWish | None = None
    """How it is to be tried; None: as is configured."""
    background: bool
    """No request waits for it."""
    order: bool = False
    """An operator ordered it: where it is proven it serves at once, and is compared with nothing."""
    again: bool = False
    """It had been given up, and nothing else of its model serves."""
    fallen: bool = False
    """Its history says last that it was given up or withdrawn, and not yet that it serves again."""
    free: bool = True
    """Clients of ``before`` do not keep it from taking its place."""
    allowed: bool = False
    """Somebody said that its clients change along with it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One try of a ``contender`` to serve. What is kept of that here as well changes meanwhile."""

    contender: Contender
    trial: Trial
    before: Version | None
    """What it would replace."""
    ordered: bool
    """An operator waits for it."""
    known: bool
    """It was proven here before."""
    free: bool
    """Clients of ``before`` do not keep it from taking its place."""
    allowed: bool
    """Somebody said that its clients change along with it."""
    began_ns: int | None = None
    """When its load began."""
    again_ns: int = 0
    """When to ask for memory for it again."""
    kept: bool = False
    """Memory is kept for it."""
    counted: bool = False
    """The attempt is on the disk, and was not given back."""
    due_ns: int = 0
    """When its trial is looked at next."""
    reference: Figures | None = None
    """Figures of ``before`` when it stopped serving."""
    missed: int = 0
    """Requests that it refused as invalid and ``before`` would have taken."""

    @property
    def version(self) -> Version:
        """What is to serve."""
        return self.contender.version

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        return self.version.phase

    @property
    def key(self) -> str:
        """Under what name the version has its records."""
        return key_of(self.version)

    @property
    def live(self) -> bool:
        """Whether it serves."""
        return self.phase in SERVING

    @property
    def occupies(self) -> bool:
        """Whether it takes one of the places for loading in the background."""
        return self.contender.background and self.phase in CHOSEN

    @property
    def stuck(self) -> bool:
        """Whether it waits for memory that there may never be."""
        return self.phase is Phase.QUEUED and self.version.waiting is not None

    @property
    def may_rest(self) -> bool:
        """Whether it can serve without having been loaded: it is proven, and waits for no trial."""
        return self.known and self.before is None and not self.trial.wish.hold

    @property
    def comparable(self) -> bool:
        """Whether requests can go to either version."""
        return self.before is not None and interchangeable(self.version.model, self.before.model)

    @property
    def lacks_engine(self) -> bool:
        """Whether ``before`` runs from an engine, and it does not, which may have one later."""
        before = self.before
        engined = before is not None and before.packed and before.model.has_engine
        return engined and not self.version.packed

    @property
    def untried(self) -> Untried | None:
        """Why the trial that is wished cannot be; None where it can, or none is wished."""
        before = self.before
        if before is None or not self.trial.left_out:
            return None
        what = unlike(self.version.model, before.model)
        return Untried(what=what, version=before.model.version) if what is not None else None

    @property
    def unheld(self) -> Unheld | None:
        """That it has no golden answers to be held to, and the version before has; None where that is not so."""
        before = self.before
        if before is None or not before.is_held or self.version.is_held:
            return None
        return Unheld(version=before.model.version)

    @property
    def crashed(self) -> bool:
        """Whether a worker has ended because of it."""
        return bool(self.trial.crashes)

    @property
    def blameless(self) -> bool:
        """Whether it is not its fault that it does not serve."""
        return isinstance(self.trial.verdict, WantedAgain)

    @property
    def keeps_before(self) -> bool:
        """Whether ``before`` may be gone back to."""
        return self.phase is Phase.WATCHED and self.before is not None

    @property
    def load_wish(self) -> LoadWish:
        """How it is loaded before it serves."""
        # The next version begins with its session, and is compared with this one's, which there may be no more then.
        has_next = self.version.model.has_engine and not self.known
        held_to = bool(self.version.model.golden) or self.before is not None or has_next
        assess = held_to and self.version.assessment is None
        return LoadWish(background=self.contender.background, urgent=self.ordered, assess=assess, tell=True)

    def seen(self, read: FiguresRead) -> Seen:
        """Its figures, and those of the version before."""
        if self.trial.phase is Phase.SHADOW:  # in which all of its batches are of mirrored requests
            return Seen(read.mirrored._replace(batches=read.new.batches), read.old)
        mine = read.new._replace(failed=read.new.failed + self.missed)
        return Seen(mine, self.reference if self.reference is not None else read.old)

    def longest_run_ns(self, seen: Seen, config: RolloutPolicy) -> int:
        """How long a run of it may take before it counts as hanging: many times the longest that was seen, of it or of
        the version before, or that its proof stands for, of as many rows as it may have; 0: too little is known."""
        proof, most_ns = self.version.assessment, 0
        if proof is not None:
            rows = max(proof.rows, 1)
            most_ns = proof.p99_ns * max(self.version.model.max_batch_size, rows) // rows
        runs = tuple(old + new for old, new in zip(seen.old.runs, seen.new.runs, strict=True))
        if not config.hang_factor or (not most_ns and sum(runs) < RUNS_MIN):
            return 0
        most_ns = max(most_ns, HistogramValue(counts=runs, sum_ns=0).quantile_ns(1.0))
        return int(config.hang_factor * most_ns) + config.hang_slack_ms * MS_NS

    def came_out(self, ending: Ending, was: Phase, remark: Remark, now_ns: int) -> do.Note:
        """The line of history for how it came out, as it ``was``."""
        began_ns = now_ns if self.began_ns is None else self.began_ns
        mine, before = self.version.model.version, self.before.model.version if self.before is not None else 0
        return do.note(
            self.version,
            ending,
            remark,
            before=mine if was is Phase.WATCHED else before,
            after=mine if ending is Ending.LIVE else before,
            stage=stage_of(was),
            took_ms=(now_ns - began_ns) // MS_NS,
        )

    @property
    def showed(self) -> Showed:
        """What it went through."""
        trial, proof = self.trial, self.version.assessment
        return Showed(
            untried=self.version.untried,
            unheld=self.unheld,
            compared=trial.compared,
            differing=trial.differing,
            run_ns=proof.p50_ns if proof is not None else None,
        )

    @property
    def verdict(self) -> Verdict:
        """Why it failed."""
        verdict = self.trial.verdict
        assert verdict is not None, "it has not failed"
        if not self.missed or self.before is None:
            return verdict
        return Missed(why=verdict, missed=self.missed, before=self.before.model.version)


# --- what becomes of attempts: outcomes are among the steps of the rollout's parts, and carried out in their place


class TakesOver(NamedTuple):
    """From the next request on it serves."""

    attempt: Attempt


class RollsBack(NamedTuple):
    """It serves no more, and what served before does again."""

    attempt: Attempt
    reason: Verdict


class IsGivenUp(NamedTuple):
    """It never serves (again), which its history says. ``form``: a packed form that it was to run from is to blame,
    too."""

    version: Version
    reason: Verdict
    form: bool


class Leaves(NamedTuple):
    """It serves no more; it goes when its last request has ended, unless it is kept to go back to."""

    version: Version


Outcome = TakesOver | RollsBack | IsGivenUp | Leaves
Step = do.Action | Outcome
Steps = Iterator[Step]
