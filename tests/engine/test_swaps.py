"""What is remembered of versions that come back, and who goes on when a version rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from appliance.core.memory.actions import GrantReservation, RefuseReservation, Reply
from appliance.core.memory.footprint import Residency
from appliance.core.memory.waits import WaitsForOvercommit
from appliance.core.rollout.ledger import Ending, Proof, Standing
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import WaitReason
from appliance.core.rollout.version import Artifact
from appliance.core.rollout.wish import TrialWish
from appliance.domain.inference import RequestHead, TensorHead
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.engine.control.candidate import Candidate
from appliance.engine.control.swaps import Swaps, SwapTerms
from appliance.engine.versions.history import unfit
from appliance.engine.versions.records import MemoryRecords
from appliance.engine.versions.routes import Served
from appliance.telemetry.meter import VersionMeter
from tests.domain.sample import make_version

NOW_MS = 1_800_000_000_000


def version(number: int) -> Served:
    model = make_version("m", number)
    return Served(
        id=number, model=model, fingerprint="", identity=f"m/{number}@d", meter=VersionMeter("m", number)
    )


THERE = GrantReservation(1)


class Stage:
    """Implements Board: a version that is to be started is there at once if it ``opens``; and what Swaps need of the
    model cache."""

    def __init__(self, records: MemoryRecords) -> None:
        self.room: Reply = THERE
        self.resting = False
        self.opens = True
        self.ready: list[Served] = []
        self.swaps = Swaps(
            terms=SwapTerms(RolloutPolicy(watch_s=600.0), records, lambda model: "box"),
            board=self,
            report=lambda *words, **more: None,
            wall_ms=lambda: NOW_MS,
            room=self._room,
            rests=lambda served: self.resting,
            soon=lambda: None,
            at=lambda at_ns: None,
        )

    def _room(self, served: Served, before: Served | None, now_ns: int) -> Reply:
        return self.room if served.model.version == 1 else THERE

    def start(self, fresh: Sequence[Served], now_ns: int, *, alone: bool) -> None:
        for served in fresh if self.opens else ():
            served.opened = True
            self.swaps.opened(served, now_ns)

    def flip(self, candidate: Candidate, now_ns: int) -> None:
        self.ready.append(candidate.served)

    def rest(self, resting: Sequence[Served], now_ns: int) -> None:
        self.ready += resting

    def current(self, name: str) -> Served | None:
        return self.ready[-1] if self.ready else None

    def waits(self, candidate: Candidate, reason: WaitReason | None) -> None:
        candidate.served.waiting = reason

    def loading_aside(self) -> set[int]:
        return set()

    def reject(self, candidate: Candidate, reason: str, now_ns: int) -> None: ...

    def roll_back(self, candidate: Candidate, reason: str, now_ns: int) -> None: ...

    def spare(self, before: Served, now_ns: int) -> None: ...

    def proven(self, served: Served) -> None: ...

    def diverted(self) -> None: ...


def proven(*numbers: int) -> MemoryRecords:
    return MemoryRecords(proofs=[(f"m/{number}@d", "box", Proof(None, proven=True)) for number in numbers])


@pytest.mark.parametrize("resting", [False, True])
def test_a_proven_version_that_comes_back_after_it_was_given_up_is_fit_again(resting: bool) -> None:
    records = proven(1)
    stage = Stage(records)
    stage.resting = resting
    served = version(1)
    stage.swaps.given_up(served, served.phase, "quarantined", 0, noted=False)
    assert unfit(records.history("m")) == {1}
    fallen = stage.swaps.tries.fallen(served.identity)
    stage.swaps.add(served, None, None, background=False, now_ns=0, fallen=fallen)
    stage.swaps.start(0)
    assert stage.ready == [served]
    assert served.residency is (Residency.COLD if resting else Residency.RESIDENT)
    assert [change.ending for change in records.history("m")] == [Ending.GIVEN_UP, Ending.LIVE]
    assert not unfit(records.history("m"))
    assert not stage.swaps.tries.fallen(served.identity)


@pytest.mark.parametrize("resting", [False, True])
def test_a_restart_of_what_was_proven_is_no_line_of_its_history(resting: bool) -> None:
    records = proven(1)
    stage = Stage(records)
    stage.resting = resting
    stage.swaps.add(version(1), None, None, background=False, now_ns=0)
    stage.swaps.start(0)
    assert len(stage.ready) == 1
    assert not records.history("m")


@pytest.mark.parametrize("serves", [False, True])
def test_a_form_that_failed_says_nothing_of_the_version_that_serves_without_it(serves: bool) -> None:
    stage = Stage(proven(1))
    served, packed = version(1), version(1)
    packed.artifact = Artifact.PACKED
    stage.swaps.add(served, None, None, background=False, now_ns=0)
    stage.swaps.start(0)
    if serves:
        stage.swaps.add(packed, served, TrialWish(), background=True, now_ns=0)
    stage.swaps.given_up(packed, packed.phase, "it crashed twice", 0, noted=False)
    assert stage.swaps.tries.fallen(served.identity) == (not serves)


def test_that_a_version_was_found_given_up_is_said_once() -> None:
    """In this process and in the next; and once more when it was tried again meanwhile."""
    records = MemoryRecords()
    for _ in range(2):
        swaps = Stage(records).swaps
        for _ in range(2):
            swaps.accounts.found_given_up(version(1), "was tried 3 times")
    assert [change.ending for change in records.history("m")] == [Ending.GIVEN_UP]
    swaps.accounts.note(version(1), Ending.LIVE, "")
    swaps.accounts.found_given_up(version(1), "was tried 3 times")
    assert [change.ending for change in records.history("m")][1:] == [Ending.LIVE, Ending.GIVEN_UP]


def test_a_try_takes_as_long_as_since_its_load_began() -> None:
    records = MemoryRecords()
    stage = Stage(records)
    stage.room = RefuseReservation(1, WaitsForOvercommit(), 1)
    stage.swaps.add(version(1), None, None, background=False, now_ns=0)
    stage.swaps.start(0)
    stage.room = THERE
    stage.swaps.start(60_000_000_000)
    stage.swaps.start(60_000_000_000)
    assert [(change.ending, change.took_ms) for change in records.history("m")] == [(Ending.LIVE, 0)]


def test_what_was_rejected_counts_as_fallen() -> None:
    records = MemoryRecords([("m/1@d", Standing(0, "rolled back"))])
    assert Stage(records).swaps.tries.fallen("m/1@d")


def test_a_version_that_begins_to_rest_lets_the_one_that_waits_for_it_be_tried() -> None:
    stage = Stage(proven(1))
    stage.room = RefuseReservation(1, WaitsForOvercommit(), 0)
    resting, tried = version(1), version(2)
    stage.swaps.add(resting, None, None, background=False, now_ns=0)
    wish = TrialWish(canary_percent=50.0, hold=True)
    stage.swaps.add(tried, None, wish, background=True, now_ns=0)
    stage.swaps.start(0)
    status = stage.swaps.status(tried)
    assert status is not None
    assert (tried.opened, status.stage) == (True, "loading"), "there is nothing yet to try it beside"
    stage.resting = True
    stage.swaps.tick(1)
    status = stage.swaps.status(tried)
    assert status is not None
    assert (status.stage, status.before) == ("canary", 1)
    assert resting.diversion is not None


def test_a_version_that_is_replaced_while_it_is_watched_has_not_failed() -> None:
    """Else two versions that take turns in quick succession would use up their tries."""
    records = MemoryRecords()
    stage = Stage(records)
    before: Served | None = None
    for number in (1, 2, 3):
        stage.swaps.add(served := version(number), before, None, background=False, now_ns=number)
        stage.swaps.start(number)
        assert stage.ready[-1] is served
        before = served
    assert dict(records.standings) == {"m/3@d": Standing(1, "", NOW_MS)}, "which is the one that is watched"


def parked() -> tuple[Stage, MemoryRecords, Served, Served]:
    """Version 1 serves, 3 is on trial beside it until somebody ends that, 5 is wanted and waits for it."""
    records = proven(1)
    stage = Stage(records)
    serving, tried, waiting = version(1), version(3), version(5)
    stage.swaps.add(serving, None, None, background=False, now_ns=0)
    stage.swaps.start(0)
    hold = TrialWish(canary_percent=10.0, hold=True)
    stage.swaps.add(tried, serving, hold, background=True, now_ns=0)
    stage.swaps.start(0)
    stage.swaps.start(0)
    stage.swaps.add(waiting, serving, TrialWish(canary_percent=20.0), background=True, now_ns=0)
    stage.swaps.start(0)
    stage.swaps.start(0)
    return stage, records, tried, waiting


def stage_of(stage: Stage, served: Served) -> str:
    status = stage.swaps.status(served)
    return status.stage if status is not None else ""


@pytest.mark.parametrize("how", ["it is no longer wanted", "it is given up"])
def test_what_waits_for_a_trial_says_so_and_goes_on_when_that_ends(how: str) -> None:
    stage, _, tried, waiting = parked()
    assert (stage_of(stage, tried), stage_of(stage, waiting)) == ("canary", "loading")
    assert waiting.reason == "waits for the trial of version 3 to end"
    if how == "it is given up":
        stage.swaps.given_up(tried, tried.phase, "quarantined", 1, noted=False)
    else:
        stage.swaps.gone(tried, tried.phase, 1)
    stage.swaps.tick(1)
    assert (stage_of(stage, waiting), waiting.reason) == ("canary", "")


def test_what_is_wanted_is_tried_before_what_is_only_to_be_tried_as_after_a_restart() -> None:
    """Whichever is loaded first: the other trial lasts until somebody ends it."""
    stage = Stage(proven(1))
    serving, tried, wanted = version(1), version(3), version(5)
    stage.swaps.add(serving, None, None, background=False, now_ns=0)
    stage.swaps.start(0)
    hold = TrialWish(canary_percent=10.0, hold=True)
    stage.swaps.add(tried, serving, hold, background=True, now_ns=0)
    stage.swaps.add(wanted, serving, TrialWish(canary_percent=20.0), background=True, now_ns=0)
    stage.opens = False
    stage.swaps.start(0)
    stage.swaps.start(0)
    stage.opens = True
    stage.start([tried], 0, alone=False)
    assert tried.reason == "waits for the trial of the version that is wanted to end"
    stage.start([wanted], 0, alone=False)
    stage.swaps.tick(0)
    assert (stage_of(stage, wanted), stage_of(stage, tried)) == ("canary", "loading")
    assert tried.reason == "waits for the trial of version 5 to end"


def test_what_is_to_be_tried_beside_nothing_says_so() -> None:
    stage = Stage(MemoryRecords())
    tried = version(3)
    stage.swaps.add(tried, None, TrialWish(canary_percent=10.0, hold=True), background=False, now_ns=0)
    stage.swaps.start(0)
    stage.swaps.start(0)
    assert tried.reason == "waits for a version that serves, to be tried beside it"


@pytest.mark.parametrize("how", ["the daemon is asked to stop", "it is no longer wanted"])
def test_what_waits_for_a_trial_has_its_try_back_when_it_leaves(how: str) -> None:
    """And only this one: what its tries before came to is not known."""
    stage, records, _, waiting = parked()
    assert records.standing(waiting.identity).tries == 1
    records.add_try(waiting.identity, NOW_MS, again=False)
    if how == "it is no longer wanted":
        stage.swaps.gone(waiting, waiting.phase, 1)
    else:
        stage.swaps.spare()
        stage.swaps.spare()
    assert records.standing(waiting.identity).tries == 1


@pytest.mark.parametrize("crashed", [False, True])
def test_a_load_that_is_abandoned_gives_its_try_back_unless_it_crashed(crashed: bool) -> None:
    records = MemoryRecords()
    stage = Stage(records)
    stage.opens = False
    served = version(1)
    stage.swaps.add(served, None, None, background=False, now_ns=0)
    stage.swaps.start(0)
    stage.swaps.start(0)
    stage.swaps.spare()
    assert records.standing(served.identity).tries == 1, "a load may be what the box does not survive"
    if crashed:
        stage.swaps.crashed(served, "died", 1)
    stage.swaps.gone(served, served.phase, 1)
    assert records.standing(served.identity).tries == crashed


def test_what_never_began_has_no_try_to_give_back() -> None:
    records = MemoryRecords([("m/1@d", Standing(2, "", NOW_MS))])
    stage = Stage(records)
    stage.room = RefuseReservation(1, WaitsForOvercommit(), 1)
    served = version(1)
    stage.swaps.add(served, None, None, background=False, now_ns=0)
    stage.swaps.start(0)
    stage.swaps.gone(served, served.phase, 1)
    assert records.standing(served.identity).tries == 2


def test_a_version_that_an_operator_went_back_from_is_fit() -> None:
    records = proven(2)
    stage = Stage(records)
    before, served = version(2), version(1)
    stage.swaps.add(before, None, None, background=False, now_ns=0)
    stage.swaps.start(0)
    stage.swaps.add(served, before, None, background=True, now_ns=0)
    stage.swaps.start(0)
    stage.swaps.start(0)
    stage.swaps.recall("m", "version 2 is wanted again", 1)
    last = records.history("m")[-1]
    assert (last.ending, last.before, last.after) == (Ending.RECALLED, 1, 2)
    assert not unfit(records.history("m"))
    assert not records.standing(served.identity).tries


UNTRIED = "its inputs are not those of version 1"
X, Z = (TensorSpec(name=name, datatype=Datatype.FP32, shape=(2,)) for name in ("x", "z"))


def request(name: str) -> RequestHead:
    """One that names no version, for the input ``name``."""
    tensor = TensorHead(name=name, datatype="FP32", shape=(1, 2))
    return RequestHead(model_name="m", model_version="", inputs=(tensor,))


def replaced(records: MemoryRecords, wish: TrialWish) -> tuple[Stage, Served]:
    """Version 1 takes x, and 2, which serves in its place, takes z."""
    stage = Stage(records)
    old, new = version(1), version(2)
    old.model, new.model = replace(old.model, inputs=(X,)), replace(new.model, inputs=(Z,))
    for served, before in ((old, None), (new, old)):
        stage.swaps.add(served, before, wish, background=True, now_ns=0)
        stage.swaps.start(0)
    assert stage.ready[-1] is new
    return stage, new


@pytest.mark.parametrize("percent", [0.0, 50.0])
def test_a_version_that_cannot_be_tried_as_is_configured_says_so_where_it_serves(percent: float) -> None:
    records = proven(1)
    _, new = replaced(records, TrialWish(canary_percent=percent))
    (change,) = (each for each in records.history("m") if each.version == 2)
    assert change.ending is Ending.LIVE
    assert new.untried == (UNTRIED if percent else "")
    assert (f"without the configured trial: {UNTRIED}" in change.reason) == bool(percent)


@pytest.mark.parametrize(("name", "percent", "serves"), [("x", 50.0, 1), ("x", 0.0, 2), ("y", 50.0, 2)])
def test_requests_that_only_the_version_before_would_have_taken_are_errors_of_one_that_was_not_tried(
    name: str, percent: float, serves: int
) -> None:
    records = proven(1)
    stage, new = replaced(records, TrialWish(canary_percent=percent))
    for _ in range(1_000):
        stage.swaps.refused(new, request(name))
    stage.swaps.tick(1_000_000_000)
    last = records.history("m")[-1]
    assert (last.after, last.ending) == (serves, Ending.ROLLED_BACK if serves == 1 else Ending.LIVE)
    if serves == 1:
        assert "it refused 1000 requests that version 1 would have taken" in last.reason


def test_a_version_that_was_proven_here_and_is_gone_back_to_is_not_held_to_the_requests_of_another() -> None:
    records = proven(1, 2)
    stage, new = replaced(records, TrialWish(canary_percent=50.0))
    for _ in range(1_000):
        stage.swaps.refused(new, request("x"))
    stage.swaps.tick(1_000_000_000)
    assert [each.ending for each in records.history("m")][-1] is Ending.LIVE
