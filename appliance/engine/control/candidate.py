"""A version on its way to serving, with all that is known of its try. Owner: the swaps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from appliance.core.rollout.phase import CHOSEN, SERVING, TRIED, Phase, stage_of
from appliance.core.rollout.reasons import WaitReason, WaitsForServing, WaitsForTrialOf, WaitsForWanted
from appliance.core.rollout.trial import Figures, Seen, Trial
from appliance.domain import histogram
from appliance.domain.errors import ApplianceError
from appliance.domain.inference import RequestHead
from appliance.domain.model import interchangeable, unlike
from appliance.domain.validation import plan_request
from appliance.engine.versions.diversion import Diversion
from appliance.engine.versions.routes import Served
from appliance.telemetry import meter
from appliance.telemetry.meter import Result, VersionMeter
from appliance.telemetry.snapshot import TrialStatus

NOTHING = Figures(0, 0, (0,) * (len(histogram.BOUNDS_NS) + 1))


@dataclass(slots=True, kw_only=True, eq=False)
class Candidate:
    """``before`` is what it would replace; ``background``: nobody waits for it; ``known``: it was proven here before.

    ``again``: it had been given up, and nothing else of its model serves; ``fallen``: its history says last that it was
    given up or withdrawn, and not yet that it serves again. ``began_ns`` is when its load began; ``again_ns``: when to
    ask for memory for it again; ``kept``: that is kept for it; ``problem``: why it is not even started. ``counted``:
    its try is, and was not given back. ``blameless``: that it does not serve is not its fault. ``reference`` are the
    figures of ``before`` when it stopped serving; ``unseen`` counts shadow requests, ``missed`` those it refused as
    invalid that ``before`` would have taken.
    """

    served: Served
    before: Served | None
    trial: Trial
    background: bool
    known: bool = False
    again: bool = False
    fallen: bool = False
    began_ns: int | None = None
    again_ns: int = 0
    kept: bool = False
    problem: str = ""
    counted: bool = False
    due_ns: int = 0
    crashed: bool = False
    blameless: bool = False
    reference: Figures | None = None
    missed: int = 0
    unseen: VersionMeter = field(init=False)

    def __post_init__(self) -> None:
        self.unseen = VersionMeter(self.served.model.name, self.served.model.version)

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        return self.served.phase

    @property
    def live(self) -> bool:
        """Whether it serves."""
        return self.phase in SERVING

    @property
    def occupies(self) -> bool:
        """Whether it takes one of the places for loading in the background."""
        return self.background and self.phase in CHOSEN

    @property
    def stuck(self) -> bool:
        """Whether it waits for memory that there may never be."""
        return self.phase is Phase.QUEUED and self.served.waiting is not None

    @property
    def waits_for(self) -> WaitReason:
        """What keeps its trial from beginning."""
        if self.before is None:
            return WaitsForServing()
        diversion = self.before.diversion
        if diversion is None:
            return WaitsForWanted()
        return WaitsForTrialOf(version=diversion.served.model.version)

    @property
    def may_rest(self) -> bool:
        """Whether it can serve without having been loaded: it is proven, and waits for no trial."""
        return self.known and self.before is None and not self.trial.wish.hold

    @property
    def comparable(self) -> bool:
        """Whether requests can go to either version."""
        return self.before is not None and interchangeable(self.served.model, self.before.model)

    @property
    def untried(self) -> str:
        """Why the trial that is wished cannot be; "" where it can, or none is wished."""
        before = self.before
        what = unlike(self.served.model, before.model) if before is not None and self.trial.left_out else ""
        return (
            f"its {what} not those of version {before.model.version}" if before is not None and what else ""
        )

    @property
    def keeps_before(self) -> bool:
        """Whether ``before`` may be gone back to."""
        return self.phase is Phase.WATCHED and self.before is not None

    def diversion(self) -> Diversion:
        """What leads requests to it in its present stage."""
        trial = self.trial
        return Diversion(
            self.served,
            trial.wish,
            trial.share_percent,
            shadow=trial.phase is Phase.MIRRORED,
            unseen=self.unseen,
        )

    def seen(self) -> Seen:
        """Its figures, and those of the version before."""
        if self.trial.phase is Phase.MIRRORED:
            return Seen(figures_of(self.unseen, 0), self.figures_before())
        mine = figures_of(self.served.meter, self.served.fallen_back + self.missed)
        return Seen(mine, self.reference if self.reference is not None else self.figures_before())

    def refused(self, head: RequestHead) -> None:
        """A request that named no version is not one for it. Where a trial would have shown that before, the version
        before would have taken it, and it is the first time that this one serves, that is an error of its own."""
        before = self.before
        if before is None or self.known or not (self.keeps_before and self.served.untried):
            return
        with suppress(ApplianceError):
            plan_request(before.model, head)
            self.missed += 1

    def figures_before(self) -> Figures:
        """What the version before did so far."""
        before = self.before
        return figures_of(before.meter, before.fallen_back) if before is not None else NOTHING

    def status(self) -> TrialStatus:
        """For people."""
        figures = self.seen().new if self.phase in TRIED else NOTHING
        return TrialStatus(
            stage=stage_of(self.phase),
            before=self.before.model.version if self.before is not None else 0,
            percent=self.trial.share_percent,
            header=self.trial.header,
            answered=figures.answered,
            failed=figures.failed,
            compared=self.trial.compared,
            differing=self.trial.differing,
        )

    def trial_in_words(self) -> str:
        """What it went through."""
        said = [f"without the configured trial: {self.served.untried}"] if self.served.untried else []
        if self.trial.compared:
            said.append(f"{self.trial.compared} answers compared, {self.trial.differing} of them different")
        if self.served.assessment is not None:
            said.append(f"a run takes {self.served.assessment.p50_ns / 1_000:,.0f} us")
        return ", ".join(said)

    @property
    def reason(self) -> str:
        """Why it failed."""
        if not self.missed or self.before is None:
            return self.trial.reason
        of = f"requests that version {self.before.model.version} would have taken"
        return f"{self.trial.reason}; it refused {self.missed} {of}"


def figures_of(of: VersionMeter, fallen_back: int) -> Figures:
    """What a meter has counted."""
    frozen = of.frozen()
    return Figures(
        frozen.results[Result.SUCCESS],
        frozen.results[Result.FAILED] + fallen_back,
        frozen.stages[meter.Stage.RUN].counts,
    )


def run_ns(served: Served, rows: int) -> int:
    """How long a run of ``rows`` rows takes, as was measured when it was loaded; 0: not known."""
    proof = served.assessment
    if proof is not None and proof.rows == rows:
        return proof.p50_ns
    return next((ns for seeded, ns in served.seeds if seeded == rows), 0)
