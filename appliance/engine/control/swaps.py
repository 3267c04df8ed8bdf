"""Versions on their way to serving: how each one's trial stands, and what is remembered of it.

Every version that is to be loaded passes through here; ``launches`` starts them in turn. ``trial`` decides; the roster
does what follows from it, as a Board. One owner: the roster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from appliance.core.memory.actions import Reply
from appliance.core.memory.footprint import Residency
from appliance.core.rollout import trial as on
from appliance.core.rollout.catalog import identity_of
from appliance.core.rollout.ledger import Ending, Proof
from appliance.core.rollout.phase import ON_TRIAL, SERVING, TRIED, Phase, stage_of
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.trial import Trial
from appliance.core.rollout.wish import TrialWish, configured_trial
from appliance.domain.inference import RequestHead
from appliance.domain.model import ModelVersion, interchangeable
from appliance.engine.control.board import Board
from appliance.engine.control.candidate import Candidate, run_ns
from appliance.engine.control.hangs import longest_run_ns
from appliance.engine.control.launches import Launches
from appliance.engine.control.swap_accounts import SwapAccounts
from appliance.engine.control.tries import Tries
from appliance.engine.versions.records import MemoryRecords, Records
from appliance.engine.versions.routes import Served
from appliance.telemetry.snapshot import SwapFigures, TrialStatus
from appliance.workers.port import LoadWish, ModelLoaded

NEVER_NS: Final = 1 << 62


class SwapTerms(NamedTuple):
    """What swaps go by; ``box`` says on what a version's proof depends."""

    config: RolloutPolicy
    records: Records
    box: Callable[[ModelVersion], str]


def default_terms() -> SwapTerms:
    """As configured by nobody, and remembered for as long as the process lives."""
    return SwapTerms(RolloutPolicy(), MemoryRecords(), lambda model: "")


class Swaps:
    """``soon`` asks for ``tick`` at once, ``at`` at a time; ``room`` says if there is memory to load a version in the
    place of another, ``rests`` whether one that is known to serve begins out of memory."""

    def __init__(
        self,
        *,
        terms: SwapTerms,
        board: Board,
        report: Callable[..., None],
        wall_ms: Callable[[], int],
        room: Callable[[Served, Served | None, int], Reply],
        rests: Callable[[Served], bool],
        soon: Callable[[], None],
        at: Callable[[int], None],
    ) -> None:
        self._config, self._records, self._box = terms
        self._board = board
        self._report = report
        self._soon = soon
        self._at = at
        self._candidates: dict[int, Candidate] = {}
        self._compared: list[tuple[int, str]] = []
        self._look_ns = NEVER_NS
        self.tries = Tries(self._records, self._config, wall_ms)
        self._launches = Launches(
            candidates=self._candidates,
            places=self._config.loads,
            tries=self.tries,
            board=board,
            rests=rests,
            rest=self._rest,
            room=room,
            failed=self._fail,
            report=report,
            soon=soon,
        )
        self.accounts = SwapAccounts(self._records, wall_ms)

    # --- what is wanted

    def spare(self) -> None:
        """The daemon is asked to stop: what serves or is on trial has not failed, so that its try does not count."""
        for candidate in self._candidates.values():
            self._uncount(candidate, candidate.phase)

    def add(
        self,
        served: Served,
        before: Served | None,
        wish: TrialWish | None,
        *,
        background: bool,
        now_ns: int,
        again: bool = False,
        fallen: bool = False,
    ) -> None:
        """``served`` is to serve, in the place of ``before``. ``again``: it was given up, so that it has to prove
        itself anew; ``fallen``: see Candidate. ``start`` starts it."""
        proof = self._records.proof(served.record_key, self._box(served.model)) or Proof(None, proven=False)
        served.assessment = proof.assessment
        known = proof.proven and not again
        trial = Trial(
            self._config,
            wish or configured_trial(self._config),
            before=before is not None,
            comparable=before is not None and interchangeable(served.model, before.model),
            now_ns=now_ns,
            proven=known,
        )
        self._candidates[served.id] = Candidate(
            served=served,
            before=before,
            trial=trial,
            background=background,
            known=known,
            again=again,
            fallen=fallen,
        )

    def renew(self, served: Served, wish: TrialWish | None, now_ns: int) -> None:
        """The catalog may wish otherwise of what is on trial already: from the next request on."""
        candidate = self._candidates.get(served.id)
        wish = wish or configured_trial(self._config)
        if candidate is None or candidate.trial.wish == wish:
            return
        self._step(candidate, on.Wished(wish), now_ns)
        diversion = candidate.before.diversion if candidate.before is not None else None
        if diversion is not None and diversion.served is served:
            diversion.renew(wish, candidate.trial.share_percent)
            self._board.diverted()

    def start(self, now_ns: int) -> None:
        """Start what may start, and the trials of what has waited for its place until now."""
        self._launches.start(now_ns)
        for candidate in list(self._candidates.values()):
            if candidate.phase is Phase.PARKED and candidate.served.id in self._candidates:
                self._take_place(candidate, now_ns)

    def _rest(self, candidates: Sequence[Candidate], now_ns: int) -> None:
        """They are proven and have no room now: they serve out of memory, and a request brings them."""
        for candidate in candidates:
            candidate.served.residency = Residency.COLD
            candidate.served.enter(Phase.LIVE)
            if candidate.fallen:
                self.accounts.came_out(candidate, Ending.LIVE, Phase.QUEUED, "it serves again", now_ns)
                self.tries.forgive(candidate.served.record_key)
            self._conclude(candidate, now_ns)
        self._board.rest([candidate.served for candidate in candidates], now_ns)

    def wish(self, served: Served) -> LoadWish:
        """How a version is to be loaded: at once where it serves, else as its try says."""
        candidate = self._candidates.get(served.id)
        if candidate is None or candidate.live or served.opened or served.returning:
            return LoadWish(quick=served.quick)
        held_to = bool(served.model.golden) or candidate.before is not None
        assess = held_to and served.assessment is None
        return LoadWish(background=candidate.background, assess=assess, tell=True)

    # --- what happens to it

    def loaded(self, served: Served, event: ModelLoaded) -> None:
        """A worker holds it. Several may: the slowest of them counts."""
        self.accounts.count(loads=1, load_ns=event.load_ns)
        if event.assessment is None:
            return
        self.accounts.count(assessments=1, assessments_failed=bool(event.assessment.failure))
        known = served.assessment
        if known is None or event.assessment.failure or event.assessment.p50_ns > known.p50_ns:
            served.assessment = event.assessment

    def opened(self, served: Served, now_ns: int) -> None:
        """It can take requests, and shall not before its trial says so."""
        candidate = self._candidates.get(served.id)
        if candidate is None or candidate.phase is not Phase.LOADING:
            return
        self._take_place(candidate, now_ns)
        self._soon()

    def _take_place(self, candidate: Candidate, now_ns: int) -> None:
        """Begin its trial, or say what it waits for."""
        if self._has_its_place(candidate):
            self._board.waits(candidate, None)
            self._assess(candidate, now_ns)
            return
        if candidate.phase is Phase.LOADING:
            candidate.served.enter(Phase.PARKED)
        self._board.waits(candidate, candidate.waits_for)

    def _has_its_place(self, candidate: Candidate) -> bool:
        """Whether its trial can begin: one at a time beside a version, and what is only to be tried beside one."""
        if candidate.before is None and candidate.trial.wish.hold:
            candidate.before = self._board.current(candidate.served.model.name)
            if candidate.before is None:
                return False
            candidate.trial.replaces(comparable=candidate.comparable)
        before = candidate.before
        if before is None or not candidate.trial.tries:
            return True
        return before.diversion is None and not (candidate.trial.wish.hold and self._wanted_comes(before))

    def _wanted_comes(self, before: Served) -> bool:
        """Whether one is to be tried beside ``before`` that is wanted, and so has an end of its own."""
        return any(
            each.before is before
            and not (each.live or each.stuck or each.trial.wish.hold)
            and each.trial.tries
            for each in self._candidates.values()
        )

    def _assess(self, candidate: Candidate, now_ns: int) -> None:
        served, before = candidate.served, candidate.before
        proof = served.assessment
        if proof is not None and not proof.failure and not candidate.known:
            self._records.prove(served.record_key, self._box(served.model), Proof(proof, proven=False))
        event = on.Assessed(
            proof.failure if proof is not None else "",
            proof.p50_ns if proof is not None else 0,
            run_ns(before, proof.rows) if proof is not None and before is not None else 0,
        )
        self._step(candidate, event, now_ns)

    def crashed(self, served: Served, detail: str, now_ns: int) -> bool:
        """A worker ended because of it; True when its trial ended with that."""
        candidate = self._candidates.get(served.id)
        if candidate is None:
            return False
        candidate.crashed = True
        self._step(candidate, on.Crashed(detail), now_ns)
        return served.id not in self._candidates

    def broke(self, served: Served, reason: str, now_ns: int) -> bool:
        """It cannot go on; True when what served before is still there, and does again."""
        candidate = self._candidates.get(served.id)
        if candidate is None or not candidate.keeps_before:
            return False
        self._step(candidate, on.Recalled(reason), now_ns)
        return True

    def compared(self, served: Served, difference: str) -> None:
        """An answer of it lay beside the real one; taken in at the next ``tick``."""
        self._compared.append((served.id, difference))
        self.accounts.count(compared=1, differing=bool(difference))
        self._soon()

    def refused(self, served: Served, head: RequestHead) -> None:
        """A request that named no version was none for ``served``, which serves its model."""
        if (candidate := self._candidates.get(served.id)) is not None:
            candidate.refused(head)

    def recall(self, name: str, reason: str, now_ns: int) -> None:
        """Go back to what served ``name`` before, if that is still there: nothing failed."""
        for candidate in list(self._candidates.values()):
            if candidate.served.model.name == name and candidate.keeps_before:
                candidate.blameless = True
                self._step(candidate, on.Recalled(reason), now_ns)
                return

    def kept(self, name: str, version: int, identity: str) -> Served | None:
        """The version that is kept to go back to, if it is this one, or runs from a form of it."""
        for candidate in self._candidates.values():
            before = candidate.before
            if before is None or (before.model.name, before.model.version) != (name, version):
                continue
            if candidate.keeps_before and before.identity == identity:
                return before
        return None

    @property
    def calm(self) -> bool:
        """Whether nothing loads and nothing is on trial, but for what waits for memory."""
        return all(each.live or each.stuck for each in self._candidates.values())

    def keeps(self, served: Served) -> bool:
        """Whether ``served`` stays although it does not serve, to go back to."""
        return any(each.keeps_before and each.before is served for each in self._candidates.values())

    # --- time

    def tick(self, now_ns: int) -> None:
        """Take in what was compared, look at figures that are due, start what may start."""
        compared, self._compared = self._compared, []
        for model, difference in compared:
            if (candidate := self._candidates.get(model)) is not None:
                self._step(candidate, on.Compared(difference), now_ns)
        if now_ns >= self._look_ns:
            self._look_ns = NEVER_NS
            for candidate in list(self._candidates.values()):
                self._look(candidate, now_ns)
        self.start(now_ns)

    def _look(self, candidate: Candidate, now_ns: int) -> None:
        if not candidate.trial.under_way or candidate.served.id not in self._candidates:
            return
        if now_ns >= candidate.due_ns:
            self._step(candidate, candidate.seen(), now_ns)
        if candidate.trial.under_way and candidate.served.id in self._candidates:
            candidate.served.run_limit_ns = longest_run_ns(candidate, self._config)
            self._due(candidate, now_ns)

    def _due(self, candidate: Candidate, now_ns: int) -> None:
        if now_ns >= candidate.due_ns:
            candidate.due_ns = candidate.trial.due_ns(now_ns)
        if candidate.due_ns < self._look_ns:
            self._look_ns = candidate.due_ns
            self._at(candidate.due_ns)

    # --- what follows

    def _step(self, candidate: Candidate, event: on.Event, now_ns: int) -> None:
        was, phase = candidate.phase, candidate.trial.step(event, now_ns)
        if phase is Phase.FAILED:
            self._undivert(candidate)
            self._fail(candidate, candidate.reason, now_ns)
            return
        if phase is was or phase is Phase.LOADING:
            return
        self._undivert(candidate)
        candidate.served.enter(phase)
        if phase in ON_TRIAL:
            self._divert(candidate)
        elif was not in SERVING:
            self._go_live(candidate, was, now_ns)
        if phase is Phase.LIVE:
            self._proven(candidate, now_ns)
        else:
            candidate.trial.step(candidate.seen(), now_ns)
            candidate.served.run_limit_ns = longest_run_ns(candidate, self._config)
            candidate.due_ns = 0
            self._due(candidate, now_ns)

    def _divert(self, candidate: Candidate) -> None:
        before = candidate.before
        assert before is not None, "a trial beside nothing"
        before.diversion = candidate.diversion()
        candidate.served.fallback = before
        self._report("version on trial", model=candidate.served.key, stage=stage_of(candidate.phase))
        self._board.diverted()

    def _undivert(self, candidate: Candidate) -> None:
        before = candidate.before
        candidate.served.fallback = None
        if before is None or before.diversion is None or before.diversion.served is not candidate.served:
            return
        if not before.diversion.shadow:
            self.accounts.count(canary_requests=before.diversion.taken)
        before.diversion = None
        self._board.diverted()
        self._soon()  # whoever waits for its place may have it, unless it takes it anew

    def _go_live(self, candidate: Candidate, was: Phase, now_ns: int) -> None:
        served = candidate.served
        served.untried = candidate.untried
        for other in list(self._candidates.values()):
            if other.live and other.served is candidate.before:
                self._succeed(candidate, other, now_ns)
        before = candidate.before
        candidate.reference = candidate.figures_before()
        if before is not None and candidate.comparable and served.phase is Phase.WATCHED:
            served.fallback = before
        if before is not None or candidate.fallen or not candidate.known:
            self.accounts.came_out(candidate, Ending.LIVE, was, candidate.trial_in_words(), now_ns)
        self._board.flip(candidate, now_ns)
        self._soon()  # it may be what others are to be tried beside

    def _succeed(self, candidate: Candidate, other: Candidate, now_ns: int) -> None:
        """``other``, which is replaced, was still watched: who may go back goes back to what was there before it, which
        is proven."""
        self._uncount(other, other.phase)
        if other.keeps_before:
            other.served.enter(Phase.LIVE)
            del self._candidates[other.served.id]
            other.served.fallback = None
            candidate.before = other.before
        else:
            self._conclude(other, now_ns)

    def _proven(self, candidate: Candidate, now_ns: int) -> None:
        served = candidate.served
        self._records.prove(served.record_key, self._box(served.model), Proof(served.assessment, proven=True))
        self.tries.forgive(served.record_key)
        self._records.seat(served.model.name, identity_of(served.model, served.fingerprint))
        self._conclude(candidate, now_ns)
        self._board.proven(served)

    def _conclude(self, candidate: Candidate, now_ns: int) -> None:
        """Nothing more is to come of its trial; the version goes on serving."""
        served = candidate.served
        served.fallback = None
        self._candidates.pop(served.id, None)
        if served.phase is Phase.WATCHED:
            served.enter(Phase.LIVE)
        if candidate.live and candidate.before is not None:
            self._board.spare(candidate.before, now_ns)

    def _fail(self, candidate: Candidate, reason: str, now_ns: int) -> None:
        served, was = candidate.served, candidate.phase
        self._candidates.pop(served.id, None)
        self._undivert(candidate)
        if not candidate.live:
            if was in ON_TRIAL:
                self.tries.reject(served.record_key, reason)
            self.accounts.came_out(candidate, Ending.REFUSED, was, reason, now_ns)
            self._board.reject(candidate, reason, now_ns)
        else:
            if candidate.blameless:
                self._uncount(candidate, candidate.phase)
            else:
                self.tries.reject(served.record_key, reason)
            ending = Ending.RECALLED if candidate.blameless else Ending.ROLLED_BACK
            self.accounts.came_out(candidate, ending, was, reason, now_ns)
            self._board.roll_back(candidate, reason, now_ns)
        self._inherit(served, candidate.before, now_ns)
        self._soon()

    def given_up(self, served: Served, was: Phase, reason: str, now_ns: int, *, noted: bool) -> None:
        """The roster will not have it any more: it was refused or quarantined as it ``was``; ``noted``: that is in its
        history."""
        candidate = self._candidates.pop(served.id, None)
        before = candidate.before if candidate is not None else None
        if before is None or before.identity != served.identity:  # else only its form is given up
            self.tries.given_up(served.identity)
        if candidate is not None:
            self._undivert(candidate)
            self.accounts.came_out(candidate, Ending.REFUSED, was, reason, now_ns)
            if was in SERVING and candidate.before is not None:
                self._board.spare(candidate.before, now_ns)
            self._soon()
        elif not noted:
            self.accounts.note(served, Ending.GIVEN_UP, reason)
        self._inherit(served, self._board.current(served.model.name), now_ns)

    def gone(self, served: Served, was: Phase, now_ns: int) -> None:
        """It leaves as it ``was``: it is no longer wanted, or another took its place."""
        candidate = self._candidates.pop(served.id, None)
        if candidate is not None:
            self._undivert(candidate)
            self._uncount(candidate, was, loading=True)
            if was not in SERVING:
                self.accounts.came_out(candidate, Ending.ABANDONED, was, "no longer wanted", now_ns)
            elif candidate.before is not None:
                self._board.spare(candidate.before, now_ns)
            self._soon()
        self._inherit(served, self._board.current(served.model.name), now_ns)

    def _uncount(self, candidate: Candidate, was: Phase, *, loading: bool = False) -> None:
        """Nothing that came so far has failed; ``loading``: nor is its load to blame where that has not ended."""
        if candidate.crashed:
            return
        if was in TRIED:
            self.tries.forgive(candidate.served.record_key)
        elif candidate.counted and (was is Phase.PARKED or loading):
            candidate.counted = False
            self.tries.give_back(candidate.served.record_key, again=candidate.again)

    def _inherit(self, served: Served, heir: Served | None, now_ns: int) -> None:
        """Whoever was to replace ``served`` replaces ``heir`` now, or nothing."""
        for other in list(self._candidates.values()):
            if other.before is not served:
                continue
            before = heir if heir is not served and heir is not other.served else None
            diverted = other.phase in ON_TRIAL
            if diverted:
                self._undivert(other)
            other.before = before
            if before is None:
                self._step(other, on.Orphaned(), now_ns)
            elif diverted:
                self._divert(other)

    # --- what is told

    def figures(self) -> SwapFigures:
        """For people, as of now."""
        now = sum(
            each.before.diversion.taken
            for each in self._candidates.values()
            if each.phase is Phase.SPLIT and each.before is not None and each.before.diversion is not None
        )
        return self.accounts.figures(now)

    def status(self, served: Served) -> TrialStatus | None:
        """How far ``served`` has come; None when it is on no trial."""
        candidate = self._candidates.get(served.id)
        return candidate.status() if candidate is not None else None

    def headers(self) -> tuple[str, ...]:
        """Headers by whose values requests are led to versions on trial."""
        diversions = [each.before.diversion for each in self._candidates.values() if each.before is not None]
        return tuple(sorted({each.header for each in diversions if each is not None and each.header}))
