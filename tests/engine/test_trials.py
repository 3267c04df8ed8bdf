"""What is remembered of versions that come back, and who goes on when a version rests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.core.memory.budget import WaitsForOvercommit
from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.catalog import Catalog, CatalogVersion, TrialWish
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.reasons import (
    Crashed,
    Unheld,
    Untried,
    WaitsForServing,
    WaitsForTrialOf,
    WaitsForWanted,
)
from appliance.core.rollout.records import Ending, Proof, Standing
from appliance.core.rollout.retries import has_fallen
from appliance.core.rollout.version import Artifact, Version
from appliance.domain.assessment import Assessment
from appliance.domain.model import Unlike
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.engine.versions.history import unfit
from appliance.engine.versions.records import MemoryRecords
from tests.domain.sample import make_version
from tests.engine.rollout_rig import NOW_MS, RolloutRig


def proven(*numbers: int) -> MemoryRecords:
    return MemoryRecords(proofs=[(f"m/{number}@d", "box", Proof(None, proven=True)) for number in numbers])


def given_up(rig: RolloutRig, version: Version, reason: str, now_ns: int) -> None:
    """As what it goes through is over."""
    rig.carry_out(
        rig.core.trials.given_up(
            version, version.phase, Crashed(detail=reason, repeated=True), now_ns, noted=False
        ),
        now_ns,
    )


def gone(rig: RolloutRig, version: Version) -> None:
    """It is no longer wanted."""
    rig.carry_out(rig.core.trials.gone(version, version.phase, 1), 1)


def waits(version: Version) -> object:
    """For what."""
    return version.waiting


def fallen(rig: RolloutRig, version: Version) -> bool:
    return has_fallen(rig.records.standing(version.identity))


@pytest.mark.parametrize("resting", [False, True])
def test_a_proven_version_that_comes_back_after_it_was_given_up_is_fit_again(resting: bool) -> None:
    records = proven(1)
    rig = RolloutRig(records)
    rig.resting = resting
    served = rig.version(1)
    given_up(rig, served, "quarantined", 0)
    assert unfit(records.history("m")) == {1}
    rig.try_(served, fallen=fallen(rig, served))
    rig.start(0)
    assert rig.serving == [served]
    assert any(isinstance(action, do.Rest) for action in rig.done) == resting
    assert [change.ending for change in records.history("m")] == [Ending.GIVEN_UP, Ending.LIVE]
    assert not unfit(records.history("m"))
    assert not fallen(rig, served)


@pytest.mark.parametrize("resting", [False, True])
def test_a_restart_of_what_was_proven_is_no_line_of_its_history(resting: bool) -> None:
    records = proven(1)
    rig = RolloutRig(records)
    rig.resting = resting
    rig.try_(rig.version(1))
    rig.start(0)
    assert len(rig.serving) == 1
    assert not records.history("m")


@pytest.mark.parametrize("serves", [False, True])
def test_a_form_that_failed_says_nothing_of_the_version_that_serves_without_it(serves: bool) -> None:
    rig = RolloutRig(proven(1))
    served, packed = rig.version(1), rig.version(1)
    packed.spec = replace(packed.spec, artifact=Artifact.PACKED)
    rig.try_(served)
    rig.start(0)
    if serves:
        rig.try_(packed, served, TrialWish(), background=True)
    given_up(rig, packed, "it crashed twice", 0)
    assert fallen(rig, served) == (not serves)


def test_that_a_version_was_found_given_up_is_said_once() -> None:
    """In this process and in the next; and once more when it was tried again meanwhile."""
    records = MemoryRecords([("m/1@d", Standing(3, None, NOW_MS))])
    wanted = told.Wanted(
        catalog=Catalog(versions=(CatalogVersion(model=make_version("m", 1), fingerprint="d"),)),
        asked=frozenset(),
        wall_ms=NOW_MS,
    )
    for _ in range(2):
        rig = RolloutRig(records)
        for _ in range(2):
            rig.tell(wanted)
    assert [change.ending for change in records.history("m")] == [Ending.GIVEN_UP]
    version = rig.version(1)
    rig.carry_out(iter([do.note(version, Ending.LIVE)]))
    RolloutRig(records).tell(wanted)
    assert [change.ending for change in records.history("m")][1:] == [Ending.LIVE, Ending.GIVEN_UP]


def test_a_try_takes_as_long_as_since_its_load_began() -> None:
    records = MemoryRecords()
    rig = RolloutRig(records)
    rig.room, rig.waits_for = False, WaitsForOvercommit()
    rig.try_(rig.version(1))
    rig.start(0)
    rig.room = True
    rig.start(60_000_000_000)
    rig.start(60_000_000_000)
    assert [(change.ending, change.took_ms) for change in records.history("m")] == [(Ending.LIVE, 0)]


def test_a_version_that_begins_to_rest_lets_the_one_that_waits_for_it_be_tried() -> None:
    rig = RolloutRig(proven(1))
    rig.room, rig.waits_for = False, WaitsForOvercommit()
    resting, tried = rig.version(1), rig.version(2)
    rig.try_(resting)
    wish = TrialWish(canary_percent=50.0, hold=True)
    rig.try_(tried, None, wish, background=True)
    rig.start(0)
    rig.start(0)
    assert rig.stage_of(tried) == "parked", "there is nothing yet to try it beside"
    rig.resting = True
    rig.start(1)
    rig.start(1)
    assert rig.stage_of(tried) == "canary"
    assert rig.core.trials.splits == {resting.id: tried}


def test_a_version_that_is_replaced_while_it_is_watched_has_not_failed() -> None:
    """Else two versions that take turns in quick succession would use up their tries."""
    records = MemoryRecords()
    rig = RolloutRig(records)
    before: Version | None = None
    for number in (1, 2, 3):
        rig.try_(served := rig.version(number), before, now_ns=number)
        rig.start(number)
        rig.start(number)
        assert served in rig.serving
        before = served
    assert dict(records.standings) == {"m/3@d": Standing(1, None, NOW_MS)}, "which is the one that is watched"


def parked() -> tuple[RolloutRig, MemoryRecords, Version, Version]:
    """Version 1 serves, 3 is on trial beside it until somebody ends that, 5 is wanted and waits for it."""
    records = proven(1)
    rig = RolloutRig(records)
    serving, tried, waiting = rig.version(1), rig.version(3), rig.version(5)
    rig.try_(serving)
    rig.start(0)
    hold = TrialWish(canary_percent=10.0, hold=True)
    rig.try_(tried, serving, hold, background=True)
    rig.start(0)
    rig.start(0)
    rig.try_(waiting, serving, TrialWish(canary_percent=20.0), background=True)
    rig.start(0)
    rig.start(0)
    return rig, records, tried, waiting


@pytest.mark.parametrize("how", ["it is no longer wanted", "it is given up"])
def test_what_waits_for_a_trial_says_so_and_goes_on_when_that_ends(how: str) -> None:
    rig, _, tried, waiting = parked()
    assert (rig.stage_of(tried), rig.stage_of(waiting)) == ("canary", "parked")
    assert waits(waiting) == WaitsForTrialOf(version=3)
    if how == "it is given up":
        given_up(rig, tried, "quarantined", 1)
    else:
        gone(rig, tried)
    rig.start(1)
    assert (rig.stage_of(waiting), waits(waiting)) == ("canary", None)


def test_what_is_wanted_is_tried_before_what_is_only_to_be_tried_as_after_a_restart() -> None:
    """Whichever is loaded first: the other trial lasts until somebody ends it."""
    rig = RolloutRig(proven(1))
    serving, tried, wanted = rig.version(1), rig.version(3), rig.version(5)
    rig.try_(serving)
    rig.start(0)
    hold = TrialWish(canary_percent=10.0, hold=True)
    rig.try_(tried, serving, hold, background=True)
    rig.try_(wanted, serving, TrialWish(canary_percent=20.0), background=True)
    rig.opens = False
    rig.start(0)
    rig.start(0)
    rig.opens = True
    rig.open(tried)
    assert waits(tried) == WaitsForWanted()
    rig.open(wanted)
    rig.start(0)
    assert (wanted.phase, tried.phase) == (Phase.CANARY, Phase.PARKED)
    assert waits(tried) == WaitsForTrialOf(version=5)


def test_what_is_to_be_tried_beside_nothing_says_so() -> None:
    rig = RolloutRig()
    tried = rig.version(3)
    rig.try_(tried, None, TrialWish(canary_percent=10.0, hold=True))
    rig.start(0)
    rig.start(0)
    assert waits(tried) == WaitsForServing()


@pytest.mark.parametrize("how", ["the daemon is asked to stop", "it is no longer wanted"])
def test_what_waits_for_a_trial_has_its_try_back_when_it_leaves(how: str) -> None:
    """And only this one: what its tries before came to is not known."""
    rig, records, _, waiting = parked()
    assert records.standing(waiting.identity).tries == 1
    records.add_try(waiting.identity, NOW_MS, again=False)
    if how == "it is no longer wanted":
        gone(rig, waiting)
    else:
        rig.tell(told.Stopping())
        rig.tell(told.Stopping())
    assert records.standing(waiting.identity).tries == 1


@pytest.mark.parametrize("crashed", [False, True])
def test_a_load_that_is_abandoned_gives_its_try_back_unless_it_crashed(crashed: bool) -> None:
    records = MemoryRecords()
    rig = RolloutRig(records)
    rig.opens = False
    served = rig.version(1)
    rig.try_(served)
    rig.start(0)
    rig.start(0)
    rig.tell(told.Stopping())
    assert records.standing(served.identity).tries == 1, "a load may be what the box does not survive"
    if crashed:
        rig.tell(told.Crashed(served.id, "died", repeated=False), 1)
    gone(rig, served)
    assert records.standing(served.identity).tries == crashed


def test_what_never_began_has_no_try_to_give_back() -> None:
    records = MemoryRecords([("m/1@d", Standing(2, None, NOW_MS))])
    rig = RolloutRig(records)
    rig.room, rig.waits_for = False, WaitsForOvercommit()
    served = rig.version(1)
    rig.try_(served)
    rig.start(0)
    gone(rig, served)
    assert records.standing(served.identity).tries == 2


def test_a_version_that_an_operator_went_back_from_is_fit() -> None:
    records = proven(2)
    rig = RolloutRig(records)
    before, served = rig.version(2), rig.version(1)
    rig.try_(before)
    rig.start(0)
    before.retiring = True
    rig.try_(served, before, None, background=True)
    rig.start(0)
    rig.start(0)
    entry = CatalogVersion(model=before.model, fingerprint="d")
    rig.tell(told.Wanted(catalog=Catalog(versions=(entry,)), asked=frozenset(), wall_ms=NOW_MS), 1)
    last = records.history("m")[-1]
    assert (last.ending, last.before, last.after) == (Ending.RECALLED, 1, 2)
    assert not unfit(records.history("m"))
    assert not records.standing(served.identity).tries


UNTRIED = "its inputs are not those of version 1"
X, Z = (TensorSpec(name=name, datatype=Datatype.FP32, shape=(2,)) for name in ("x", "z"))


def refuse(rig: RolloutRig, version: Version, name: str) -> None:
    """A request that names no version, for the input ``name``, was none for ``version``."""
    before = rig.core.awaits_requests_of(version.id)
    if before is not None and before.model.inputs[0].name == name:
        rig.tell(told.Missed(version.id))


def replaced(records: MemoryRecords, wish: TrialWish, *, allowed: bool = False) -> tuple[RolloutRig, Version]:
    """Version 1 takes x, and 2, which serves in its place, takes z; ``allowed``: clients change along with it."""
    rig = RolloutRig(records)
    old = rig.version(1, model=replace(make_version("m", 1), inputs=(X,)))
    new = rig.version(2, model=replace(make_version("m", 2), inputs=(Z,)))
    for served, before in ((old, None), (new, old)):
        rig.try_(served, before, wish, background=True, allowed=allowed)
        rig.start(0)
        rig.start(0)
    assert new in rig.serving
    return rig, new


@pytest.mark.parametrize("percent", [0.0, 50.0])
def test_a_version_that_cannot_be_tried_as_is_configured_says_so_where_it_serves(percent: float) -> None:
    records = proven(1)
    _, new = replaced(records, TrialWish(canary_percent=percent))
    (change,) = (each for each in records.history("m") if each.version == 2)
    assert change.ending is Ending.LIVE
    assert new.untried == (Untried(what=Unlike.INPUTS, version=1) if percent else None)
    assert (f"without the configured trial: {UNTRIED}" in change.reason) == bool(percent)


@pytest.mark.parametrize(
    ("name", "percent", "serves"), [("x", 50.0, 1), ("x", 0.0, 1), ("y", 0.0, 2), ("y", 50.0, 2)]
)
def test_requests_that_only_the_version_before_would_have_taken_are_errors_of_one_that_is_new(
    name: str, percent: float, serves: int
) -> None:
    records = proven(1)
    rig, new = replaced(records, TrialWish(canary_percent=percent))
    for _ in range(1_000):
        refuse(rig, new, name)
    rig.start(1_000_000_000)
    last = records.history("m")[-1]
    assert (last.after, last.ending) == (serves, Ending.ROLLED_BACK if serves == 1 else Ending.LIVE)
    if serves == 1:
        assert "it refused 1000 requests that version 1 would have taken" in last.reason


@pytest.mark.parametrize("said", ["with the wish", "while it is watched"])
def test_requests_of_clients_that_were_to_change_do_not_lead_back(said: str) -> None:
    records = proven(1)
    rig, new = replaced(records, TrialWish(), allowed=said == "with the wish")
    if said == "while it is watched":
        entry = CatalogVersion(model=new.model, fingerprint="d", interface_change=True)
        list(rig.core.trials.renew(new, entry, 0))
    for _ in range(1_000):
        refuse(rig, new, "x")
    rig.start(1_000_000_000)
    assert new in rig.serving


def test_a_version_that_was_proven_here_and_is_gone_back_to_is_not_held_to_the_requests_of_another() -> None:
    records = proven(1, 2)
    rig, new = replaced(records, TrialWish(canary_percent=50.0))
    for _ in range(1_000):
        refuse(rig, new, "x")
    rig.start(1_000_000_000)
    assert [each.ending for each in records.history("m")][-1] is Ending.LIVE


@pytest.mark.parametrize(("order", "proven_here"), [(True, True), (False, True), (True, False)])
def test_an_order_of_what_is_proven_here_is_carried_out_at_once(order: bool, proven_here: bool) -> None:
    """Whatever is configured, and compared with nothing; there is nothing to go back to. Else it is a proposal."""
    rig = RolloutRig(proven(1, 2) if proven_here else proven(1))
    serving, wanted = rig.version(1), rig.version(2)
    rig.try_(serving)
    rig.start()
    serving.retiring = True
    wish = TrialWish(canary_percent=50.0)
    rig.try_(wanted, serving, wish, background=True, order=order)
    for _ in range(2):
        rig.start()
    at_once = order and proven_here
    assert wanted.phase is (Phase.LIVE if at_once else Phase.CANARY)
    assert serving.phase is (Phase.DRAINING if at_once else Phase.LIVE)
    counted = [action for action in rig.done if isinstance(action, do.RecordAttempts)]
    assert bool(counted) == (not proven_here)


@pytest.mark.parametrize(
    ("cases", "told"), [((3, 0), True), ((3, 3), False), ((0, 0), False), ((0, 3), False)]
)
def test_that_a_version_has_no_golden_set_is_told_where_the_one_before_has_one(
    cases: tuple[int, int], told: bool
) -> None:
    records = MemoryRecords(
        proofs=[
            (f"m/{number}@d", "box", Proof(Assessment(held, (), 1, 9, 1_000, 2_000, 0), proven=False))
            for number, held in enumerate(cases, 1)
        ]
    )
    rig = RolloutRig(records)
    old, new = rig.version(1), rig.version(2)
    for served, before in ((old, None), (new, old)):
        rig.try_(served, before, background=True)
        rig.start(0)
        rig.start(0)
    assert new in rig.serving
    said = [each for each in rig.done if isinstance(each, do.Report) and "golden set" in each.what]
    assert [(each.fields, each.reason) for each in said] == [({"model": "m/2"}, Unheld(version=1))] * told
    words = "without a golden set: the version before it, 1, has one"
    assert (words in records.history("m")[-1].reason) is told
