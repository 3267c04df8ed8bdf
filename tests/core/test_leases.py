"""A front end is leased lanes only while nothing waits, and what it does there counts in every plan."""

from __future__ import annotations

import pytest

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Action, Dispatch, Expired, GrantLease, Lost, RevokeLease
from appliance.domain.model import Batching, QueuePolicy
from tests.core.rig import MILLISECOND, START_NS, Rig
from tests.core.scheduler_detail import batch_keys, lanes


def granting(*, lanes: int = 1, settled: bool = True, **kwargs: object) -> Rig:
    """A rig whose ``lanes`` can be leased: their numbers start at 11. They are, when ``settled``."""
    rig = Rig(lanes=0, **kwargs)  # type: ignore[arg-type]
    for lane in range(11, 11 + lanes):
        rig.step(on.LaneOpened(lane, 1, True), 0)
    if settled:
        assert rig.settle() == [GrantLease(lane) for lane in range(11, 11 + lanes)]
    return rig


def work(rig: Rig, ms: float, at: float, *, requests: int = 1, lane: int = 11) -> None:
    """The front end tells what it has under way."""
    assert rig.step(on.LeasedWork(lane, requests if ms else 0, int(ms * MILLISECOND)), at) == []


def ran(
    rig: Rig, ms: float, at: float, *, rows: int = 1, batches: int = 1, lane: int = 11, batch_key: int = 1
) -> None:
    """The front end tells what ran."""
    assert rig.step(on.LeasedRan(lane, batch_key, rows, int(ms * MILLISECOND), batches), at) == []


def of(kind: type[Action], actions: list[Action]) -> list[Action]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


# --- when


def test_only_lanes_that_can_be_are_leased_and_once() -> None:
    rig = Rig()
    rig.step(on.LaneOpened(2, 1, True), 0)
    assert rig.settle() == [GrantLease(2)]
    assert rig.settle() == []
    assert [lane.leased for lane in lanes(rig.scheduler)] == [False, True]


def test_a_grant_never_bypasses_a_backlog() -> None:
    """It ends in the very Settle that leaves something queued, and comes back in the one that leaves nothing."""
    rig = granting(max_batch=1)
    rig.arrive(1)
    assert rig.settle() == [Dispatch(1, 11, 1, (1,))]
    rig.arrive(2)
    assert rig.settle() == [RevokeLease(11)]
    rig.arrive(3)
    assert rig.settle() == []
    rig.finish(1, at=9)
    assert rig.settle(at=9) == [Dispatch(2, 11, 1, (2,))]
    rig.finish(2, at=18)
    assert rig.settle(at=18) == [Dispatch(3, 11, 1, (3,)), GrantLease(11)]


def test_a_queue_that_clients_leave_is_no_backlog() -> None:
    rig = granting(max_batch=1)
    rig.arrive(1)
    rig.arrive(2)
    assert of(RevokeLease, rig.settle()) == [RevokeLease(11)]
    rig.step(on.CancelRequested(2), 1)
    assert rig.settle(at=1) == [GrantLease(11)]


def test_a_queue_that_expires_is_no_backlog() -> None:
    rig = granting(max_batch=1)
    rig.arrive(1, due=20)
    rig.arrive(2, due=30)
    assert of(RevokeLease, rig.settle()) == [RevokeLease(11)]
    assert rig.settle(at=30) == [Expired(2), GrantLease(11)]


@pytest.mark.parametrize(
    "batching",
    [
        Batching(priority_levels=2, default_priority_level=1),
        Batching(max_queue_delay_us=100),
        Batching(default_queue_policy=QueuePolicy(default_timeout_us=100)),
        Batching(default_queue_policy=QueuePolicy(max_queue_size=5)),
    ],
)
def test_one_model_that_orders_or_holds_its_queue_keeps_the_group_from_grants(batching: Batching) -> None:
    rig = granting(batching=batching, settled=False)
    assert rig.settle() == []
    rig = granting(lanes=2)
    rig.open_model(2, batching=batching)
    assert rig.settle() == [RevokeLease(11), RevokeLease(12)]
    rig.step(on.ModelClosed(2), 1)
    assert rig.settle(at=1) == [GrantLease(11), GrantLease(12)]


def test_a_model_that_came_before_any_lane_counts_as_well() -> None:
    rig = Rig(lanes=0)
    rig.open_model(2, batching=Batching(max_queue_delay_us=100))
    rig.step(on.LaneOpened(11, 1, True), 0)
    assert rig.settle() == []


def test_a_lane_that_comes_back_is_leased_again() -> None:
    rig = granting()
    assert rig.step(on.LaneClosed(11, START_NS + MILLISECOND), 0) == []
    rig.step(on.LaneOpened(11, 1, True), 1)
    assert rig.settle(at=1) == [GrantLease(11)]


def test_a_lane_that_comes_back_to_a_queue_is_leased_after_it() -> None:
    rig = granting()
    rig.step(on.LaneClosed(11, START_NS + MILLISECOND), 0)
    rig.arrive(1)
    assert rig.settle() == []
    rig.step(on.LaneOpened(11, 1, True), 1)
    assert rig.settle(at=1) == [Dispatch(1, 11, 1, (1,)), GrantLease(11)]


def test_groups_do_not_share_grants() -> None:
    rig = granting(max_batch=1)
    rig.step(on.GroupOpened(2), 0)
    rig.step(on.LaneOpened(21, 2, True), 0)
    assert rig.settle() == [GrantLease(21)]
    rig.arrive(1)
    rig.arrive(2)
    assert of(RevokeLease, rig.settle()) == [RevokeLease(11)]
    rig.step(on.GroupClosed(1), 1)
    assert rig.settle(at=1) == []


# --- what it counts with


@pytest.mark.parametrize(("due", "admitted"), [(38, False), (39, True)])
def test_leased_work_is_ahead_of_what_arrives(due: float, admitted: bool) -> None:
    """30 ms of it, and 9 ms for a batch of one: else a promise is broken."""
    rig = granting(max_batch=1)
    work(rig, 30, at=0)
    assert (rig.arrive(1, due=due) == []) == admitted


@pytest.mark.parametrize(("due", "admitted"), [(47, False), (48, True)])
def test_leased_work_behind_a_batch_is_ahead_as_well(due: float, admitted: bool) -> None:
    rig = granting(max_batch=1)
    rig.arrive(1)
    rig.batches()
    work(rig, 30, at=0)
    assert (rig.arrive(2, due=due) == []) == admitted


@pytest.mark.parametrize(("due", "admitted"), [(47, False), (48, True)])
def test_leased_work_that_a_batch_was_sent_before_is_still_ahead(due: float, admitted: bool) -> None:
    """The batch ends after 9 ms; of 30 ms of leased work nothing ran meanwhile."""
    rig = granting(max_batch=1)
    rig.arrive(1, due=10)
    work(rig, 30, at=0)
    assert of(Dispatch, rig.settle()) == [Dispatch(1, 11, 1, (1,))]
    rig.finish(1, at=9)
    assert (rig.arrive(2, at=9, due=due) == []) == admitted


@pytest.mark.parametrize(("due", "admitted"), [(58, False), (59, True)])
def test_overdue_leased_work_needs_as_long_again_as_it_is_late(due: float, admitted: bool) -> None:
    rig = granting(max_batch=1)
    work(rig, 30, at=0)
    assert (rig.arrive(1, at=40, due=due) == []) == admitted


@pytest.mark.parametrize(("due", "admitted"), [(27, False), (28, True)])
def test_what_ran_beside_a_batch_made_it_later(due: float, admitted: bool) -> None:
    """A leased batch of 5 ms came first, and a new one of 5 ms is there: 9 + 5 + 5 ms from the dispatch on."""
    rig = granting(max_batch=1)
    rig.arrive(1, due=10)
    work(rig, 5, at=0)
    assert of(Dispatch, rig.settle()) == [Dispatch(1, 11, 1, (1,))]
    ran(rig, 5, at=6, batch_key=99)
    work(rig, 5, at=6)
    assert (rig.arrive(2, at=6, due=due) == []) == admitted


@pytest.mark.parametrize(("due", "admitted"), [(28, False), (29, True)])
def test_the_leased_work_of_every_lane_counts(due: float, admitted: bool) -> None:
    rig = granting(max_batch=1, lanes=2)
    work(rig, 20, at=0, lane=11)
    work(rig, 30, at=0, lane=12)
    assert (rig.arrive(1, due=due) == []) == admitted


def test_a_lane_of_which_nothing_is_told_any_more_is_free() -> None:
    rig = granting(max_batch=1)
    work(rig, 30, at=0)
    work(rig, 0, at=2)
    assert rig.arrive(1, at=2, due=11) == []


def test_leased_work_makes_arrivals_wait_and_batch() -> None:
    rig = granting()
    work(rig, 30, at=0, requests=4)
    rig.arrive(1)
    assert rig.settle() == [RevokeLease(11)]
    rig.arrive(2, at=1)
    assert rig.settle(at=1) == []
    work(rig, 0, at=20)
    assert rig.settle(at=20) == [Dispatch(1, 11, 1, (1, 2)), GrantLease(11)]


def test_a_lane_that_should_have_drained_is_filled_without_waiting_for_the_news() -> None:
    rig = granting()
    work(rig, 30, at=0)
    rig.arrive(1)
    assert rig.woken_at() == 30
    assert of(Dispatch, rig.settle(at=30)) == [Dispatch(1, 11, 1, (1,))]


def test_a_lane_that_drains_soon_is_sent_its_batch_ahead() -> None:
    rig = granting(prefetch_ns=3 * MILLISECOND)
    work(rig, 3, at=0)
    rig.arrive(1)
    assert rig.settle() == [Dispatch(1, 11, 1, (1,))]


def test_an_idle_lane_is_taken_before_one_with_leased_work() -> None:
    rig = granting(lanes=2, prefetch_ns=3 * MILLISECOND)
    work(rig, 2, at=0, lane=11)
    rig.arrive(1)
    assert rig.settle() == [Dispatch(1, 12, 1, (1,))]


def test_a_promise_that_leased_work_would_break_goes_before_it() -> None:
    """The work came after the promise, and the worker takes what it is sent first."""
    rig = granting(max_batch=1)
    rig.arrive(1, due=10)
    work(rig, 30, at=0)
    assert rig.settle() == [Dispatch(1, 11, 1, (1,))]


def test_news_of_a_lane_that_is_gone_mean_nothing() -> None:
    rig = granting()
    rig.step(on.LaneClosed(11, 0), 0)
    work(rig, 30, at=1)
    ran(rig, 3, at=1, batch_key=99)
    assert lanes(rig.scheduler) == []


def test_statistics_tell_what_a_front_end_has_under_way() -> None:
    rig = granting()
    work(rig, 30, at=0, requests=3)
    lane = lanes(rig.scheduler)[0]
    assert (lane.leased, lane.leased_requests, lane.free_ns) == (True, 3, START_NS + 30 * MILLISECOND)


# --- what is learned


def test_leased_batches_are_learned_from_but_not_without_bound() -> None:
    rig = granting(seeded=False)
    ran(rig, 5, at=1, rows=2)
    batch_key = batch_keys(rig.scheduler)[0]
    assert batch_key.profile.known
    assert batch_key.fixed_ns + 2 * batch_key.per_row_ns == pytest.approx(5 * MILLISECOND, rel=0.01)
    few, many = granting(), granting()
    ran(few, 20, at=1, rows=8, batches=4)
    ran(many, 20, at=1, rows=8, batches=1_000_000)
    (of_few,), (of_many,) = batch_keys(few.scheduler), batch_keys(many.scheduler)
    assert (of_few.fixed_ns, of_few.per_row_ns) == (of_many.fixed_ns, of_many.per_row_ns)


def learned(rig: Rig) -> bool:
    """Whether 8 + n ms are not what is believed any more."""
    batch_key = batch_keys(rig.scheduler)[0]
    return (batch_key.fixed_ns, batch_key.per_row_ns) != (8 * MILLISECOND, MILLISECOND)


def test_time_beside_leased_work_is_learned_from_the_worker_only() -> None:
    rig = granting(prefetch_ns=3 * MILLISECOND)
    work(rig, 2, at=0)
    rig.arrive(1)
    rig.batches()
    rig.step(on.BatchFinished(1, True), 20)
    assert not learned(rig)
    rig.arrive(2, at=20)
    rig.settle(at=20)
    rig.settle(at=22)
    assert rig.step(on.BatchFinished(2, True, 9 * MILLISECOND), 60) == []
    assert not learned(rig)


def test_the_clock_is_believed_when_no_leased_work_was_told() -> None:
    rig = granting()
    rig.arrive(1)
    rig.batches()
    rig.step(on.BatchFinished(1, True), 30)
    assert learned(rig)


# --- prices


def test_the_price_is_what_admission_counts_with() -> None:
    """A batch of eight rows takes 16 ms; with exact estimates it is also what a batch of more rows costs per row."""
    rig = granting(margin_ns=MILLISECOND)
    price = rig.scheduler.price(1)
    assert price.batch_ns == (8 + price.batch_rows) * MILLISECOND
    assert price.charge_per_row_ns == -(-price.batch_ns // price.batch_rows)
    assert price.margin_ns == MILLISECOND
    assert rig.scheduler.price(99) == (0, 0, MILLISECOND, 0)


def test_the_price_follows_the_time_that_requests_bring() -> None:
    """With 22 ms each, a batch can wait for another like it when both take 11 ms: three rows."""
    rig = granting()
    assert rig.scheduler.price(1).batch_rows > 3
    assert rig.step(on.BudgetSeen(1, 22 * MILLISECOND), 1) == []
    assert rig.step(on.BudgetSeen(99, 22 * MILLISECOND), 1) == []
    assert rig.scheduler.price(1).batch_rows == 3


def test_many_single_requests_do_not_end_larger_batches_for_good() -> None:
    """Beside what larger batches took long ago, single ones that take a ninth seem to have no fixed part."""
    rig = granting()
    ran(rig, 16, at=1, rows=8)
    for at in range(2, 100):
        ran(rig, 1, at=at)
    assert rig.scheduler.price(1).batch_rows == 2
    for at in range(100, 110):
        ran(rig, 1.1, at=at, rows=2)
    assert rig.scheduler.price(1).batch_rows > 4


def test_a_model_that_merges_nothing_is_planned_with_one_row() -> None:
    assert granting(max_batch=1).scheduler.price(1).batch_rows == 1


def test_nothing_known_costs_nothing() -> None:
    rig = granting(seeded=False)
    assert rig.scheduler.price(1)[:3] == (0, 0, 0)


# --- retried requests


def test_a_request_that_a_worker_died_with_runs_alone_and_is_lost_with_the_next() -> None:
    rig = granting()
    rig.arrive(1)
    rig.step(on.Arrived(2, 1, 1, 100, 0, START_NS + 1_000 * MILLISECOND, 0, True), 0)
    rig.arrive(3)
    assert rig.batches_in(rig.settle()) == [(2,)]
    assert rig.step(on.LaneClosed(11, START_NS + 20 * MILLISECOND), 5) == [Lost(2)]
    rig.step(on.LaneOpened(11, 1, True), 20)
    assert rig.batches_in(rig.settle(at=20)) == [(1, 3)]


def test_nothing_is_sent_ahead_to_share_the_fate_of_a_retried_request() -> None:
    rig = Rig(max_batch=1, prefetch_ns=20 * MILLISECOND)
    rig.step(on.Arrived(1, 1, 1, 100, 0, START_NS + 500 * MILLISECOND, 0, True), 0)
    assert rig.batches() == [(1,)]
    rig.arrive(2)
    assert rig.batches() == []
    rig.finish(1, at=9)
    assert rig.batches(at=9) == [(2,)]


def test_a_retried_request_is_not_sent_ahead() -> None:
    rig = Rig(max_batch=1, prefetch_ns=20 * MILLISECOND)
    rig.arrive(1)
    assert rig.batches() == [(1,)]
    rig.step(on.Arrived(2, 1, 1, 100, 0, START_NS + 500 * MILLISECOND, 0, True), 0)
    assert rig.batches() == []
    rig.finish(1, at=9)
    assert rig.batches(at=9) == [(2,)]
