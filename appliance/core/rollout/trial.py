"""What one version has to go through before it is trusted: a pure state machine.

``step(event, now_ns)`` takes what was seen of it and gives the phase that it is in from then on: LOADING, perhaps
SHADOW, perhaps CANARY, WATCHED (it serves, and the one before is kept), and at last LIVE or FAILED. Every way to
FAILED leaves the verdict. Counts decide before time does: a stage lasts until enough was seen, at least
``stage_s`` and at most ``patience_s``; more failures than the whole number wanted may have end it at once. Slow runs do
not, but those of ``stage_s``, or of a watch that is shorter: the first hundred runs may be over in a quarter of a
second, in which others had the processors.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.core.rollout import events as told
from appliance.core.rollout import reasons
from appliance.core.rollout.catalog import TrialWish
from appliance.core.rollout.events import Figures
from appliance.core.rollout.phase import ON_TRIAL, Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.histogram import HistogramValue
from appliance.domain.side_by_side import FACTOR, SideBySide, slowest

SECOND_NS: Final = 1_000_000_000
LOOK_NS: Final = 100_000_000
"""How often figures are looked at while a version is on trial."""
QUANTILE: Final = 0.9


OVER: Final = frozenset({Phase.LIVE, Phase.FAILED})


class Assessed(NamedTuple):
    """It is loaded. ``broken`` is the promise that it did not keep; medians of a run of ``rows`` and of ``before_rows``
    rows in ns, 0 where not known. Not ``alike``: the version before runs from an engine, and this one has none yet, so
    that what requests take is compared with the session of the one before, which is what ``before_p50_ns`` is of."""

    broken: reasons.PromiseBroken | None
    p50_ns: int
    before_p50_ns: int
    alike: bool = True
    rows: int = 1
    before_rows: int = 1

    def before_ns(self, rows: int) -> int:
        """What a run of ``rows`` rows takes at most with the version before: no batch takes longer than its rows in
        runs of ``before_rows``."""
        return int(self.before_p50_ns * max(rows / max(self.before_rows, 1), 1.0))


class RunBeside(NamedTuple):
    """It is an engine of the version before, and was run beside its session where it was built."""

    compared: tuple[SideBySide, ...]


class Seen(NamedTuple):
    """The figures of the version and of the one that it replaces, as of now."""

    new: Figures
    old: Figures


class Recalled(NamedTuple):
    """The version before is to serve again, whatever was seen of this one."""

    verdict: reasons.Verdict


class Wished(NamedTuple):
    """Other requests are to concern it than before."""

    wish: TrialWish


class Orphaned(NamedTuple):
    """The version before is gone: there is nothing to compare with and nothing to go back to."""


class Ordered(NamedTuple):
    """It is to serve at once: what it was proven as is enough."""


Event = told.Compared | told.Crashed | RunBeside | Assessed | Seen | Recalled | Wished | Orphaned | Ordered


class Trial:
    """One version's way. ``comparable``: it takes and gives what the version before does, so that requests can go to
    either; ``before``: there is one; ``proven``: this very version was once proven here; ``engine``: it is the version
    before with an engine, which is to be no slower. Without a version before, being watched only takes its time. Owner:
    the trials."""

    def __init__(
        self,
        config: RolloutPolicy,
        wish: TrialWish,
        *,
        before: bool,
        comparable: bool,
        now_ns: int,
        proven: bool = False,
        engine: bool = False,
    ) -> None:
        self._config = config
        self._engine = engine
        self._ran_beside = False
        self._assessment = Assessed(None, 0, 0)
        self._proven = proven
        self._before = before
        self._comparable = comparable
        self.wish = wish
        self.phase = Phase.LOADING
        self.verdict: reasons.Verdict | None = None
        self.since_ns = now_ns
        self.compared = self.differing = self.crashes = 0
        self._start: Seen | None = None

    def replaces(self, *, comparable: bool) -> None:
        """There is a version before it now, while it loaded there was none."""
        self._before, self._comparable = True, comparable

    @property
    def tries(self) -> bool:
        """Whether real requests are to concern it before it serves."""
        return bool(self._share_in(Phase.SHADOW) or self._share_in(Phase.CANARY))

    @property
    def left_out(self) -> bool:
        """Whether real requests are wished to concern it before it serves, and none can: they cannot go to either."""
        return self._before and not self._comparable and any(map(self._wished_in, ON_TRIAL))

    @property
    def share_percent(self) -> float:
        """The share of requests that concern it in its stage."""
        return self._share_in(self.phase)

    @property
    def header(self) -> str:
        """The header, "" or with its value, that says which requests concern a canary."""
        wish = self.wish if self.phase is Phase.CANARY else TrialWish()
        return f"{wish.header}: {wish.value}" if wish.value else wish.header

    @property
    def under_way(self) -> bool:
        """Whether figures are to be looked at."""
        return self.phase in ON_TRIAL or self.phase is Phase.WATCHED

    def due_ns(self, now_ns: int) -> int:
        """When it is to be looked at next."""
        if self._before:
            return now_ns + LOOK_NS
        return max(self.since_ns + int(self._config.watch_s * SECOND_NS), now_ns + 1)

    def step(self, event: Event, now_ns: int) -> Phase:
        """Take ``event`` and give the stage that follows."""
        if self.phase in OVER:
            return self.phase
        if isinstance(event, told.Crashed):
            self._crashed(event)
        elif isinstance(event, Recalled):
            self._fail(event.verdict)
        elif isinstance(event, Wished):
            self._wished(event, now_ns)
        elif isinstance(event, Orphaned):
            self._orphaned(now_ns)
        elif isinstance(event, Ordered):
            self.wish = TrialWish()
            self._orphaned(now_ns)
        elif isinstance(event, RunBeside):
            self._compare_runs(event)
        elif isinstance(event, Assessed):
            self._assessed(event, now_ns)
        elif isinstance(event, told.Compared):
            self._compare(event)
        else:
            self._look(event, now_ns)
        return self.phase

    @property
    def goes_on_after(self) -> int:
        """How much is to be seen of its stage before the next one begins; 0: that is not what it waits for."""
        return self._config.trial_requests if self.phase in ON_TRIAL and not self.wish.hold else 0

    # --- what is heard

    def _crashed(self, event: told.Crashed) -> None:
        self.crashes += 1
        if self.phase is not Phase.LOADING and self._before and self.crashes >= self._config.crashes:
            self._fail(reasons.Crashed(detail=event.detail))

    def _compare_runs(self, event: RunBeside) -> None:
        self._ran_beside = bool(event.compared)
        worst = slowest(event.compared)
        if self._engine and worst is not None:
            self._fail(reasons.EngineSlower(**worst._asdict(), factor=FACTOR))

    def _assessed(self, event: Assessed, now_ns: int) -> None:
        if self.phase is not Phase.LOADING:
            return
        self._assessment = event
        trouble = event.broken or self._slower(event)
        if trouble is not None:
            self._fail(trouble)
        elif self.wish.hold and self._before and not self.tries:
            self._fail(reasons.CannotBeTried(unlike=not self._comparable))
        else:
            self._enter(Phase.SHADOW, now_ns)

    def _compare(self, event: told.Compared) -> None:
        if self.phase is not Phase.SHADOW:
            return
        self.compared += 1
        if event.difference is not None:
            self.differing += 1
            allowed = self._config.differing_percent / 100 * max(self.compared, self._config.trial_requests)
            if self.differing > allowed:
                self._fail(
                    reasons.AnswersDiffer(
                        differing=self.differing, compared=self.compared, last=event.difference
                    )
                )

    def _look(self, seen: Seen, now_ns: int) -> None:
        if self.phase is Phase.LOADING:
            return
        if self._start is None:
            self._start = seen
        new, old = _since(seen.new, self._start.new), self._reference(seen)
        wanted = self._config.trial_requests
        lasted_ns = now_ns - self.since_ns
        slow = self._latency(new, old, wanted) if lasted_ns >= self._judged_ns else None
        trouble = self._errors(new, old, wanted) or slow
        if trouble is not None and self._before:
            self._fail(trouble)
            return
        if self.phase is Phase.WATCHED:
            if lasted_ns >= self._config.watch_s * SECOND_NS:
                self.phase = Phase.LIVE
            return
        have = self.compared if self.phase is Phase.SHADOW else new.answered
        enough = have >= wanted and lasted_ns >= self._config.stage_s * SECOND_NS
        unwished = not self._share_in(self.phase)  # the catalog has changed its mind meanwhile
        if enough or unwished or lasted_ns >= self._config.patience_s * SECOND_NS:
            following = Phase.CANARY if self.phase is Phase.SHADOW else Phase.WATCHED
            if not self.wish.hold or (following is Phase.CANARY and self._share_in(following)):
                self._enter(following, now_ns)

    def _wished(self, event: Wished, now_ns: int) -> None:
        self.wish = event.wish
        if self.phase in ON_TRIAL and self.tries and not self._share_in(self.phase):
            self._enter(Phase.SHADOW, now_ns)

    def _orphaned(self, now_ns: int) -> None:
        self._before = False
        if self.under_way:
            self._enter(Phase.WATCHED, now_ns)

    # --- what it means

    def _slower(self, event: Assessed) -> reasons.EngineSlower | reasons.TooSlow | None:
        run_ns, before_ns = event.p50_ns, event.before_ns(event.rows) if self._before else 0
        if not before_ns:
            return None
        if self._engine and not (self._ran_beside or self._proven):
            factor = self._config.engine_apart_factor
            if run_ns <= factor * before_ns:
                return None
            ratio = run_ns / before_ns
            return reasons.EngineSlower(
                rows=0, pairs=0, engine_ns=run_ns, session_ns=before_ns, ratio=ratio, factor=factor
            )
        factor = self._config.slower_factor
        if not factor or run_ns <= factor * before_ns + self._slack_ns:
            return None
        return reasons.TooSlow(run_ns=run_ns, before_ns=before_ns, factor=factor)

    def _share_in(self, phase: Phase) -> float:
        return self._wished_in(phase) if self._before and self._comparable else 0.0

    def _wished_in(self, phase: Phase) -> float:
        wish = self.wish
        if phase is Phase.SHADOW:
            return wish.shadow_percent
        if phase is Phase.CANARY and wish.value and not wish.shadow_percent:
            return wish.canary_percent or 100.0  # all that bring the value
        return wish.canary_percent if phase is Phase.CANARY else 0.0

    def _enter(self, phase: Phase, now_ns: int) -> None:
        """Go to ``phase``, or past it where nothing is to be seen there."""
        if phase is Phase.SHADOW and not self._share_in(phase):
            phase = Phase.CANARY
        if phase is Phase.CANARY and not self._share_in(phase):
            phase = Phase.WATCHED
        if phase is Phase.WATCHED and (not self._config.watch_s or (self._proven and not self._before)):
            phase = Phase.LIVE
        self.phase = phase
        self.since_ns = now_ns
        self._start = None

    def _fail(self, verdict: reasons.Verdict) -> None:
        self.phase = Phase.FAILED
        self.verdict = verdict

    def _reference(self, seen: Seen) -> Figures:
        """What the version before did meanwhile, or ever where that is too little to go by."""
        assert self._start is not None
        meanwhile = _since(seen.old, self._start.old)
        return meanwhile if meanwhile.answered >= self._config.trial_requests else seen.old

    def _errors(self, new: Figures, old: Figures, wanted: int) -> reasons.Fails | None:
        before = old.failed / (old.answered + old.failed) if old.failed else 0.0
        total = new.answered + new.failed
        allowed = (before + self._config.error_percent / 100) * max(total, wanted)
        if new.failed <= allowed:
            return None
        return reasons.Fails(
            failed=new.failed, total=total, before=before, percent=self._config.error_percent
        )

    def _latency(self, new: Figures, old: Figures, wanted: int) -> reasons.Slow | None:
        factor, alike = self._config.latency_factor, self._assessment.alike
        session_ns = 0 if alike else self._assessment.before_ns(_quantile_rows(new))
        if not factor or sum(new.runs) < wanted or (not session_ns and sum(old.runs) < wanted):
            return None
        now_ns, before_ns = _quantile_ns(new), _quantile_ns(old)
        if session_ns:
            # What keeps an engine waiting keeps a session waiting, too, and is in no figure of a session by itself.
            before_ns = max(before_ns, session_ns)
        elif not alike:
            before_ns = int(before_ns * self._config.engine_gain)
        if now_ns <= factor * before_ns + self._slack_ns:
            return None
        return reasons.Slow(run_ns=now_ns, before_ns=before_ns, factor=factor, alike=alike)

    @property
    def _judged_ns(self) -> int:
        """How long its stage has to have lasted before its runs are judged by their time."""
        config = self._config
        longest_s = config.watch_s if self.phase is Phase.WATCHED else config.patience_s
        return int(min(config.stage_s, longest_s) * SECOND_NS)

    @property
    def _slack_ns(self) -> int:
        return self._config.latency_slack_us * 1_000


def _since(now: Figures, then: Figures) -> Figures:
    batches = dict(then.batches)
    return Figures(
        now.answered - then.answered,
        now.failed - then.failed,
        tuple([count - before for count, before in zip(now.runs, then.runs, strict=True)]),
        tuple((rows, count - batches.get(rows, 0)) for rows, count in now.batches),
    )


def _quantile_ns(figures: Figures) -> int:
    return HistogramValue(counts=figures.runs, sum_ns=0).quantile_ns(QUANTILE)


def _quantile_rows(figures: Figures) -> int:
    """How many rows the batches have at most in which as many of the rows ran as runs are judged by; 1: not known."""
    batches = sorted((rows, count) for rows, count in figures.batches if count > 0)
    left = QUANTILE * sum(rows * count for rows, count in batches)
    for rows, count in batches:
        left -= rows * count
        if left <= 0:
            return max(rows, 1)
    return 1
