"""Memory for versions on their way to serving, and what those that serve take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.config.residency import ResidencyConfig
from appliance.core.memory.residency_port import Form, Kept
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.wish import TrialWish
from appliance.engine.control.lodging import (
    KEPT,
    PATIENCE_NS,
    PROCESS_BYTES,
    SPARE_BYTES,
    Lodging,
    Room,
    Stay,
)
from appliance.engine.requests.costs import Costs
from appliance.engine.versions.diversion import Diversion
from appliance.engine.versions.records import Cost, MemoryRecords
from appliance.engine.versions.routes import Served
from appliance.engine.versions.wording import wait_text
from appliance.telemetry.meter import VersionMeter
from appliance.workers.port import ModelLoaded
from tests.domain.sample import make_version

MB = 1_000_000
NOBODY = Stay(0, 0)


def version(number: int, size_bytes: int) -> Served:
    model = replace(make_version("m", number), file_bytes=size_bytes - PROCESS_BYTES)
    return Served(id=number, model=model, fingerprint="", meter=VersionMeter("m", number))


def serving(lodging: Lodging, number: int, size_bytes: int) -> Served:
    served = version(number, size_bytes)
    served.phase = Phase.LIVE
    lodging.measured(served, ModelLoaded(1, number, (), 1, size_bytes - PROCESS_BYTES))
    return served


def said(room: Room) -> str:
    assert room.reason is not None
    return wait_text(room.reason)


def nothing(name: str) -> None:
    """What serves under a name."""


def is_aside(name: str) -> bool:
    """What was unloaded by hand."""
    return name == "unloaded"


@pytest.mark.parametrize("evict", [True, False])
@pytest.mark.parametrize("weights", [90, 1])
def test_mapped_weights_count_whether_or_not_they_can_be_let_go(evict: bool, weights: int) -> None:
    lodging = Lodging(ResidencyConfig(evict_weights=evict), 100 * MB)
    served = version(1, 10 * MB)
    lodging.measured(served, ModelLoaded(1, 1, (), 1, 10 * MB, None, weights * MB))
    footprint = lodging.footprint(served)
    assert footprint.bytes == (10 + weights) * MB + PROCESS_BYTES
    assert footprint.evictable_bytes == (90 * MB if evict and weights == 90 else 0)


def test_memory_is_kept_for_a_visitor_until_it_serves_and_then_for_what_it_replaced() -> None:
    lodging = Lodging(ResidencyConfig(), 100 * MB)
    old = serving(lodging, 1, 40 * MB)
    new = version(2, 30 * MB)
    stay = Stay(90 * MB, 0)
    assert not lodging.ask(new, old, stay, 0).there
    assert lodging.left_bytes == 70 * MB
    assert lodging.protects(old.id)
    assert lodging.ask(new, old, Stay(70 * MB, 0), 1) == Room(True)
    new.phase, old.phase = Phase.LIVE, Phase.STANDBY
    assert lodging.release({1: old, 2: new}.get, nothing)
    assert not lodging.protects(old.id)
    assert (lodging.left_bytes, lodging.others_bytes) == (60 * MB, 40 * MB)
    assert lodging.release({2: new}.get, nothing)
    assert lodging.left_bytes == 100 * MB


def test_what_was_kept_is_there_again_when_it_has_left_or_is_looked_after() -> None:
    lodging = Lodging(ResidencyConfig(), 100 * MB)
    old, new = serving(lodging, 1, 40 * MB), version(2, 30 * MB)
    assert lodging.ask(new, old, Stay(40 * MB, 0), 0).there
    new.phase, old.phase = Phase.LIVE, Phase.STANDBY
    assert lodging.release({1: old, 2: new}.get, nothing)
    assert not lodging.forget_gone({1: old}.get)
    old.phase = Phase.LIVE
    assert not lodging.forget_gone({1: old}.get), "it is about to be counted with what serves"
    assert lodging.left_bytes == 60 * MB
    assert lodging.forget_gone(lambda model: None)
    assert lodging.left_bytes == 100 * MB


def test_what_leaves_counts_until_it_has_left() -> None:
    lodging = Lodging(ResidencyConfig(), 100 * MB)
    unwanted, away = serving(lodging, 1, 40 * MB), serving(lodging, 2, 30 * MB)
    away.form = Form.COLD
    for each in (unwanted, away):
        each.phase = Phase.DRAINING
    assert lodging.release({1: unwanted, 2: away}.get, nothing)
    assert (lodging.left_bytes, lodging.others_bytes) == (60 * MB, 40 * MB)
    assert lodging.forget_gone({2: away}.get)
    assert lodging.left_bytes == 100 * MB


def test_what_was_tried_and_is_abandoned_counts_until_it_has_left() -> None:
    lodging = Lodging(ResidencyConfig(), 100 * MB)
    old, new, never = serving(lodging, 1, 30 * MB), version(2, 20 * MB), version(3, 10 * MB)
    for each in (new, never):
        assert lodging.ask(each, old, Stay(30 * MB, 0), 0).there
    lodging.measured(new, ModelLoaded(1, 2, (), 1, 25 * MB - PROCESS_BYTES))
    assert lodging.left_bytes == 70 * MB
    new.phase = never.phase = Phase.DRAINING
    assert lodging.release({1: old, 2: new, 3: never}.get, lambda name: old)
    assert lodging.left_bytes == 80 * MB, "what was kept for it, and nothing for what was not loaded"


@pytest.mark.parametrize("spare_bytes", [0, 1 << 40])
def test_what_is_gone_back_from_is_no_reason_to_put_out_what_it_is_gone_back_to(spare_bytes: int) -> None:
    """Whether it turned out larger than was guessed, or was tried above the budget."""
    lodging = Lodging(ResidencyConfig(), 100 * MB, lambda: spare_bytes)
    old, new = serving(lodging, 1, 60 * MB), version(2, 60 * MB if spare_bytes else 10 * MB)
    assert lodging.ask(new, old, Stay(60 * MB, 0), 0).there
    lodging.measured(new, ModelLoaded(1, 2, (), 1, 70 * MB - PROCESS_BYTES))
    new.phase, old.phase = Phase.LIVE, Phase.STANDBY
    lodging.release({1: old, 2: new}.get, lambda name: new)
    new.phase, old.phase = Phase.DRAINING, Phase.LIVE
    lodging.release({1: old, 2: new}.get, lambda name: old)
    assert lodging.left_bytes == (100 * MB if spare_bytes else 60 * MB)
    assert lodging.others_bytes == (70 * MB if spare_bytes else 40 * MB)
    assert lodging.forget_gone({1: old}.get) is not bool(spare_bytes)
    assert (lodging.left_bytes, lodging.others_bytes) == (100 * MB, 0)


def test_a_version_that_is_larger_than_was_guessed_is_not_put_out_for_what_it_replaced() -> None:
    lodging = Lodging(ResidencyConfig(), 100 * MB)
    old, new = serving(lodging, 1, 60 * MB), version(2, 10 * MB)
    assert lodging.ask(new, old, Stay(60 * MB, 0), 0).there
    lodging.measured(new, ModelLoaded(1, 2, (), 1, 70 * MB - PROCESS_BYTES))
    new.phase, old.phase = Phase.LIVE, Phase.STANDBY
    lodging.release({1: old, 2: new}.get, nothing)
    assert lodging.left_bytes == 70 * MB


def test_what_a_version_cost_before_a_restart_is_what_is_expected_of_it() -> None:
    records = MemoryRecords()

    def lodging() -> Lodging:
        return Lodging(ResidencyConfig(), 100 * MB, costs=Costs(records, lambda model: "here"))

    first, served = lodging(), version(1, 10 * MB)
    first.measured(served, ModelLoaded(1, 1, (), 5_000, 20 * MB, None, 60 * MB))
    served.form = Form.WEIGHTS_EVICTED
    first.came_back(served, 300)
    again, later = lodging(), version(1, 10 * MB)
    assert not again.rest(later, 50 * MB), "its weights need not be there at first"
    assert again.rest(later, 80 * MB)
    assert again.footprint(later) == first.footprint(served)
    assert again.costs_ns(later) == (5_000, 300)
    again.measured(later, ModelLoaded(1, 1, (), 9, 20 * MB, None, 60 * MB, packed=True))
    assert again.costs_ns(later) == (9, 0), "a form is another thing"
    records.weigh(later.identity, "here", Cost(500 * MB, 0, 7))
    assert lodging().ask(version(1, 10 * MB), None, NOBODY, 0).there, (
        "what is on record keeps nobody out for good"
    )


@pytest.mark.parametrize(("page_in", "kept"), [(False, (2_000, 0)), (True, (1_000, 5_000))])
def test_each_measurement_of_a_cost_counts_for_a_part(page_in: bool, kept: tuple[int, int]) -> None:
    records = MemoryRecords()
    costs, served = Costs(records, lambda model: ""), version(1, 10 * MB)
    costs.took(served, 1_000, page_in=page_in)
    assert costs.of(served) is None, "it was never measured"
    costs.loaded(served, ModelLoaded(1, 1, (), 1_000, MB))
    costs.took(served, 5_000, page_in=page_in)
    known = costs.of(served)
    assert known is not None
    assert (known.load_ns, known.page_in_ns) == kept
    costs.took(served, kept[page_in] + 100, page_in=page_in)
    assert costs.of(served) is known, "too little to be written"


def test_a_version_that_room_is_made_for_does_not_rest_meanwhile() -> None:
    lodging = Lodging(ResidencyConfig(), 100 * MB)
    used_bytes = 90 * MB
    resting, coming = version(1, 30 * MB), version(2, 30 * MB)
    assert lodging.rest(resting, used_bytes)
    assert not lodging.ask(coming, None, Stay(used_bytes, 0), 0).there
    assert not lodging.rest(coming, used_bytes), "what is kept for it is its own"
    late = lodging.ask(coming, None, Stay(used_bytes, 0), PATIENCE_NS)
    assert "is in use" in said(late)
    assert lodging.rest(coming, used_bytes), "nobody made room"


def test_what_never_fits_says_why_and_takes_nothing() -> None:
    lodging = Lodging(ResidencyConfig(), 100 * MB)
    large, small = version(1, 120 * MB), version(2, 50 * MB)
    large.waiting = lodging.ask(large, None, NOBODY, 0).reason
    assert large.reason.startswith("can never fit into memory: it needs about 120.0 MB, and ")
    assert list(lodging.problems([large, small], {}, is_aside)) == [f"m/1 {large.reason}"]
    small.waiting = lodging.ask(small, None, Stay(60 * MB, 60 * MB), 0).reason
    assert not list(lodging.problems([small], {}, is_aside)), "a trial ends"
    beside_pins = lodging.ask(version(2, 50 * MB), None, Stay(60 * MB, 60 * MB), 0)
    assert "residency.pins and versions on trial keep 60.0 MB" in said(beside_pins)
    assert beside_pins.again_ns > 0
    assert lodging.left_bytes == 100 * MB


def test_one_version_at_a_time_is_tried_above_the_budget_if_the_machine_has_the_memory() -> None:
    spare = [60 * MB]
    lodging = Lodging(ResidencyConfig(), 100 * MB, lambda: spare[0])
    old, new, other = serving(lodging, 1, 60 * MB), version(2, 60 * MB), version(3, 60 * MB)
    assert "too little to try it above the budget" in said(lodging.ask(new, old, NOBODY, 0))
    spare[0] += SPARE_BYTES
    assert lodging.ask(new, old, NOBODY, 1).there
    assert lodging.ask(new, old, NOBODY, 2).there
    assert (lodging.left_bytes, lodging.others_bytes) == (100 * MB, 60 * MB)
    assert not lodging.ask(other, old, NOBODY, 3).there
    new.phase, old.phase = Phase.LIVE, Phase.STANDBY
    serving(lodging, 2, 60 * MB)
    lodging.release({1: old, 2: new, 3: other}.get, nothing)
    assert not lodging.ask(other, new, NOBODY, 4).there, "what it replaced is still there"
    lodging.release({2: new, 3: other}.get, nothing)
    assert lodging.ask(other, new, NOBODY, 5).there


def test_memory_that_nobody_gives_is_not_kept_for_ever() -> None:
    lodging = Lodging(ResidencyConfig(), 100 * MB)
    new = version(1, 50 * MB)
    assert lodging.ask(new, None, Stay(80 * MB, 0), 0) == KEPT
    assert lodging.left_bytes == 50 * MB
    given_up = lodging.ask(new, None, Stay(80 * MB, 0), PATIENCE_NS)
    assert "is in use" in said(given_up)
    assert given_up.again_ns > PATIENCE_NS
    assert lodging.left_bytes == 100 * MB


def test_pins_are_the_operators_and_a_trial_only_holds() -> None:
    lodging = Lodging(ResidencyConfig(pins=("m",), keep_warm_s={"m": 2.0}), 100 * MB)
    pinned, tried = version(1, 10 * MB), version(2, 10 * MB)
    tried.model = replace(tried.model, name="other")
    assert lodging.kept(tried) == Kept(2, False, 0)
    trial = TrialWish(canary_percent=10.0)
    meter = VersionMeter("other", 3)
    tried.diversion = Diversion(version(3, MB), trial, 10.0, shadow=False, unseen=meter)
    assert lodging.kept(pinned) == Kept(1, True, 2_000_000_000)
    assert lodging.kept(tried) == Kept(2, False, 0, held=True)
    assert lodging.kept(tried).stays


def test_a_name_that_no_model_has_is_told_and_one_that_is_unloaded_by_hand_is_not() -> None:
    config = ResidencyConfig(pins=("unloaded", "unheard-of"), keep_warm_s={"unloaded": 2.0, "never": 2.0})
    problems = tuple(Lodging(config, 100 * MB).problems([], {}, is_aside))
    assert problems == (
        "residency.pins names 'unheard-of', and there is no such model",
        "residency.keep_warm_s names 'never', and there is no such model",
    )
