"""A version that clients of the one that serves could not talk to does not go live unless somebody says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.catalog import Catalog, CatalogVersion, TrialWish
from appliance.core.rollout.phase import SERVING, Phase
from appliance.core.rollout.reasons import CannotBeTried, Failed, InterfaceChanged
from appliance.core.rollout.records import Ending, Proof
from appliance.domain.interface import ALLOWED_PARAMETER
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.engine.versions.records import MemoryRecords
from appliance.engine.versions.wording import remark_text
from tests.domain.sample import make_version
from tests.engine.rollout_rig import NOW_MS, RolloutRig

PROVEN = Proof(None, proven=True)


def model(number: int, *names: str, **parameters: str) -> ModelVersion:
    inputs = tuple(TensorSpec(name=name, datatype=Datatype.FP32, shape=(4,)) for name in names)
    return make_version("m", number, inputs=inputs, parameters=dict(parameters))


FIRST = CatalogVersion(model=model(1, "x"), fingerprint="a")
OTHER = CatalogVersion(model=model(2, "z"), fingerprint="b")


def want(rig: RolloutRig, *entries: CatalogVersion, asked: bool = False) -> None:
    """These are wanted from now on; ``asked``: by an operator who wants them tried again."""
    names = frozenset({"m"} if asked else ())
    rig.tell(told.Wanted(catalog=Catalog(versions=entries), asked=names, wall_ms=NOW_MS))
    for _ in range(2):
        rig.start()


def began(records: MemoryRecords | None = None) -> RolloutRig:
    """Version 1 serves."""
    rig = RolloutRig(records)
    want(rig, FIRST)
    assert serving(rig) == [1]
    return rig


def serving(rig: RolloutRig) -> list[int]:
    return [each.model.version for each in rig.core.registry.named() if each.phase in SERVING]


def told_of(rig: RolloutRig, number: int) -> list[Ending]:
    return [each.ending for each in rig.records.history("m") if each.version == number]


def loads(rig: RolloutRig) -> int:
    return sum(isinstance(action, do.Load) for action in rig.done)


def test_a_proposal_that_clients_cannot_talk_to_is_held_back_before_anything_is_loaded() -> None:
    rig = began()
    want(rig, OTHER)
    held = rig.core.registry.find(("m", 2))
    assert (serving(rig), loads(rig)) == ([1], 1)
    assert held is not None
    assert isinstance(held.setback, InterfaceChanged)
    assert remark_text(held.setback) == (
        "is held back: clients of version 1, which serves, could not talk to it: input 'x' was FP32 [-1,4], is absent; "
        "input 'z' was absent, is FP32 [-1,4]; the parameter allow_interface_change 'true' in its config.pbtxt has it "
        "go live all the same"
    )
    assert told_of(rig, 2) == [Ending.GIVEN_UP]


def test_the_reason_names_the_first_changes_and_counts_the_others() -> None:
    rig = began()
    packaged = replace(OTHER, model=replace(model(2, "z", "w", "u", "n" * 200), digest="0" * 64))
    want(rig, packaged)
    held = rig.core.registry.find(("m", 2))
    assert held is not None
    assert held.setback is not None
    said = remark_text(held.setback)
    assert "; and 2 more; 'appliance model want m/2 --allow-interface-change'" in said
    assert len(said) < 400


@pytest.mark.parametrize("asked", [False, True])
def test_what_is_held_back_stays_so_however_often_it_is_wanted(asked: bool) -> None:
    rig = began()
    for _ in range(3):
        want(rig, OTHER, asked=asked)
    assert (serving(rig), loads(rig)) == ([1], 1)
    assert told_of(rig, 2) == [Ending.GIVEN_UP], "said once"


@pytest.mark.parametrize(
    "allowed",
    [
        replace(OTHER, interface_change=True),
        replace(OTHER, by_hand=True),
        replace(OTHER, model=model(2, "z", **{ALLOWED_PARAMETER: "true"})),
    ],
)
@pytest.mark.parametrize("held_before", [False, True])
def test_it_goes_live_where_the_wish_or_its_configuration_says_so_at_once_or_later(
    allowed: CatalogVersion, held_before: bool
) -> None:
    rig = began()
    if held_before:
        want(rig, OTHER)
    want(rig, allowed)
    assert serving(rig)[-1] == 2


def test_the_parameter_set_to_false_allows_nothing() -> None:
    rig = began()
    want(rig, replace(OTHER, model=model(2, "z", **{ALLOWED_PARAMETER: "false"})))
    assert serving(rig) == [1]


@pytest.mark.parametrize("order", [False, True])
def test_going_back_to_what_is_proven_here_is_never_held(order: bool) -> None:
    rig = RolloutRig()
    for entry in (FIRST, OTHER):
        rig.recorder.perform(do.Prove(entry.identity, entry.model, PROVEN))
    want(rig, OTHER)
    want(rig, replace(FIRST, order=order))
    assert rig.core.registry.current("m") is rig.core.registry.find(("m", 1))


def test_an_order_of_what_is_not_proven_is_a_proposal_and_held() -> None:
    rig = began()
    want(rig, replace(OTHER, order=True))
    assert serving(rig) == [1]


def test_other_files_of_the_version_that_serves_are_held_as_another_version_is() -> None:
    rig = began()
    new = CatalogVersion(model=model(1, "z"), fingerprint="b")
    for _ in range(2):
        want(rig, new)
        assert isinstance(rig.core.registry.setbacks[("m", 1)], InterfaceChanged)
    assert (serving(rig), loads(rig)) == ([1], 1)
    want(rig, replace(new, interface_change=True))
    current = rig.core.registry.find(("m", 1))
    assert current is not None
    assert current.model.inputs[0].name == "z"


def test_what_can_be_talked_to_goes_live_and_what_is_held_leaves_for_it() -> None:
    rig = began()
    want(rig, OTHER)
    want(rig, CatalogVersion(model=model(3, "x"), fingerprint="c"))
    assert serving(rig)[-1] == 3


def test_where_nothing_serves_there_is_nothing_to_be_compared_with() -> None:
    rig = RolloutRig()
    want(rig, OTHER)
    assert serving(rig) == [2]


def test_a_trial_beside_what_serves_says_that_it_cannot_be() -> None:
    rig = began()
    want(rig, FIRST, replace(OTHER, trial=TrialWish(shadow_percent=50.0, hold=True)))
    on_trial = rig.core.registry.find(("m", 2))
    assert on_trial is not None
    assert on_trial.phase is Phase.FAILED
    assert on_trial.setback == Failed(why=CannotBeTried(unlike=True))


def test_what_was_only_on_trial_and_still_loads_is_held_when_it_is_to_serve() -> None:
    rig = began()
    rig.opens = False
    want(rig, FIRST, replace(OTHER, trial=TrialWish(shadow_percent=50.0, hold=True)))
    loading = rig.core.registry.find(("m", 2))
    assert loading is not None
    want(rig, OTHER)
    rig.open(loading)
    assert serving(rig) == [1]


def test_a_lower_version_beside_the_one_that_stays_takes_no_place() -> None:
    rig = RolloutRig()
    second = replace(FIRST, model=model(2, "x"))
    want(rig, second)
    want(rig, replace(OTHER, model=model(1, "z")), second)
    assert serving(rig) == [1, 2]


def test_a_proof_of_the_same_files_says_nothing_of_another_configuration() -> None:
    rig = RolloutRig()
    rig.recorder.perform(do.Prove(FIRST.identity, FIRST.model, PROVEN))
    want(rig, FIRST)
    want(rig, replace(FIRST, model=replace(FIRST.model, max_batch_size=4)))
    (setback,) = rig.core.registry.setbacks.values()
    assert "largest batch was 8, is 4" in remark_text(setback)
    assert (serving(rig), loads(rig)) == ([1], 1)
