"""What is wanted, over time: what was given up is tried again as it is wanted then, and the end of a model is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.attempt import Contender
from appliance.core.rollout.catalog import Catalog, CatalogVersion, TrialWish
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import EngineSlower, LoadRefused, NotCounted, ServesAgain
from appliance.core.rollout.records import Change, Ending, Proof
from appliance.core.rollout.version import Artifact, Version
from appliance.domain.assessment import Assessment
from appliance.domain.model import WeightsFile
from appliance.domain.side_by_side import SideBySide
from appliance.engine.versions.records import MemoryRecords
from appliance.engine.versions.wording import remark_text
from tests.domain.sample import make_version
from tests.engine.rollout_rig import NOW_MS, RolloutRig

LATER_NS = 601 * 1_000_000_000
PROVEN = Proof(None, proven=True)


def want(rig: RolloutRig, *entries: CatalogVersion) -> None:
    """These are wanted from now on."""
    rig.tell(told.Wanted(catalog=Catalog(versions=entries), asked=frozenset(), wall_ms=NOW_MS))


def test_a_try_takes_what_is_wanted_by_then() -> None:
    rig = RolloutRig()
    rig.opens = False
    first = CatalogVersion(model=make_version("m", 1), fingerprint="damaged")
    want(rig, first)
    for _ in range(2):
        rig.start()
    (version,) = rig.core.registry.versions.values()
    rig.tell(told.Refused(version.id, "it is damaged"))
    rig.tell(told.Changed(NOW_MS))
    last = replace(first, trial=TrialWish(canary_percent=10.0))
    want(rig, last)
    rig.tell(told.Changed(NOW_MS))
    rig.start()
    assert version.phase is Phase.FAILED
    rig.start(LATER_NS)
    (again,) = (each for each in rig.core.registry.versions.values() if each.phase is not Phase.DRAINING)
    assert again is not version
    assert rig.core.trials.attempts[again.id].trial.wish == last.trial
    assert any(isinstance(action, do.Retried) for action in rig.done)


def version(rig: RolloutRig, number: int, phase: Phase, files: str = "d") -> Version:
    found = rig.version(number, files)
    found.phase = phase
    return found


def let_go(rig: RolloutRig) -> None:
    """The last requests of all that leaves have ended."""
    rig.drain(0)
    rig.tell(told.Drained(tuple(each.id for each in rig.core.registry.leaving)))


def test_other_files_of_a_version_that_begin_out_of_memory_take_its_place() -> None:
    rig = RolloutRig()
    registry = rig.core.registry
    old, new = version(rig, 1, Phase.LIVE, "a"), version(rig, 1, Phase.QUEUED, "b")
    registry.incoming[new.slot] = new
    rig.try_(new, None)
    rig.carry_out(rig.core.succession.rest([rig.core.trials.attempts[new.id]], 0))
    assert registry.find(("m", 1)) is new
    assert (new.phase, old.phase) == (Phase.LIVE, Phase.DRAINING)
    assert not registry.incoming
    assert do.Route(new.id, counted=True) in rig.done, "what was counted of the version goes on"
    let_go(rig)
    assert list(registry.versions.values()) == [new]


def test_a_version_that_is_alone_with_its_name_rests_where_it_stands() -> None:
    rig = RolloutRig()
    found = rig.version(1)
    rig.try_(found, None)
    rig.carry_out(rig.core.succession.rest([rig.core.trials.attempts[found.id]], 0))
    assert rig.core.registry.find(("m", 1)) is found
    assert found.phase is Phase.LIVE
    assert not rig.core.registry.leaving


@pytest.mark.parametrize(
    ("phase", "other", "told_of"),
    [
        (Phase.LIVE, None, [(Ending.WITHDRAWN, 1, 0)]),
        (Phase.FAILED, None, []),
        (Phase.LIVE, Phase.LIVE, []),
    ],
    ids=["the_last_that_served", "none_served", "another_serves"],
)
def test_a_model_that_is_not_wanted_any_more_has_that_in_its_history(
    phase: Phase, other: Phase | None, told_of: list[tuple[Ending, int, int]]
) -> None:
    rig = RolloutRig()
    version(rig, 1, phase).retiring = True
    if other is not None:
        version(rig, 2, other)
    for _ in range(2):
        rig.carry_out(rig.core.succession.retire(0))
    assert rig.core.registry.find(("m", 1)) is None
    history = rig.records.history("m")
    assert [(change.ending, change.before, change.after) for change in history] == told_of


def formed(rig: RolloutRig) -> Version:
    """A version that serves, for which there may be a form."""
    weights = WeightsFile(path="w", size=1)
    model = replace(make_version("m", 1), forms="/nowhere", digest="d" * 64, weights=weights)
    found = rig.version(1, "a", model)
    found.phase = Phase.LIVE
    return found


def refusals(rig: RolloutRig) -> list[do.RefuseForm]:
    """Forms that are not used again."""
    return [action for action in rig.done if isinstance(action, do.RefuseForm)]


def changing(rig: RolloutRig, served: Version) -> Version:
    """It changes over to its form, and is loading."""
    rig.opens = False
    rig.tell(told.FormBuilt(served.id))
    return rig.core.registry.incoming[served.slot]


def test_a_form_that_fails_is_no_trouble_of_the_version_that_serves_without_it() -> None:
    rig = RolloutRig()
    served = formed(rig)
    packed = changing(rig, served)
    rig.carry_out(rig.core.succession.give_up(packed, LoadRefused(detail="it answers wrongly"), 0))
    assert not rig.core.registry.setbacks
    assert not rig.core.registry.incoming
    assert [refusal.version for refusal in refusals(rig)] == [packed.id]


def with_engine(rig: RolloutRig, runtime: str = "tensorrt") -> Version:
    """A version that serves without its engine."""
    served = formed(rig)
    served.spec = replace(served.spec, model=replace(served.model, runtime=runtime))
    rig.opens = False
    return served


SLOW = (SideBySide(1, 41, 900, 1_000, 0.9), SideBySide(8, 41, 2_900, 1_000, 2.9))


def test_an_engine_that_is_slower_is_never_loaded_and_says_nothing_against_its_version() -> None:
    rig = RolloutRig()
    served = with_engine(rig)
    rig.tell(told.FormBuilt(served.id, SLOW))
    rig.start()
    assert not [action for action in rig.done if isinstance(action, do.Load | do.ReserveMemory)]
    assert not rig.core.registry.incoming
    assert not rig.core.registry.setbacks
    assert not rig.core.trials.attempts
    assert (rig.core.registry.find(served.slot), served.phase) == (served, Phase.LIVE)
    (refusal,) = refusals(rig)
    assert (refusal.serving, refusal.passing) == (served.id, False)
    assert isinstance(refusal.reason, EngineSlower)
    assert (refusal.reason.engine_ns, refusal.reason.session_ns, refusal.reason.rows) == (2_900, 1_000, 8)
    (line,) = rig.records.history("m")
    assert (line.ending, line.artifact, line.after) == (Ending.ABANDONED, Artifact.PACKED, 1)
    said = [action.what for action in rig.done if isinstance(action, do.Report)]
    assert said == ["packed form abandoned"]
    assert not [action for action in rig.done if isinstance(action, do.Reject)]


@pytest.mark.parametrize(("runtime", "compared"), [("tensorrt", SLOW[:1]), ("tensorrt", ()), ("onnx", SLOW)])
def test_an_engine_that_is_no_slower_and_what_is_no_engine_are_loaded(
    runtime: str, compared: tuple[SideBySide, ...]
) -> None:
    rig = RolloutRig()
    served = with_engine(rig, runtime)
    rig.tell(told.FormBuilt(served.id, compared))
    assert served.slot in rig.core.registry.incoming
    assert not refusals(rig)


@pytest.mark.parametrize(
    ("session_ns", "runtime", "takes"),
    [
        (1_000_000, "tensorrt", True),
        (100_000, "tensorrt", False),
        (None, "tensorrt", True),
        (1_000_000, "onnx", False),
    ],
)
def test_the_session_of_the_next_version_is_compared_with_the_session_of_the_one_before_not_with_its_engine(
    session_ns: int | None, runtime: str, takes: bool
) -> None:
    rig = RolloutRig()
    served = with_engine(rig, runtime)
    served.packed = True
    served.assessment = assessed(50_000)
    if session_ns is not None:
        rig.recorder.perform(
            do.Prove(served.identity, served.model, Proof(assessed(session_ns), proven=True))
        )
    rig.opens = True
    new = rig.version(2, "b", replace(served.model, version=2))
    new.phase = Phase.LOADING
    rig.try_(new, served)
    new.assessment = assessed(2_000_000)
    rig.tell(told.Opened(new.id))
    assert (new.phase is Phase.WATCHED) is takes


@pytest.mark.parametrize(
    ("rows", "run_ns", "seeds", "takes"),
    [
        (8, 9_000_000, (), True),
        (8, 9_000_000, ((1, 3_900_000),), True),
        (8, 9_000_000, ((1, 9_000_000),), False),
        (8, 90_000_000, (), False),
        (1, 9_000_000, (), False),
    ],
)
def test_the_rows_for_which_a_package_promises_something_do_not_keep_it_from_being_compared(
    rows: int, run_ns: int, seeds: tuple[tuple[int, int], ...], takes: bool
) -> None:
    """The session of the version before took a millisecond for one row."""
    rig = RolloutRig()
    served = with_engine(rig)
    served.packed = True
    served.assessment = assessed(50_000)
    known = Proof(assessed(1_000_000), proven=True)
    rig.recorder.perform(do.Prove(served.identity, served.model, known))
    rig.opens = True
    new = rig.version(2, "b", replace(served.model, version=2))
    new.phase = Phase.LOADING
    rig.try_(new, served)
    new.assessment, new.seeds = assessed(run_ns, rows), seeds
    rig.tell(told.Opened(new.id))
    assert (new.phase is Phase.WATCHED) is takes


@pytest.mark.parametrize(
    ("runtime", "known", "assesses"),
    [("tensorrt", False, True), ("tensorrt", True, False), ("onnx", False, False)],
)
def test_the_first_version_of_a_model_with_engines_is_measured_for_the_next_one(
    runtime: str, known: bool, assesses: bool
) -> None:
    """Once it is known it may run from its engine, which says nothing of its session."""
    rig = RolloutRig()
    first = with_engine(rig, runtime)
    first.phase = Phase.LOADING
    if known:
        rig.recorder.perform(do.Prove(first.identity, first.model, Proof(None, proven=True)))
    rig.core.trials.begin(Contender(version=first, wish=TrialWish(), background=True), 0)
    assert rig.core.trials.attempts[first.id].load_wish.assess is assesses


@pytest.mark.parametrize("then_ns", [1_200_000, 1_300_000])
def test_an_engine_that_was_slow_when_measured_apart_is_tried_anew_with_new_figures(then_ns: int) -> None:
    """It may have been a neighbour: few runs of it were held against few of its session at another time."""
    rig = RolloutRig()
    served = with_engine(rig)
    served.assessment = assessed(1_000_000)
    for run_ns in (1_300_000, then_ns):
        rig.tell(told.FormBuilt(served.id))
        packed = rig.core.registry.incoming[served.slot]
        assert packed.assessment is None
        rig.start()
        rig.tell(told.Loaded(packed.id, assessed(run_ns), (), packed=True))
        rig.tell(told.Opened(packed.id))
    assert (packed.phase is Phase.WATCHED) is (then_ns <= 1_250_000)
    assert {refusal.passing for refusal in refusals(rig)} == {True}
    assert "once more when the appliance starts anew" in remark_text(refusals(rig)[0].reason)
    assert not rig.core.registry.setbacks


def assessed(p50_ns: int, rows: int = 1) -> Assessment:
    """What runs of so many rows take."""
    return Assessment(0, (), rows, 5, p50_ns, p50_ns, 0)


@pytest.mark.parametrize(("packed", "crashed"), [(False, False), (True, False), (False, True)])
def test_a_try_that_came_to_no_load_does_not_cost_the_form(packed: bool, crashed: bool) -> None:
    rig = RolloutRig()
    rig.room = False
    new = changing(rig, formed(rig))
    new.packed = packed
    attempt = rig.core.trials.attempts[new.id]
    attempt.trial.crashes = int(crashed)
    rig.carry_out(rig.core.trials.fail(attempt, NotCounted(problem="the disk is full"), 0))
    assert bool(refusals(rig)) == (packed or crashed)


@pytest.mark.parametrize("packed", [False, True])
def test_what_runs_from_a_form_already_does_not_change_over_to_it(packed: bool) -> None:
    rig = RolloutRig()
    served = formed(rig)
    served.packed = packed
    rig.opens = False
    rig.tell(told.FormBuilt(served.id))
    assert len(rig.core.registry.incoming) == (not packed)


def test_what_is_made_of_a_version_is_forgotten_when_all_of_it_is_gone() -> None:
    rig = RolloutRig()
    served = formed(rig)
    packed = changing(rig, served)
    rig.core.registry.incoming.clear()
    rig.carry_out(rig.core.succession.place(packed, 0))
    let_go(rig)
    forgotten = [action for action in rig.done if isinstance(action, do.ForgetForm)]
    assert not forgotten, "it is still here, from its form"
    rig.carry_out(rig.core.succession.leave(packed, 0))
    let_go(rig)
    forgotten = [action for action in rig.done if isinstance(action, do.ForgetForm)]
    assert forgotten == [do.ForgetForm(served.identity)]


@pytest.mark.parametrize("order", [True, False])
def test_an_order_is_no_proposal(order: bool) -> None:
    """A version that was proven here, served, and is ordered back later."""
    rig = RolloutRig()
    first = CatalogVersion(model=make_version("m", 1), fingerprint="a")
    second = CatalogVersion(model=make_version("m", 2), fingerprint="b")
    rig.recorder.perform(do.Prove("m/1@a", first.model, PROVEN))
    want(rig, second)
    for _ in range(2):
        rig.start()
    want(rig, replace(first, order=order))
    rig.start()
    phases = {each.model.version: each.phase for each in rig.core.registry.versions.values()}
    at_once = {1: Phase.LIVE, 2: Phase.DRAINING}
    assert phases == (at_once if order else {1: Phase.WATCHED, 2: Phase.STANDBY})


def test_what_an_order_leaves_serves_no_more_although_it_is_to_be_tried() -> None:
    rig = RolloutRig()
    first = CatalogVersion(model=make_version("m", 1), fingerprint="a", order=True)
    second = CatalogVersion(model=make_version("m", 2), fingerprint="b")
    rig.recorder.perform(do.Prove("m/1@a", first.model, PROVEN))
    want(rig, second)
    for _ in range(2):
        rig.start()
    want(rig, first, replace(second, trial=TrialWish(canary_percent=20.0, hold=True)))
    rig.start()
    current = rig.core.registry.current("m")
    assert current is not None
    assert current.model.version == 1


@pytest.mark.parametrize(("order", "proven"), [(True, True), (True, False), (False, True)])
def test_what_an_operator_waits_for_loads_in_the_normal_classes(order: bool, proven: bool) -> None:
    """A box with nothing idle would never get to it."""
    rig = RolloutRig()
    want(rig, CatalogVersion(model=make_version("m", 2), fingerprint="b"))
    rig.start()
    rig.opens = False
    back = CatalogVersion(model=make_version("m", 1), fingerprint="a", order=order)
    if proven:
        rig.recorder.perform(do.Prove(back.identity, back.model, PROVEN))
    want(rig, back)
    (attempt,) = [each for each in rig.core.trials.attempts.values() if each.version.model.version == 1]
    assert attempt.load_wish.background
    assert attempt.load_wish.yields == (not (order and proven))


@pytest.mark.parametrize("loads", [True, False])
def test_an_order_is_carried_out_where_a_proposal_was_begun_and_costs_nothing_where_it_cannot_load(
    loads: bool,
) -> None:
    rig = RolloutRig(config=RolloutPolicy(watch_s=600.0, canary_percent=10.0))
    first = CatalogVersion(model=make_version("m", 1), fingerprint="a")
    second = CatalogVersion(model=make_version("m", 2), fingerprint="b")
    for entry in (first, second):
        rig.recorder.perform(do.Prove(entry.identity, entry.model, PROVEN))
    want(rig, second)
    rig.start()
    rig.opens = loads
    want(rig, first)
    rig.start()
    old, new = rig.core.registry.of("m")[::-1]
    assert (old.phase, new.phase) == (Phase.LIVE, Phase.CANARY if loads else Phase.LOADING)
    want(rig, replace(first, order=True))
    if not loads:
        rig.tell(told.Refused(new.id, "it is damaged"))
    assert (old.phase, new.phase) == ((Phase.DRAINING, Phase.LIVE) if loads else (Phase.LIVE, Phase.FAILED))


@pytest.mark.parametrize(
    ("ending", "was", "told_of"),
    [
        (Ending.LIVE, Phase.CANARY, (2, 3)),
        (Ending.REFUSED, Phase.LOADING, (2, 2)),
        (Ending.ROLLED_BACK, Phase.CANARY, (2, 2)),
        (Ending.ROLLED_BACK, Phase.WATCHED, (3, 2)),
    ],
)
def test_which_version_served(ending: Ending, was: Phase, told_of: tuple[int, int]) -> None:
    rig = RolloutRig()
    before, version = rig.version(2), rig.version(3)
    rig.try_(version, before)
    rig.carry_out(iter([rig.core.trials.attempts[version.id].came_out(ending, was, ServesAgain(), 0)]))
    (change,) = rig.records.history("m")
    assert (change.before, change.after) == told_of


def change(version: int, ending: Ending, before: int, after: int, name: str = "m") -> Change:
    identity = f"{name}/{version}@files"
    return Change(
        at_ms=1, name=name, version=version, identity=identity, ending=ending, before=before, after=after
    )


LIVE = change(1, Ending.LIVE, 0, 1)


@pytest.mark.parametrize(
    ("history", "wanted", "withdrawn"),
    [
        ([LIVE], set(), 1),
        ([LIVE], {"m"}, 0),
        ([LIVE], {"other"}, 1),
        ([LIVE, change(2, Ending.LIVE, 1, 2)], set(), 2),
        ([LIVE, change(2, Ending.REFUSED, 1, 1)], set(), 1),
        ([LIVE, change(1, Ending.GIVEN_UP, 1, 0)], set(), 0),
        ([LIVE, change(1, Ending.WITHDRAWN, 1, 0)], set(), 0),
        ([change(2, Ending.ABANDONED, 3, 3)], set(), 3),
        ([], set(), 0),
    ],
    ids=[
        "served",
        "wanted",
        "another_wanted",
        "the_later",
        "the_one_before",
        "given_up",
        "told",
        "old",
        "new",
    ],
)
def test_what_served_and_is_wanted_no_more_at_the_start_was_withdrawn(
    history: list[Change], wanted: set[str], withdrawn: int
) -> None:
    records = MemoryRecords()
    for each in [*history, change(5, Ending.LIVE, 0, 5, "n")]:
        records.happened(each)
    for _ in range(2):
        rig = RolloutRig(records)
        rig.opens = False
        want(
            rig,
            *(CatalogVersion(model=make_version(name, 7), fingerprint="x") for name in {*wanted, "n"}),
        )
    more = records.history("m")[len(history) :]
    assert len(more) == bool(withdrawn)
    for each in more:
        assert (each.ending, each.version, each.before, each.after) == (
            Ending.WITHDRAWN, withdrawn, withdrawn, 0,
        )  # fmt: skip
        assert each.at_ms == NOW_MS
        assert each.identity == ("" if withdrawn == 3 else f"m/{withdrawn}@files")
        assert "when the appliance started" in each.reason
    assert len(records.history("n")) == 1
