"""What residency decides, one rule at a time."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from appliance.core.memory import actions, events
from appliance.core.memory.accountant import Accountant
from appliance.core.memory.actions import Action, Miss
from appliance.core.memory.advance import Step, choose
from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.memory.footprint import Footprint, LoadCost, LoadSpeed, Residency
from appliance.core.memory.misses import Queued, arrival_ns
from appliance.core.memory.popularity import Popularity
from appliance.domain.device import CPU, cuda

GPU = cuda(0)

MS = 1_000_000
SECOND = 1_000_000_000
LATE = 1_000 * SECOND


class Rig:
    """An accountant with a clock that is set by hand; models of 100 bytes, of which evicting their weights gives 90
    back."""

    def __init__(self, budget: int, policy: ResidencyPolicy | None = None) -> None:
        self.accountant = Accountant(policy or ResidencyPolicy(), [Budget(CPU, budget)])
        self.now_ns = SECOND
        self.in_use: Collection[int] = ()
        self.checked: set[int] = set()
        """Of which models it was asked whether they are in use."""
        self.wishes: list[int] = []
        """When the last step wanted to be called again."""

    def tell(self, event: events.Event, after_ms: int = 0) -> list[Action]:
        self.now_ns += after_ms * MS
        found: list[Action] = []
        for action in self.accountant.step(event, self.now_ns):
            if isinstance(action, actions.CheckUse):
                self.checked |= set(action.models)
                idle = frozenset(action.models).difference(self.in_use)
                found += self.accountant.step(events.UseChecked(action.device, idle), self.now_ns)
            else:
                found.append(action)
        self.accountant.check_integrity()
        self.wishes = [action.at_ns for action in found if isinstance(action, actions.WakeAt)]
        return [action for action in found if not isinstance(action, actions.WakeAt)]

    def add(
        self, model: int, residency: Residency = Residency.RESIDENT, bytes_: int = 100, evictable: int = 90
    ) -> None:
        footprint = Footprint(bytes_, evictable)
        assert not self.tell(events.Added(model, CPU, residency, footprint, 100 * MS, 10 * MS))

    def limit(self, size_bytes: int) -> list[Action]:
        return self.tell(events.BudgetSet(Budget(CPU, size_bytes)))

    def ask(self, model: int, request: int, within_ms: int = 10_000) -> list[Action]:
        return self.tell(events.Asked(model, request, self.now_ns + within_ms * MS, 1))


def test_a_resident_model_serves_at_once() -> None:
    rig = Rig(100)
    rig.add(1)
    assert rig.ask(1, 7) == [actions.Serve(1, 7)]


def test_evicted_weights_are_paged_in_and_a_cold_one_loaded_and_then_both_waits_end() -> None:
    rig = Rig(200)
    rig.add(1, Residency.WEIGHTS_EVICTED)
    rig.add(2, Residency.COLD)
    first, page_in = rig.ask(1, 7)
    second, load = rig.ask(2, 8)
    assert isinstance(first, actions.Wait)
    assert isinstance(second, actions.Wait)
    assert (page_in, load) == (actions.PageIn(1, False), actions.Load(2, False))
    assert [type(action) for action in rig.ask(1, 9)] == [actions.Wait]
    assert rig.tell(events.Done(1, 10 * MS, 90)) == [actions.Release(1, (7, 9))]
    assert rig.tell(events.Done(2, 100 * MS, 100)) == [actions.Release(2, (8,))]


def test_weights_go_before_processes_and_what_is_used_least_goes_first() -> None:
    rig = Rig(210)
    rig.add(1)
    rig.add(2)
    rig.add(3, Residency.WEIGHTS_EVICTED)
    rig.tell(events.Used(1, 50))
    rig.tell(events.Used(2, 5))
    assert rig.ask(3, 7)[1:] == [actions.EvictWeights(2)]
    assert rig.tell(events.Done(2, MS)) == [actions.PageIn(3, False)]


def test_a_process_goes_when_weights_are_not_enough() -> None:
    rig = Rig(110)
    rig.add(1)
    rig.add(2, Residency.COLD)
    assert rig.ask(2, 7)[1:] == [actions.EvictWeights(1)]
    assert rig.tell(events.Done(1, MS)) == [actions.Load(2, False)]
    rig.tell(events.Done(2, MS, 100))
    rig.now_ns += 1_000 * MS
    assert rig.limit(100) == [actions.Unload(1)]


def test_nothing_pinned_in_use_kept_warm_or_just_loaded_is_put_out() -> None:
    rig = Rig(100, ResidencyPolicy(hold_factor=2.0))
    rig.add(1, Residency.COLD, evictable=0)
    rig.add(2, Residency.COLD, evictable=0)
    rig.tell(events.Retained(1, True, 0))
    rig.tell(events.Done(1, 100 * MS, 100))
    refused = rig.ask(2, 7)
    assert refused == [actions.Refuse(2, 7, Miss.NEVER, -1)]
    rig.tell(events.Retained(1, False, 3_000 * MS))
    rig.ask(1, 8)
    assert [type(action) for action in rig.ask(2, 9)] == [actions.Wait]
    assert not rig.tell(events.Settle(), after_ms=2_900)
    rig.in_use = {1}
    assert not rig.tell(events.Settle(), after_ms=200)
    rig.in_use = ()
    assert rig.tell(events.Settle()) == [actions.Unload(1)]
    assert rig.tell(events.Done(1)) == [actions.Load(2, False)]
    rig.tell(events.Done(2, 100 * MS, 100), after_ms=100)
    wait = rig.ask(1, 10)
    assert [type(action) for action in wait] == [actions.Wait]
    assert not rig.tell(events.Settle(), after_ms=199)
    assert rig.tell(events.Settle(), after_ms=2) == [actions.Unload(2)]


def test_too_short_a_deadline_is_refused_at_once_and_the_model_is_there_when_the_client_comes_back() -> None:
    rig = Rig(200)
    rig.add(1, Residency.COLD)
    refuse, load = rig.ask(1, 7, within_ms=50)
    assert isinstance(refuse, actions.Refuse)
    assert refuse.reason is Miss.DEADLINE
    assert 100 * MS <= refuse.retry_after_ns <= 300 * MS
    assert load == actions.Load(1, False)
    assert not rig.tell(events.Done(1, 100 * MS, 100), after_ms=100)
    assert rig.ask(1, 8, within_ms=1) == [actions.Serve(1, 8)]


def test_what_waits_is_bounded_in_number_and_bytes() -> None:
    rig = Rig(200, ResidencyPolicy(waiting_requests_max=2, waiting_bytes_max=10))
    rig.add(1, Residency.COLD)
    rig.ask(1, 1)
    big = rig.tell(events.Asked(1, 2, LATE, 10))
    assert isinstance(big[0], actions.Refuse)
    assert big[0].reason is Miss.FULL
    rig.ask(1, 3)
    full = rig.ask(1, 4)
    assert isinstance(full[0], actions.Refuse)
    rig.tell(events.Withdrawn(1, 1))
    assert isinstance(rig.ask(1, 5)[0], actions.Wait)
    assert rig.tell(events.Done(1, MS, 100)) == [actions.Release(1, (3, 5))]
    assert rig.accountant.statistics(CPU).waiting_bytes == 0


def test_a_refusal_for_want_of_places_to_wait_brings_the_model_all_the_same() -> None:
    rig = Rig(200, ResidencyPolicy(waiting_requests_max=0))
    rig.add(1, Residency.COLD)
    refuse, load = rig.ask(1, 7)
    assert isinstance(refuse, actions.Refuse)
    assert refuse.reason is Miss.FULL
    assert load == actions.Load(1, False)
    rig.tell(events.Done(1, 100 * MS, 100), after_ms=100)
    assert rig.ask(1, 8) == [actions.Serve(1, 8)]


def test_what_is_reserved_comes_back_and_what_is_pinned_does_not() -> None:
    rig = Rig(200)
    rig.add(1, Residency.COLD)
    assert rig.tell(events.ReservationWanted(9, CPU, 150)) == [actions.GrantReservation(9)]
    assert rig.ask(1, 7) == [actions.Refuse(1, 7, Miss.NO_ROOM, SECOND)]
    assert rig.tell(events.Gone(9)) == [actions.Load(1, False)], "its client was told to come back"
    rig.tell(events.Done(1, 100 * MS, 100))
    rig.add(2, Residency.COLD, bytes_=150)
    rig.tell(events.Retained(1, True, 0))
    assert rig.ask(2, 8) == [actions.Refuse(2, 8, Miss.NEVER, -1)]


def test_what_is_held_for_the_time_being_stays_and_others_are_told_to_come_back() -> None:
    rig = Rig(100)
    rig.add(1)
    rig.add(2, Residency.COLD)
    rig.tell(events.Retained(1, False, 0, held=True))
    refused = rig.ask(2, 7)
    assert refused == [actions.Refuse(2, 7, Miss.NO_ROOM, ResidencyPolicy().backoff_ns)]
    assert rig.tell(events.Retained(1, False, 0)) == [actions.Unload(1)], "the refused one may come back"


def test_what_is_held_is_brought_back_when_nobody_waits() -> None:
    rig = Rig(100)
    rig.add(1, Residency.COLD)
    assert rig.tell(events.Retained(1, False, 0, held=True)) == [actions.Load(1, True)]


def test_nobody_waits_for_a_model_that_fails_twice_and_it_is_tried_again_later() -> None:
    rig = Rig(200)
    rig.add(1, Residency.COLD)
    rig.ask(1, 7)
    assert rig.tell(events.Failed(1)) == [actions.Load(1, False)]
    assert rig.tell(events.Failed(1)) == [actions.Refuse(1, 7, Miss.FAILING, SECOND)]
    assert rig.ask(1, 8)[0] == actions.Refuse(1, 8, Miss.FAILING, SECOND)
    rig.now_ns += SECOND
    assert rig.ask(1, 9)[1:] == [actions.Load(1, False)]


def test_who_withdraws_last_takes_the_load_that_was_not_begun_with_him() -> None:
    rig = Rig(100, ResidencyPolicy(loads_at_once=1))
    rig.add(1, Residency.COLD)
    rig.add(2, Residency.COLD)
    rig.ask(1, 1)
    rig.ask(2, 2)
    rig.tell(events.Withdrawn(2, 2))
    assert rig.tell(events.Done(1, MS, 100)) == [actions.Release(1, (1,))]


def test_what_is_left_of_models_that_all_wait_for_their_weights_is_in_nobodys_way_for_ever() -> None:
    """They had grown meanwhile, and none of them could leave."""
    rig = Rig(300, ResidencyPolicy(loads_at_once=1))
    rig.add(9, Residency.COLD, evictable=0)
    for model in (1, 2):
        rig.add(model, Residency.WEIGHTS_EVICTED, evictable=60)
    for model in (9, 1, 2):
        assert isinstance(rig.ask(model, model)[0], actions.Wait)
    for model in (1, 2):
        assert not rig.tell(events.Measured(model, Footprint(190, 60)))
    assert rig.tell(events.Gone(9)) == [actions.Unload(2)]
    assert rig.tell(events.Done(2)) == [actions.PageIn(1, False)]
    assert rig.tell(events.Done(1, 10 * MS, 60)) == [actions.Release(1, (1,)), actions.Unload(1)]
    assert rig.tell(events.Done(1)) == [actions.Load(2, False)]
    assert rig.tell(events.Done(2, 100 * MS, 190)) == [actions.Release(2, (2,))]


def test_a_declined_eviction_serves_who_asked_meanwhile() -> None:
    rig = Rig(110)
    rig.add(1)
    rig.add(2, Residency.COLD)
    rig.ask(2, 7)
    assert isinstance(rig.ask(1, 8)[0], actions.Wait)
    assert rig.tell(events.Declined(1))[0] == actions.Release(1, (8,))


def test_a_budget_that_shrinks_is_met_by_what_is_worth_least() -> None:
    rig = Rig(300)
    for model in (1, 2, 3):
        rig.add(model)
        rig.tell(events.Used(model, model))
    assert rig.limit(200) == [actions.EvictWeights(1), actions.EvictWeights(2)]


def test_a_budget_that_shrinks_while_all_are_in_use_is_looked_at_again_until_somebody_is_idle() -> None:
    rig = Rig(200)
    rig.add(1)
    rig.add(2)
    rig.in_use = {1, 2}
    assert not rig.limit(150)
    for _ in range(3):
        assert rig.wishes == [rig.now_ns + ResidencyPolicy().retry_ns]
        assert not rig.tell(events.Settle(), after_ms=5)
    rig.in_use = {1}
    assert rig.tell(events.Settle(), after_ms=5) == [actions.EvictWeights(2)]
    assert not rig.tell(events.Done(2, MS))
    assert not rig.wishes, "it is within the budget"


def test_nobody_looks_again_whether_what_is_pinned_leaves() -> None:
    rig = Rig(200)
    rig.add(1)
    rig.tell(events.Retained(1, True, 0))
    assert not rig.limit(50)
    assert not rig.wishes


def test_what_is_pinned_comes_as_soon_as_somebody_is_idle_whom_it_needs_to_leave() -> None:
    rig = Rig(100)
    rig.add(1)
    rig.add(2, Residency.COLD)
    rig.in_use = {1}
    assert not rig.tell(events.Retained(2, True, 0))
    assert rig.wishes == [rig.now_ns + ResidencyPolicy().retry_ns]
    rig.tell(events.Retained(1, False, SECOND))
    rig.ask(1, 7)
    assert rig.wishes == [rig.now_ns + SECOND], "it is kept warm so long"
    rig.in_use = ()
    assert rig.tell(events.Settle(), after_ms=1_000) == [actions.Unload(1)]
    assert rig.tell(events.Done(1)) == [actions.Load(2, True)]


def test_what_is_pinned_and_failed_is_tried_again_when_its_pause_is_over() -> None:
    rig = Rig(100)
    rig.add(1, Residency.COLD)
    assert rig.tell(events.Retained(1, True, 0)) == [actions.Load(1, True)]
    assert rig.tell(events.Failed(1)) == [actions.Load(1, True)]
    assert not rig.tell(events.Failed(1))
    assert rig.wishes == [rig.now_ns + SECOND]
    assert rig.tell(events.Settle(), after_ms=1_000) == [actions.Load(1, True)]


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


def test_nobody_asks_whether_a_model_is_in_use_that_time_keeps_in_memory() -> None:
    rig = Rig(200)
    for model in (1, 2, 3):
        rig.add(model, Residency.COLD if model == 3 else Residency.RESIDENT)
    rig.tell(events.Retained(1, False, 3_000 * MS))
    rig.ask(1, 7)
    assert not rig.checked
    rig.ask(3, 8)
    assert rig.checked == {2}


def test_each_device_has_a_budget_of_its_own() -> None:
    accountant = Accountant(ResidencyPolicy(), [Budget(CPU, 100), Budget(GPU, 100)])
    for model, device in ((1, CPU), (2, GPU), (3, GPU)):
        footprint = Footprint(100, 0)
        residency = Residency.COLD if model == 3 else Residency.RESIDENT
        assert not accountant.step(events.Added(model, device, residency, footprint, MS, MS), 1)
    asked = accountant.step(events.Asked(3, 7, LATE, 1), 2)
    assert asked[1:] == [
        actions.CheckUse(GPU, (2,)),
    ]
    assert accountant.step(events.UseChecked(GPU, frozenset({2})), 2)[0] == actions.Unload(2)
    assert accountant.statistics(CPU).used_bytes == 100
    assert accountant.step(events.BudgetSet(Budget(CPU, 50)), 3) == [actions.CheckUse(CPU, (1,))]
    accountant.check_integrity()
