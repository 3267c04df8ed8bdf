"""The trials of all versions, and what they come to.

``trial`` decides over each of them. What is done with names and workers then is the succession's: see ``outcomes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.core.rollout import actions as do
from appliance.core.rollout import reasons
from appliance.core.rollout import trial as on
from appliance.core.rollout.attempt import (
    Attempt,
    Contender,
    IsGivenUp,
    Leaves,
    RollsBack,
    Steps,
    TakesOver,
    held_back,
    key_of,
)
from appliance.core.rollout.catalog import CatalogVersion, TrialWish, configured_trial, identity_of
from appliance.core.rollout.events import FiguresRead
from appliance.core.rollout.phase import ON_TRIAL, SERVING, TRIED, Phase, stage_of
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.records import Ending, Proof, RecordsPort
from appliance.core.rollout.registry import Registry
from appliance.core.rollout.trial import Trial
from appliance.core.rollout.version import Version, run_time_of
from appliance.domain.model import interchangeable

NEVER_NS: Final = 1 << 62


class Trials:
    """``attempts`` are by the version's id; ``splits`` say of a version that serves which one is on trial beside it."""

    def __init__(self, config: RolloutPolicy, records: RecordsPort, registry: Registry) -> None:
        self._config = config
        self._records = records
        self._registry = registry
        self.attempts: dict[int, Attempt] = {}
        self.splits: dict[int, Version] = {}
        self._look_ns = NEVER_NS

    # --- what begins

    def begin(self, contender: Contender, now_ns: int) -> None:
        """Its attempt begins. What is moved away from a device with a fault is compared with nothing, as that is not
        gone back to; nor is what is ordered and proven."""
        version, before, wish = contender.version, contender.before, contender.wish
        proof = self._records.proof(key_of(version), version.model) or Proof(None, proven=False)
        known = proof.proven and not contender.again
        engine = version.is_packed and version.model.has_engine
        # How slow an engine was at a bad time, for which it was dropped, says nothing of the one that was built anew.
        version.assessment = None if engine and not known else proof.assessment
        ordered = contender.order and known
        holds = wish is not None and wish.hold
        alone = ordered or version.spec.moved or (self._registry.is_uninstalled(before) and not holds)
        beside = None if alone else before
        trial = Trial(
            self._config,
            TrialWish() if ordered else wish or configured_trial(self._config),
            before=beside is not None,
            comparable=beside is not None and interchangeable(version.model, beside.model),
            now_ns=now_ns,
            proven=known,
            # A form of weights is there to load faster, and runs the same kernels: it is held to what versions are.
            engine=engine,
        )
        self.attempts[version.id] = Attempt(
            contender=contender,
            trial=trial,
            before=before,
            ordered=ordered,
            known=known,
            free=contender.free,
            allowed=contender.allowed,
        )

    def watch_again(self, version: Version, now_ns: int) -> Steps:
        """It serves again; where it was replaced before it was proven, it goes on being watched."""
        self.begin(Contender(version=version, wish=TrialWish(), background=False), now_ns)
        attempt = self.attempts[version.id]
        phase = Phase.LIVE if attempt.known else attempt.trial.step(on.Assessed(None, 0, 0), now_ns)
        version.enter(phase)
        if attempt.known:
            del self.attempts[version.id]
        elif phase is Phase.LIVE:
            yield from self._proven(attempt)
        else:
            yield from self._read(attempt)

    def renew(self, version: Version, entry: CatalogVersion, now_ns: int) -> Steps:
        """The catalog may wish otherwise of what is on trial already: from the next request on."""
        attempt = self.attempts.get(version.id)
        if attempt is None:
            return
        attempt.allowed |= entry.may_change_interface
        if entry.order and attempt.known:
            if not attempt.live:
                yield from self.step(attempt, on.Ordered(), now_ns)
            return
        wish = entry.trial or configured_trial(self._config)
        if attempt.trial.wish == wish:
            return
        yield from self.step(attempt, on.Wished(wish), now_ns)
        before = attempt.before
        if before is not None and self.splits.get(before.id) is version:
            yield do.Resplit(version.id, before.id, wish, attempt.trial.share_percent)
            yield do.Touch()

    def spare_comparison(self, now_ns: int) -> Steps:
        """What serves was uninstalled meanwhile: nothing is held to it."""
        for attempt in list(self.attempts.values()):
            if self._registry.is_uninstalled(attempt.before) and not (
                attempt.live or attempt.trial.wish.hold
            ):
                yield from self.step(attempt, on.Orphaned(), now_ns)

    def take_place(self, attempt: Attempt, now_ns: int) -> Steps:
        """Begin its trial, or say what it waits for."""
        if self._has_its_place(attempt):
            yield from self.waits(attempt, None)
            yield from self._assess(attempt, now_ns)
            return
        if attempt.phase is Phase.LOADING:
            attempt.version.enter(Phase.PARKED)
        yield from self.waits(attempt, self._waits_for(attempt))

    def waits(self, attempt: Attempt, reason: reasons.WaitReason | None) -> Steps:
        """It waits for ``reason`` from now on; None: for nothing."""
        version, was = attempt.version, attempt.version.waiting
        version.waiting = reason
        if was is None and reason is not None:
            what = "packed form waits" if version.is_packed else "version waits"
            yield do.report(what, version, reason)
        if (was is None) is not (reason is None):
            yield do.Touch()

    def _has_its_place(self, attempt: Attempt) -> bool:
        """Whether its trial can begin: one at a time beside a version, and what is only to be tried beside one."""
        if attempt.before is None and attempt.trial.wish.hold:
            attempt.before = self._registry.current(attempt.version.model.name)
            if attempt.before is None:
                return False
            attempt.trial.replaces(comparable=attempt.comparable)
        before = attempt.before
        if before is None or not attempt.trial.tries:
            return True
        return before.id not in self.splits and not (attempt.trial.wish.hold and self._wanted_comes(before))

    def _wanted_comes(self, before: Version) -> bool:
        """Whether one is to be tried beside ``before`` that is wanted, and so has an end of its own."""
        return any(
            each.before is before
            and not (each.live or each.stuck or each.trial.wish.hold)
            and each.trial.tries
            for each in self.attempts.values()
        )

    def _waits_for(self, attempt: Attempt) -> reasons.WaitReason:
        if attempt.before is None:
            return reasons.WaitsForServing()
        tried = self.splits.get(attempt.before.id)
        return (
            reasons.WaitsForWanted()
            if tried is None
            else reasons.WaitsForTrialOf(version=tried.model.version)
        )

    def _assess(self, attempt: Attempt, now_ns: int) -> Steps:
        version, proof = attempt.version, attempt.version.assessment
        if proof is None:
            yield from self.step(attempt, on.Assessed(None, 0, 0), now_ns)
            return
        broken = reasons.broken_promise(proof)
        if broken is None and not attempt.known:
            yield do.Prove(attempt.key, version.model, Proof(proof, proven=False))
        alike, mine = not attempt.lacks_engine, version.run_times
        before = self._run_times(attempt.before, session=not alike)
        rows = before_rows = _rows_of_both(mine, before, proof.rows)
        if not (alike or rows):
            rows, before_rows = proof.rows, min(before, default=0)
        run_ns, before_ns = mine.get(rows, 0), before.get(before_rows, 0)
        assessed = on.Assessed(broken, run_ns, before_ns, alike, rows, before_rows)
        yield from self.step(attempt, assessed, now_ns)

    def _run_times(self, before: Version | None, *, session: bool) -> dict[int, int]:
        """How long runs of the version before take by their rows; of its ``session``, as it was before it had an
        engine."""
        if before is None or not session:
            return before.run_times if before is not None else {}
        known = self._records.proof(before.identity, before.model)
        return run_time_of(known.assessment if known is not None else None)

    # --- what is seen

    def figures_read(self, attempt: Attempt, read: FiguresRead, now_ns: int) -> Steps:
        """Take in the figures of an attempt."""
        if read.reference:
            attempt.reference = read.old
            return
        seen = attempt.seen(read)
        yield from self.step(attempt, seen, now_ns)
        if attempt.trial.under_way and self.attempts.get(read.version) is attempt:
            yield do.LimitRuns(read.version, attempt.longest_run_ns(attempt.seen(read), self._config))
            yield from self._due(attempt, now_ns)

    def look(self, now_ns: int) -> Steps:
        """Read the figures that are due."""
        if now_ns < self._look_ns:
            return
        self._look_ns = NEVER_NS
        for attempt in self.attempts.values():
            if attempt.trial.under_way and now_ns >= attempt.due_ns:
                yield from self._read(attempt)
            elif attempt.trial.under_way:
                yield from self._due(attempt, now_ns)

    def _read(self, attempt: Attempt, *, reference: bool = False) -> Steps:
        before = attempt.before.id if attempt.before is not None else None
        yield do.ReadFigures(attempt.version.id, before, reference)

    def _due(self, attempt: Attempt, now_ns: int) -> Steps:
        if now_ns >= attempt.due_ns:
            attempt.due_ns = attempt.trial.due_ns(now_ns)
        if attempt.due_ns < self._look_ns:
            self._look_ns = attempt.due_ns
            yield do.WakeAt(attempt.due_ns)

    # --- what follows

    def step(self, attempt: Attempt, event: on.Event, now_ns: int) -> Steps:
        """Let ``event`` happen to it, with what follows."""
        was, phase = attempt.phase, attempt.trial.step(event, now_ns)
        if phase is Phase.FAILED:
            yield from self.fail(attempt, attempt.verdict, now_ns)
            return
        if phase is was or phase is Phase.LOADING:
            return
        yield from self._unsplit(attempt)
        attempt.version.enter(phase)
        if phase in ON_TRIAL:
            yield from self._split(attempt)
            yield do.report("version on trial", attempt.version, stage=stage_of(phase))
        elif was not in SERVING:
            yield from self._go_live(attempt, was, now_ns)
        if phase is Phase.LIVE:
            yield from self._proven(attempt)
        else:
            attempt.due_ns = 0
            yield from self._read(attempt)

    def _split(self, attempt: Attempt) -> Steps:
        version, before, trial = attempt.version, attempt.before, attempt.trial
        assert before is not None, "a trial beside nothing"
        self.splits[before.id] = version
        mirrored = attempt.phase is Phase.SHADOW
        yield do.Split(version.id, before.id, trial.wish, trial.share_percent, mirrored)
        yield do.FallBack(version.id, before.id)
        yield do.Touch()

    def _unsplit(self, attempt: Attempt) -> Steps:
        before, version = attempt.before, attempt.version
        yield do.FallBack(version.id, None)
        if before is not None and self.splits.get(before.id) is version:
            del self.splits[before.id]
            # What waits for its place may have it, unless it takes it anew.
            yield do.Unsplit(version.id, before.id)
            yield do.Touch()
            yield do.WakeAt(0)

    def _go_live(self, attempt: Attempt, was: Phase, now_ns: int) -> Steps:
        version = attempt.version
        version.untried = attempt.untried
        for other in list(self.attempts.values()):
            if other.live and other.version is attempt.before:
                yield from self._succeed(attempt, other)
        before = attempt.before
        yield from self._read(attempt, reference=True)
        if before is not None and attempt.comparable and version.phase is Phase.WATCHED:
            yield do.FallBack(version.id, before.id)
        if before is not None or attempt.contender.fallen or not attempt.known:
            yield attempt.came_out(Ending.LIVE, was, attempt.showed, now_ns)
        yield TakesOver(attempt)
        yield do.WakeAt(0)  # it may be what others are to be tried beside

    def _succeed(self, attempt: Attempt, other: Attempt) -> Steps:
        """``other``, which is replaced, was still watched: what may be gone back to is what was there before it, which
        is proven."""
        yield from self.uncount(other, other.phase)
        if other.keeps_before:
            other.version.enter(Phase.LIVE)
            del self.attempts[other.version.id]
            yield do.FallBack(other.version.id, None)
            attempt.before = other.before
        else:
            yield from self.conclude(other)

    def _proven(self, attempt: Attempt) -> Steps:
        version = attempt.version
        proof = Proof(version.assessment, proven=True)
        identity = identity_of(version.model, version.spec.fingerprint)
        yield do.Prove(attempt.key, version.model, proof)
        yield do.Forgive(attempt.key)
        yield do.Seat(version.model.name, identity)
        yield from self.conclude(attempt)
        yield do.ConsiderForm(version.id)

    def conclude(self, attempt: Attempt) -> Steps:
        """Nothing more is to come of its trial; the version goes on serving."""
        version = attempt.version
        yield do.FallBack(version.id, None)
        yield do.LimitRuns(version.id, 0)
        self.attempts.pop(version.id, None)
        if version.phase is Phase.WATCHED:
            version.enter(Phase.LIVE)
        if attempt.live and attempt.before is not None:
            yield from _spare(attempt.before)

    def fail(self, attempt: Attempt, reason: reasons.Verdict, now_ns: int) -> Steps:
        """It comes to nothing: what was before serves, or goes on serving."""
        version, was = attempt.version, attempt.phase
        self.attempts.pop(version.id, None)
        yield from self._unsplit(attempt)
        if was not in SERVING:
            if was in ON_TRIAL:
                yield do.Reject(attempt.key, reason)
            # One that is proven has not failed by being compared with another, nor one that has a slow engine.
            slow_engine = isinstance(reason, reasons.EngineSlower)
            compared = attempt.known and isinstance(reason, reasons.COMPARED)
            ending = Ending.ABANDONED if compared or slow_engine else Ending.REFUSED
            yield attempt.came_out(ending, was, reason, now_ns)
            yield IsGivenUp(version, reason, form=version.packed or attempt.crashed or slow_engine)
        else:
            if attempt.blameless:
                yield from self.uncount(attempt, was)
            else:
                yield do.Reject(attempt.key, reason)
            ending = Ending.RECALLED if attempt.blameless else Ending.ROLLED_BACK
            yield attempt.came_out(ending, was, reason, now_ns)
            yield RollsBack(attempt, reason)
        yield from self._inherit(version, attempt.before, now_ns)
        yield do.WakeAt(0)

    def given_up(
        self, version: Version, was: Phase, reason: reasons.Verdict, now_ns: int, *, noted: bool
    ) -> Steps:
        """It was refused or quarantined as it ``was``; ``noted``: that is in its history."""
        attempt = self.attempts.pop(version.id, None)
        before = attempt.before if attempt is not None else None
        if before is None or before.identity != version.identity:  # else only its form is given up
            yield do.GiveUp(version.identity)
        if attempt is not None:
            yield from self._unsplit(attempt)
            yield attempt.came_out(Ending.REFUSED, was, reason, now_ns)
            if was in SERVING and before is not None:
                yield from _spare(before)
            yield do.WakeAt(0)
        elif not noted:
            yield do.note(version, Ending.GIVEN_UP, reason)
        yield from self._inherit(version, self._registry.current(version.model.name), now_ns)

    def gone(self, version: Version, was: Phase, now_ns: int) -> Steps:
        """It leaves as it ``was``: it is no longer wanted, or another took its place."""
        attempt = self.attempts.pop(version.id, None)
        if attempt is not None:
            yield from self._unsplit(attempt)
            yield from self.uncount(attempt, was, loading=True)
            if was not in SERVING:
                yield attempt.came_out(Ending.ABANDONED, was, reasons.NoLongerWanted(), now_ns)
            elif attempt.before is not None:
                yield from _spare(attempt.before)
            yield do.WakeAt(0)
        yield from self._inherit(version, self._registry.current(version.model.name), now_ns)

    def stands_by(self, version: Version, now_ns: int) -> Steps:
        """It serves no more, and is kept for the one that took its place: others are beside that now."""
        yield from self._inherit(version, self._registry.current(version.model.name), now_ns)

    def uncount(self, attempt: Attempt, was: Phase, *, loading: bool = False) -> Steps:
        """Nothing that came so far has failed; ``loading``: nor is its load to blame where that has not ended."""
        if attempt.crashed:
            return
        if was in TRIED:
            yield do.Forgive(attempt.key)
        elif attempt.counted and (was is Phase.PARKED or loading):
            attempt.counted = False
            yield do.GiveBack(attempt.key, attempt.contender.again)

    def _inherit(self, version: Version, heir: Version | None, now_ns: int) -> Steps:
        """What was to replace ``version`` replaces ``heir`` now, or nothing."""
        for other in list(self.attempts.values()):
            if other.before is not version or (version.phase is Phase.STANDBY and other.keeps_before):
                continue
            before = heir if heir is not version and heir is not other.version else None
            splits = other.phase in ON_TRIAL
            if splits:
                yield from self._unsplit(other)
            other.before = before
            held = None
            if before is not None and not (other.free or other.live):
                held = held_back(other.version.model, before.model)
            if held is not None:
                yield IsGivenUp(other.version, held, form=False)
            elif before is None:
                yield from self.step(other, on.Orphaned(), now_ns)
            elif splits:
                yield from self._split(other)


def _rows_of_both(mine: Mapping[int, int], before: Mapping[int, int], rows: int) -> int:
    """Of how many rows runs of two versions can be compared: ``rows``, else the fewest of which both are known; 0:
    none."""
    both = mine.keys() & before.keys()
    return rows if rows in both else min(both, default=0)


def _spare(before: Version) -> Steps:
    """It will not be gone back to."""
    if before.phase is Phase.STANDBY:
        yield Leaves(before)
