"""What residency decides, one rule at a time."""

from __future__ import annotations

from collections.abc import Container

import pytest

from appliance.config.residency import ResidencyPolicy
from appliance.core.memory import residency_port as port
from appliance.core.memory.eviction import Step, choose
from appliance.core.memory.forecast import Queued, arrival_ns
from appliance.core.memory.load_cost import LoadCost, LoadSpeed
from appliance.core.memory.popularity import Popularity
from appliance.core.memory.residency import Residency
from appliance.core.memory.residency_port import Action, Coldness, Footprint, Form

MS = 1_000_000
SECOND = 1_000_000_000
LATE = 1_000 * SECOND


class Rig:
    """A Residency with a clock that is set by hand; models of 100 bytes, of which evicting their weights gives 90
    back."""

    def __init__(self, budget: int, policy: ResidencyPolicy | None = None) -> None:
        self.residency = Residency(policy or ResidencyPolicy(), budget)
        self.now_ns = SECOND
        self.in_use: Container[int] = ()
        self.wishes: list[int] = []
        """When the last step wanted to be called again."""

    def tell(self, event: port.Event, after_ms: int = 0) -> list[Action]:
        self.now_ns += after_ms * MS
        actions = self.residency.step(event, self.now_ns, self.in_use)
        self.wishes = [action.at_ns for action in actions if isinstance(action, port.WakeAt)]
        return [action for action in actions if not isinstance(action, port.WakeAt)]

    def add(self, model: int, form: Form = Form.RESIDENT, bytes_: int = 100, evictable: int = 90) -> None:
        footprint = Footprint(bytes_, evictable)
        assert not self.tell(port.Added(model, form, footprint, 100 * MS, 10 * MS))

    def ask(self, model: int, request: int, within_ms: int = 10_000) -> list[Action]:
        return self.tell(port.Asked(model, request, self.now_ns + within_ms * MS, 1))


def test_a_resident_model_serves_at_once() -> None:
    rig = Rig(100)
    rig.add(1)
    assert rig.ask(1, 7) == [port.Serve(1, 7)]


def test_evicted_weights_are_paged_in_and_a_cold_one_loaded_and_then_both_waits_end() -> None:
    rig = Rig(200)
    rig.add(1, Form.WEIGHTS_EVICTED)
    rig.add(2, Form.COLD)
    first, page_in = rig.ask(1, 7)
    second, load = rig.ask(2, 8)
    assert isinstance(first, port.Wait)
    assert isinstance(second, port.Wait)
    assert (page_in, load) == (port.PageIn(1, False), port.Load(2, False))
    assert [type(action) for action in rig.ask(1, 9)] == [port.Wait]
    assert rig.tell(port.Done(1, 10 * MS, 90)) == [port.Release(1, (7, 9))]
    assert rig.tell(port.Done(2, 100 * MS, 100)) == [port.Release(2, (8,))]


def test_weights_go_before_processes_and_what_is_used_least_goes_first() -> None:
    rig = Rig(210)
    rig.add(1)
    rig.add(2)
    rig.add(3, Form.WEIGHTS_EVICTED)
    rig.tell(port.Used(1, 50))
    rig.tell(port.Used(2, 5))
    assert rig.ask(3, 7)[1:] == [port.EvictWeights(2)]
    assert rig.tell(port.Done(2, MS)) == [port.PageIn(3, False)]


def test_a_process_goes_when_weights_are_not_enough() -> None:
    rig = Rig(110)
    rig.add(1)
    rig.add(2, Form.COLD)
    assert rig.ask(2, 7)[1:] == [port.EvictWeights(1)]
    assert rig.tell(port.Done(1, MS)) == [port.Load(2, False)]
    rig.tell(port.Done(2, MS, 100))
    assert rig.tell(port.BudgetChanged(100), after_ms=1_000) == [port.Unload(1)]


def test_nothing_pinned_in_use_kept_warm_or_just_loaded_is_put_out() -> None:
    rig = Rig(100, ResidencyPolicy(hold_factor=2.0))
    rig.add(1, Form.COLD, evictable=0)
    rig.add(2, Form.COLD, evictable=0)
    rig.tell(port.Kept(1, True, 0))
    rig.tell(port.Done(1, 100 * MS, 100))
    refused = rig.ask(2, 7)
    assert refused == [port.Refuse(2, 7, Coldness.NEVER, -1)]
    rig.tell(port.Kept(1, False, 3_000 * MS))
    rig.ask(1, 8)
    assert [type(action) for action in rig.ask(2, 9)] == [port.Wait]
    assert not rig.tell(port.Settle(), after_ms=2_900)
    rig.in_use = {1}
    assert not rig.tell(port.Settle(), after_ms=200)
    rig.in_use = ()
    assert rig.tell(port.Settle()) == [port.Unload(1)]
    assert rig.tell(port.Done(1)) == [port.Load(2, False)]
    rig.tell(port.Done(2, 100 * MS, 100), after_ms=100)
    wait = rig.ask(1, 10)
    assert [type(action) for action in wait] == [port.Wait]
    assert not rig.tell(port.Settle(), after_ms=199)
    assert rig.tell(port.Settle(), after_ms=2) == [port.Unload(2)]


def test_too_short_a_deadline_is_refused_at_once_and_the_model_is_there_when_the_client_comes_back() -> None:
    rig = Rig(200)
    rig.add(1, Form.COLD)
    refuse, load = rig.ask(1, 7, within_ms=50)
    assert isinstance(refuse, port.Refuse)
    assert refuse.reason is Coldness.DEADLINE
    assert 100 * MS <= refuse.retry_after_ns <= 300 * MS
    assert load == port.Load(1, False)
    assert not rig.tell(port.Done(1, 100 * MS, 100), after_ms=100)
    assert rig.ask(1, 8, within_ms=1) == [port.Serve(1, 8)]


def test_what_waits_is_bounded_in_number_and_bytes() -> None:
    rig = Rig(200, ResidencyPolicy(waiting_requests_max=2, waiting_bytes_max=10))
    rig.add(1, Form.COLD)
    rig.ask(1, 1)
    big = rig.tell(port.Asked(1, 2, LATE, 10))
    assert isinstance(big[0], port.Refuse)
    assert big[0].reason is Coldness.FULL
    rig.ask(1, 3)
    full = rig.ask(1, 4)
    assert isinstance(full[0], port.Refuse)
    rig.tell(port.Withdrawn(1, 1))
    assert isinstance(rig.ask(1, 5)[0], port.Wait)
    assert rig.tell(port.Done(1, MS, 100)) == [port.Release(1, (3, 5))]
    assert rig.residency.statistics().waiting_bytes == 0


def test_a_refusal_for_want_of_places_to_wait_brings_the_model_all_the_same() -> None:
    rig = Rig(200, ResidencyPolicy(waiting_requests_max=0))
    rig.add(1, Form.COLD)
    refuse, load = rig.ask(1, 7)
    assert isinstance(refuse, port.Refuse)
    assert refuse.reason is Coldness.FULL
    assert load == port.Load(1, False)
    rig.tell(port.Done(1, 100 * MS, 100), after_ms=100)
    assert rig.ask(1, 8) == [port.Serve(1, 8)]


def test_what_is_lent_comes_back_and_what_is_pinned_does_not() -> None:
    rig = Rig(200)
    rig.add(1, Form.COLD)
    rig.tell(port.BudgetChanged(50, 200))
    assert rig.ask(1, 7) == [port.Refuse(1, 7, Coldness.NO_ROOM, SECOND)]
    assert rig.tell(port.BudgetChanged(200, 200)) == [port.Load(1, False)], "its client was told to come back"
    rig.tell(port.Done(1, 100 * MS, 100))
    rig.add(2, Form.COLD, bytes_=150)
    rig.tell(port.Kept(1, True, 0))
    assert rig.ask(2, 8) == [port.Refuse(2, 8, Coldness.NEVER, -1)]


def test_what_is_held_for_the_time_being_stays_and_others_are_told_to_come_back() -> None:
    rig = Rig(100)
    rig.add(1)
    rig.add(2, Form.COLD)
    rig.tell(port.Kept(1, False, 0, held=True))
    refused = rig.ask(2, 7)
    assert refused == [port.Refuse(2, 7, Coldness.NO_ROOM, ResidencyPolicy().backoff_ns)]
    assert rig.tell(port.Kept(1, False, 0)) == [port.Unload(1)], "the refused one may come back"


def test_what_is_held_is_brought_back_when_nobody_waits() -> None:
    rig = Rig(100)
    rig.add(1, Form.COLD)
    assert rig.tell(port.Kept(1, False, 0, held=True)) == [port.Load(1, True)]


def test_nobody_waits_for_a_model_that_fails_twice_and_it_is_tried_again_later() -> None:
    rig = Rig(200)
    rig.add(1, Form.COLD)
    rig.ask(1, 7)
    assert rig.tell(port.Failed(1)) == [port.Load(1, False)]
    assert rig.tell(port.Failed(1)) == [port.Refuse(1, 7, Coldness.FAILING, SECOND)]
    assert rig.ask(1, 8)[0] == port.Refuse(1, 8, Coldness.FAILING, SECOND)
    rig.now_ns += SECOND
    assert rig.ask(1, 9)[1:] == [port.Load(1, False)]


def test_who_withdraws_last_takes_the_load_that_was_not_begun_with_him() -> None:
    rig = Rig(100, ResidencyPolicy(loads_at_once=1))
    rig.add(1, Form.COLD)
    rig.add(2, Form.COLD)
    rig.ask(1, 1)
    rig.ask(2, 2)
    rig.tell(port.Withdrawn(2, 2))
    assert rig.tell(port.Done(1, MS, 100)) == [port.Release(1, (1,))]


def test_a_declined_eviction_serves_who_asked_meanwhile() -> None:
    rig = Rig(110)
    rig.add(1)
    rig.add(2, Form.COLD)
    rig.ask(2, 7)
    assert isinstance(rig.ask(1, 8)[0], port.Wait)
    assert rig.tell(port.Declined(1))[0] == port.Release(1, (8,))


def test_a_budget_that_shrinks_is_met_by_what_is_worth_least() -> None:
    rig = Rig(300)
    for model in (1, 2, 3):
        rig.add(model)
        rig.tell(port.Used(model, model))
    assert rig.tell(port.BudgetChanged(200)) == [port.EvictWeights(1), port.EvictWeights(2)]


def test_a_budget_that_shrinks_while_all_are_in_use_is_looked_at_again_until_somebody_is_idle() -> None:
    rig = Rig(200)
    rig.add(1)
    rig.add(2)
    rig.in_use = {1, 2}
    assert not rig.tell(port.BudgetChanged(150))
    for _ in range(3):
        assert rig.wishes == [rig.now_ns + ResidencyPolicy().retry_ns]
        assert not rig.tell(port.Settle(), after_ms=5)
    rig.in_use = {1}
    assert rig.tell(port.Settle(), after_ms=5) == [port.EvictWeights(2)]
    assert not rig.tell(port.Done(2, MS))
    assert not rig.wishes, "it is within the budget"


def test_nobody_looks_again_whether_what_is_pinned_leaves() -> None:
    rig = Rig(200)
    rig.add(1)
    rig.tell(port.Kept(1, True, 0))
    assert not rig.tell(port.BudgetChanged(50))
    assert not rig.wishes


def test_what_is_pinned_comes_as_soon_as_somebody_is_idle_whom_it_needs_to_leave() -> None:
    rig = Rig(100)
    rig.add(1)
    rig.add(2, Form.COLD)
    rig.in_use = {1}
    assert not rig.tell(port.Kept(2, True, 0))
    assert rig.wishes == [rig.now_ns + ResidencyPolicy().retry_ns]
    rig.tell(port.Kept(1, False, SECOND))
    rig.ask(1, 7)
    assert rig.wishes == [rig.now_ns + SECOND], "it is kept warm so long"
    rig.in_use = ()
    assert rig.tell(port.Settle(), after_ms=1_000) == [port.Unload(1)]
    assert rig.tell(port.Done(1)) == [port.Load(2, True)]


def test_what_is_pinned_and_failed_is_tried_again_when_its_pause_is_over() -> None:
    rig = Rig(100)
    rig.add(1, Form.COLD)
    assert rig.tell(port.Kept(1, True, 0)) == [port.Load(1, True)]
    assert rig.tell(port.Failed(1)) == [port.Load(1, True)]
    assert not rig.tell(port.Failed(1))
    assert rig.wishes == [rig.now_ns + SECOND]
    assert rig.tell(port.Settle(), after_ms=1_000) == [port.Load(1, True)]


def test_a_large_victim_spares_the_small_ones() -> None:
    steps = [Step((1, 0), 1, 10, False), Step((2, 0), 2, 20, True), Step((3, 0), 3, 100, False)]
    assert choose(steps, 90) == [steps[2]]
    assert choose(steps, 25) == steps[:2]
    assert choose(steps, 1_000) == steps


@pytest.mark.parametrize(("places", "expected"), [(1, 30), (2, 20)])
def test_the_queue_is_played_ahead(places: int, expected: int) -> None:
    queue = [Queued(50, 50, 10, 5), Queued(60, 60, 20, 5)]
    assert arrival_ns(queue, [0] * places, 50, [(0, 60)], 0, 0) == expected
    assert arrival_ns(queue, [0], 0, [(10, 30)], 0, 0) is None


def test_costs_are_learned_as_upper_quantiles() -> None:
    cost = LoadCost()
    assert not cost.known
    for ns in (100, 100, 100, 140) * 5:
        cost.observe(ns)
    assert 100 <= cost.mean_ns <= 125
    assert 130 <= cost.upper_ns <= 180
    speed = LoadSpeed(1_000, 1_000)
    for _ in range(40):
        speed.observe(1_000, 4_000)
    assert speed.estimate_ns(10) == pytest.approx(40, abs=1)


def test_popularity_knows_models_that_are_not_in_memory_and_forgets_slowly() -> None:
    popularity = Popularity(200)
    for model in (1, 2, 3):
        popularity.describe(model, 10, 100)
    for turn in range(30):
        popularity.use(1, 3, turn * SECOND)
        popularity.use(2, 1, turn * SECOND)
    popularity.use(3, 1, 40 * SECOND)
    worths = {model: popularity.worth(model, 10, 100, 0) for model in (1, 2, 3)}
    assert worths[3] < worths[2] < worths[1]


def test_equal_worth_leaves_who_was_there_first() -> None:
    popularity = Popularity(200)
    popularity.describe(1, 10, 100)
    popularity.describe(2, 10, 100)
    popularity.use(1, 1, SECOND)
    popularity.use(2, 1, SECOND)
    assert popularity.worth(2, 10, 100, 5) < popularity.worth(1, 10, 100, 4)


class Asked(set[int]):
    """Nothing is in use; keeps what was asked for."""

    def __contains__(self, model: object) -> bool:
        assert isinstance(model, int)
        self.add(model)
        return False


def test_nobody_asks_whether_a_model_is_in_use_that_time_keeps_in_memory() -> None:
    rig = Rig(200)
    for model in (1, 2, 3):
        rig.add(model, Form.COLD if model == 3 else Form.RESIDENT)
    rig.tell(port.Kept(1, False, 3_000 * MS))
    rig.ask(1, 7)
    rig.in_use = asked = Asked()
    rig.ask(3, 8)
    assert set(asked) == {2}
