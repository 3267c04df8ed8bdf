"""The trials of versions, and what they come to: the rollout's first storey.

``trial`` decides over each of them. What is done with names and workers then is the storey's above.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from appliance.core.rollout import actions as do
from appliance.core.rollout import trial as on
from appliance.core.rollout.attempt import Attempt, key_of
from appliance.core.rollout.catalog import identity_of
from appliance.core.rollout.events import FiguresRead
from appliance.core.rollout.ledger import Change, Ending, Ledger, Proof
from appliance.core.rollout.phase import ON_TRIAL, SERVING, TRIED, Phase, stage_of
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import WaitReason, WaitsForServing, WaitsForTrialOf, WaitsForWanted
from appliance.core.rollout.registry import Registry
from appliance.core.rollout.trial import Trial
from appliance.core.rollout.version import Version
from appliance.core.rollout.wish import TrialWish, configured_trial
from appliance.domain.model import interchangeable

NEVER_NS: Final = 1 << 62


class Trials(ABC):
    """``attempts`` are by the version's id; ``splits`` say of a version that serves which one is on trial beside it.
    ``actions`` collects what is to be done."""

    def __init__(self, config: RolloutPolicy, ledger: Ledger) -> None:
        self.config = config
        self.ledger = ledger
        self.registry = Registry()
        self.attempts: dict[int, Attempt] = {}
        self.splits: dict[int, Version] = {}
        self.actions: list[do.Action] = []
        self._look_ns = NEVER_NS

    def _do(self, *actions: do.Action) -> None:
        self.actions += actions

    def _report(self, what: str, version: Version, **fields: object) -> None:
        self._do(do.Report(what, {"model": version.model.key, **fields}))

    # --- the storey above

    @abstractmethod
    def _flip(self, attempt: Attempt, now_ns: int) -> None:
        """From the next request on it serves."""

    @abstractmethod
    def _give_up(self, version: Version, reason: str, now_ns: int, *, noted: bool, form: bool) -> None:
        """It never serves (again). ``noted``: its history says so; ``form``: a packed form that it was to run from is
        to blame, too."""

    @abstractmethod
    def _roll_back(self, attempt: Attempt, reason: str, now_ns: int) -> None:
        """It serves no more, and what served before does again."""

    @abstractmethod
    def _leave(self, version: Version, now_ns: int) -> None:
        """It serves no more; it goes when its last request has ended, unless it is kept to go back to."""

    # --- what begins

    def _try(
        self,
        version: Version,
        before: Version | None,
        wish: TrialWish | None,
        now_ns: int,
        *,
        background: bool,
        order: bool = False,
        again: bool = False,
        fallen: bool = False,
    ) -> None:
        """``version`` is to serve, in the place of ``before``. An ``order`` is carried out at once, where the version
        is proven: it is compared with nothing."""
        proof = self.ledger.proof(key_of(version), version.model) or Proof(None, proven=False)
        version.assessment = proof.assessment
        known = proof.proven and not again
        order = order and known
        beside = None if order else before
        trial = Trial(
            self.config,
            TrialWish() if order else wish or configured_trial(self.config),
            before=beside is not None,
            comparable=beside is not None and interchangeable(version.model, beside.model),
            now_ns=now_ns,
            proven=known,
        )
        self.attempts[version.id] = Attempt(
            version=version,
            before=before,
            trial=trial,
            background=background,
            order=order,
            known=known,
            again=again,
            fallen=fallen,
        )

    def _renew(self, version: Version, wish: TrialWish | None, now_ns: int) -> None:
        """The catalog may wish otherwise of what is on trial already: from the next request on."""
        attempt = self.attempts.get(version.id)
        wish = wish or configured_trial(self.config)
        if attempt is None or attempt.trial.wish == wish:
            return
        self._step(attempt, on.Wished(wish), now_ns)
        before = attempt.before
        if before is not None and self.splits.get(before.id) is version:
            self._do(do.Resplit(version.id, before.id, wish, attempt.trial.share_percent), do.Touch())

    def _take_place(self, attempt: Attempt, now_ns: int) -> None:
        """Begin its trial, or say what it waits for."""
        if self._has_its_place(attempt):
            self._waits(attempt, None)
            self._assess(attempt, now_ns)
            return
        if attempt.phase is Phase.LOADING:
            attempt.version.enter(Phase.PARKED)
        self._waits(attempt, self._waits_for(attempt))

    def _waits(self, attempt: Attempt, reason: WaitReason | None) -> None:
        version, was = attempt.version, attempt.version.waiting
        version.waiting = reason
        if was is None and reason is not None:
            what = "packed form waits" if version.is_packed else "version waits"
            self._do(do.Report(what, {"model": version.model.key}, reason))
        if (was is None) is not (reason is None):
            self._do(do.Touch())

    def _has_its_place(self, attempt: Attempt) -> bool:
        """Whether its trial can begin: one at a time beside a version, and what is only to be tried beside one."""
        if attempt.before is None and attempt.trial.wish.hold:
            attempt.before = self.registry.current(attempt.version.model.name)
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

    def _waits_for(self, attempt: Attempt) -> WaitReason:
        if attempt.before is None:
            return WaitsForServing()
        tried = self.splits.get(attempt.before.id)
        return WaitsForWanted() if tried is None else WaitsForTrialOf(version=tried.model.version)

    def _assess(self, attempt: Attempt, now_ns: int) -> None:
        version, proof = attempt.version, attempt.version.assessment
        if proof is None:
            self._step(attempt, on.Assessed("", 0, 0), now_ns)
            return
        if not proof.failure and not attempt.known:
            self._do(do.Prove(attempt.key, version.model, Proof(proof, proven=False)))
        before = None if attempt.order else attempt.before
        before_ns = before.run_ns(proof.rows) if before is not None else 0
        self._step(attempt, on.Assessed(proof.failure, proof.p50_ns, before_ns), now_ns)

    # --- what is seen

    def _figures_read(self, attempt: Attempt, read: FiguresRead, now_ns: int) -> None:
        if read.reference:
            attempt.reference = read.old
            return
        seen = attempt.seen(read)
        self._step(attempt, seen, now_ns)
        if attempt.trial.under_way and self.attempts.get(read.version) is attempt:
            self._do(do.LimitRuns(read.version, attempt.longest_run_ns(attempt.seen(read), self.config)))
            self._due(attempt, now_ns)

    def _look(self, now_ns: int) -> None:
        """Read the figures that are due."""
        if now_ns < self._look_ns:
            return
        self._look_ns = NEVER_NS
        for attempt in self.attempts.values():
            if attempt.trial.under_way and now_ns >= attempt.due_ns:
                self._read(attempt)
            elif attempt.trial.under_way:
                self._due(attempt, now_ns)

    def _read(self, attempt: Attempt, *, reference: bool = False) -> None:
        before = attempt.before.id if attempt.before is not None else None
        self._do(do.ReadFigures(attempt.version.id, before, reference))

    def _due(self, attempt: Attempt, now_ns: int) -> None:
        if now_ns >= attempt.due_ns:
            attempt.due_ns = attempt.trial.due_ns(now_ns)
        if attempt.due_ns < self._look_ns:
            self._look_ns = attempt.due_ns
            self._do(do.WakeAt(attempt.due_ns))

    # --- what follows

    def _step(self, attempt: Attempt, event: on.Event, now_ns: int) -> None:
        was, phase = attempt.phase, attempt.trial.step(event, now_ns)
        if phase is Phase.FAILED:
            self._unsplit(attempt)
            self._fail(attempt, attempt.reason, now_ns)
            return
        if phase is was or phase is Phase.LOADING:
            return
        self._unsplit(attempt)
        attempt.version.enter(phase)
        if phase in ON_TRIAL:
            self._split(attempt)
            self._report("version on trial", attempt.version, stage=stage_of(phase))
        elif was not in SERVING:
            self._go_live(attempt, was, now_ns)
        if phase is Phase.LIVE:
            self._proven(attempt, now_ns)
        else:
            attempt.due_ns = 0
            self._read(attempt)

    def _split(self, attempt: Attempt) -> None:
        version, before, trial = attempt.version, attempt.before, attempt.trial
        assert before is not None, "a trial beside nothing"
        self.splits[before.id] = version
        mirrored = attempt.phase is Phase.MIRRORED
        self._do(
            do.Split(version.id, before.id, trial.wish, trial.share_percent, mirrored),
            do.FallBack(version.id, before.id),
            do.Touch(),
        )

    def _unsplit(self, attempt: Attempt) -> None:
        before, version = attempt.before, attempt.version
        self._do(do.FallBack(version.id, None))
        if before is not None and self.splits.get(before.id) is version:
            del self.splits[before.id]
            # What waits for its place may have it, unless it takes it anew.
            self._do(do.Unsplit(version.id, before.id), do.Touch(), do.WakeAt(0))

    def _go_live(self, attempt: Attempt, was: Phase, now_ns: int) -> None:
        version = attempt.version
        version.untried = attempt.untried
        for other in list(self.attempts.values()):
            if other.live and other.version is attempt.before:
                self._succeed(attempt, other, now_ns)
        before = attempt.before
        self._read(attempt, reference=True)
        if before is not None and attempt.comparable and version.phase is Phase.WATCHED:
            self._do(do.FallBack(version.id, before.id))
        if before is not None or attempt.fallen or not attempt.known:
            self._came_out(attempt, Ending.LIVE, was, attempt.in_words(), now_ns)
        self._flip(attempt, now_ns)
        self._do(do.WakeAt(0))  # it may be what others are to be tried beside

    def _succeed(self, attempt: Attempt, other: Attempt, now_ns: int) -> None:
        """``other``, which is replaced, was still watched: what may be gone back to is what was there before it, which
        is proven."""
        self._uncount(other, other.phase)
        if other.keeps_before:
            other.version.enter(Phase.LIVE)
            del self.attempts[other.version.id]
            self._do(do.FallBack(other.version.id, None))
            attempt.before = other.before
        else:
            self._conclude(other, now_ns)

    def _proven(self, attempt: Attempt, now_ns: int) -> None:
        version = attempt.version
        proof = Proof(version.assessment, proven=True)
        identity = identity_of(version.model, version.spec.fingerprint)
        self._do(
            do.Prove(attempt.key, version.model, proof),
            do.Forgive(attempt.key),
            do.Seat(version.model.name, identity),
        )
        self._conclude(attempt, now_ns)
        self._do(do.ConsiderForm(version.id))

    def _conclude(self, attempt: Attempt, now_ns: int) -> None:
        """Nothing more is to come of its trial; the version goes on serving."""
        version = attempt.version
        self._do(do.FallBack(version.id, None))
        self.attempts.pop(version.id, None)
        if version.phase is Phase.WATCHED:
            version.enter(Phase.LIVE)
        if attempt.live and attempt.before is not None:
            self._spare(attempt.before, now_ns)

    def _spare(self, before: Version, now_ns: int) -> None:
        """Note that it will not be gone back to."""
        if before.phase is Phase.STANDBY:
            self._leave(before, now_ns)

    def _fail(self, attempt: Attempt, reason: str, now_ns: int) -> None:
        version, was = attempt.version, attempt.phase
        self.attempts.pop(version.id, None)
        self._unsplit(attempt)
        if was not in SERVING:
            if was in ON_TRIAL:
                self._do(do.Reject(attempt.key, reason))
            self._came_out(attempt, Ending.REFUSED, was, reason, now_ns)
            self._give_up(version, reason, now_ns, noted=True, form=version.packed or attempt.crashed)
        else:
            if attempt.blameless:
                self._uncount(attempt, was)
            else:
                self._do(do.Reject(attempt.key, reason))
            ending = Ending.RECALLED if attempt.blameless else Ending.ROLLED_BACK
            self._came_out(attempt, ending, was, reason, now_ns)
            self._roll_back(attempt, reason, now_ns)
        self._inherit(version, attempt.before, now_ns)
        self._do(do.WakeAt(0))

    def _given_up(self, version: Version, was: Phase, reason: str, now_ns: int, *, noted: bool) -> None:
        """It was refused or quarantined as it ``was``; ``noted``: that is in its history."""
        attempt = self.attempts.pop(version.id, None)
        before = attempt.before if attempt is not None else None
        if before is None or before.identity != version.identity:  # else only its form is given up
            self._do(do.GiveUp(version.identity))
        if attempt is not None:
            self._unsplit(attempt)
            self._came_out(attempt, Ending.REFUSED, was, reason, now_ns)
            if was in SERVING and before is not None:
                self._spare(before, now_ns)
            self._do(do.WakeAt(0))
        elif not noted:
            self._note(version, Ending.GIVEN_UP, reason=reason)
        self._inherit(version, self.registry.current(version.model.name), now_ns)

    def _gone(self, version: Version, was: Phase, now_ns: int) -> None:
        """It leaves as it ``was``: it is no longer wanted, or another took its place."""
        attempt = self.attempts.pop(version.id, None)
        if attempt is not None:
            self._unsplit(attempt)
            self._uncount(attempt, was, loading=True)
            if was not in SERVING:
                self._came_out(attempt, Ending.ABANDONED, was, "no longer wanted", now_ns)
            elif attempt.before is not None:
                self._spare(attempt.before, now_ns)
            self._do(do.WakeAt(0))
        self._inherit(version, self.registry.current(version.model.name), now_ns)

    def _uncount(self, attempt: Attempt, was: Phase, *, loading: bool = False) -> None:
        """Nothing that came so far has failed; ``loading``: nor is its load to blame where that has not ended."""
        if attempt.crashed:
            return
        if was in TRIED:
            self._do(do.Forgive(attempt.key))
        elif attempt.counted and (was is Phase.PARKED or loading):
            attempt.counted = False
            self._do(do.GiveBack(attempt.key, attempt.again))

    def _inherit(self, version: Version, heir: Version | None, now_ns: int) -> None:
        """What was to replace ``version`` replaces ``heir`` now, or nothing."""
        for other in list(self.attempts.values()):
            if other.before is not version:
                continue
            before = heir if heir is not version and heir is not other.version else None
            splits = other.phase in ON_TRIAL
            if splits:
                self._unsplit(other)
            other.before = before
            if before is None:
                self._step(other, on.Orphaned(), now_ns)
            elif splits:
                self._split(other)

    # --- what is told

    def _came_out(self, attempt: Attempt, ending: Ending, was: Phase, reason: str, now_ns: int) -> None:
        version, before = attempt.version, attempt.before
        began_ns = now_ns if attempt.began_ns is None else attempt.began_ns
        number = before.model.version if before is not None else 0
        self._note(
            version,
            ending,
            reason=reason,
            before=version.model.version if was is Phase.WATCHED else number,
            after=version.model.version if ending is Ending.LIVE else number,
            stage=stage_of(was),
            took_ms=(now_ns - began_ns) // 1_000_000,
        )

    def _note(self, version: Version, ending: Ending, **more: object) -> None:
        self._do(do.Note(change=change_of(version, ending, **more)))


def change_of(version: Version, ending: Ending, **more: object) -> Change:
    """A line of the history of ``version``, without its time."""
    name, number = version.slot
    return Change(
        at_ms=0,
        name=name,
        version=number,
        identity=version.identity,
        artifact=version.spec.artifact,
        ending=ending,
        **more,  # type: ignore[arg-type]
    )
