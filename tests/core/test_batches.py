"""Which batch a lane gets: as large as deadlines allow, waiting only where the model asks for it."""

from __future__ import annotations

import pytest

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Dispatch
from appliance.domain.model import Batching
from tests.core.rig import Rig
from tests.core.scheduler_detail import batch_keys


def test_arrivals_of_one_turn_share_a_batch_and_an_idle_lane_does_not_wait() -> None:
    rig = Rig()
    for request in (1, 2, 3):
        assert rig.arrive(request) == []
    assert rig.batches() == [(1, 2, 3)]


def test_what_arrives_while_the_lane_is_busy_becomes_the_next_batch() -> None:
    rig = Rig(max_batch=4)
    rig.occupy()
    for request in range(1, 7):
        rig.arrive(request, at=request / 10)
    rig.finish(1, at=9)
    assert rig.batches(at=9) == [(1, 2, 3, 4)]
    rig.finish(2, at=21)
    assert rig.batches(at=21) == [(5, 6)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([3, 3, 3], (1, 2)), ([8, 1], (1,)), ([5, 4, 3], (1,)), ([4, 4], (1, 2)), ([1, 6, 2], (1, 2))],
)
def test_rows_are_counted_and_the_order_is_kept(rows: list[int], expected: tuple[int, ...]) -> None:
    rig = Rig(max_batch=8)
    for request, count in enumerate(rows, start=1):
        rig.arrive(request, rows=count)
    assert rig.batches() == [expected]


@pytest.mark.parametrize(("due", "size"), [(9, 1), (11, 3), (11.9, 3), (12, 4), (100, 8)])
def test_the_largest_batch_that_meets_the_earliest_deadline(due: float, size: int) -> None:
    rig = Rig(max_batch=8)
    rig.arrive(1, due=due)
    for request in range(2, 10):
        rig.arrive(request)
    assert rig.batches() == [tuple(range(1, size + 1))]


def test_shapes_do_not_mix_and_the_most_urgent_goes_first() -> None:
    rig = Rig()
    rig.open_batch_key(2, 1, seeds=Rig.seeds(8, 1, 8))
    rig.occupy()
    for request, batch_key, due in ((1, 1, 600), (2, 2, 500), (3, 1, 700), (4, 2, 800)):
        assert rig.arrive(request, batch_key=batch_key, due=due) == []
    rig.finish(1, at=9)
    assert rig.batches(at=9) == [(2, 4)]
    rig.finish(2, at=19)
    assert rig.batches(at=19) == [(1, 3)]


def test_each_idle_lane_gets_a_batch() -> None:
    rig = Rig(max_batch=2, lanes=2)
    for request in range(1, 6):
        rig.arrive(request)
    assert rig.batches() == [(1, 2), (3, 4)]


def test_late_work_is_not_run() -> None:
    """The first batch takes longer than it should have: what cannot be in time any more makes room."""
    rig = Rig(max_batch=1, fixed=10, per_row=0)
    rig.occupy()
    rig.arrive(1, due=25)
    rig.arrive(2, due=60)
    rig.finish(1, at=20)
    assert [type(action).__name__ for action in rig.settle(20)] == ["Expired", "Dispatch"]


def test_a_late_request_with_the_lane_to_itself_is_tried_all_the_same() -> None:
    rig = Rig(max_batch=1, fixed=10, per_row=0)
    rig.occupy()
    rig.arrive(1, due=25)
    rig.finish(1, at=20)
    assert rig.batches(at=20) == [(1,)]


# --- waiting for a batch to fill

WAITS = Batching(max_queue_delay_us=5_000)
PREFERS = Batching(max_queue_delay_us=5_000, preferred_batch_size=(2, 4))


def test_a_model_that_asks_waits_until_the_oldest_has_waited_long_enough() -> None:
    rig = Rig(batching=WAITS)
    rig.arrive(1)
    assert rig.woken_at(0) == 5
    rig.arrive(2, at=3)
    assert rig.batches(at=3) == []
    assert rig.batches(at=4.9) == []
    assert rig.batches(at=5) == [(1, 2)]


def test_a_full_batch_does_not_wait() -> None:
    rig = Rig(max_batch=2, batching=WAITS)
    rig.arrive(1)
    assert rig.batches() == []
    rig.arrive(2, at=1)
    assert rig.batches(at=1) == [(1, 2)]


@pytest.mark.parametrize(("count", "expected"), [(1, []), (2, [(1, 2)]), (3, [(1, 2)]), (5, [(1, 2, 3, 4)])])
def test_a_preferred_size_does_not_wait(count: int, expected: list[tuple[int, ...]]) -> None:
    rig = Rig(batching=PREFERS)
    for request in range(1, count + 1):
        rig.arrive(request)
    assert rig.batches() == expected


@pytest.mark.parametrize(("due", "until"), [(100, 5), (20, 4), (18, 2)])
def test_waiting_never_breaks_a_promise(due: float, until: float) -> None:
    """The plan is a full batch of 16 ms, so that a deadline at 20 ms leaves 4 ms to wait."""
    rig = Rig(max_batch=8, batching=WAITS)
    for number in range(100):
        rig.arrive(5_000 + number, due=1_000)
        rig.step(on.CancelRequested(5_000 + number), 0)
    rig.arrive(1, due=due)
    assert rig.woken_at(0) == until
    assert rig.batches(at=until) == [(1,)]


def test_other_work_ends_the_waiting() -> None:
    rig = Rig(batching=WAITS)
    rig.open_model(2)
    rig.open_batch_key(2, 2, seeds=Rig.seeds(1, 1, 8))
    rig.arrive(1)
    assert rig.batches() == []
    rig.arrive(2, at=1, batch_key=2)
    assert rig.batches(at=1) == [(1,)]


# --- the next batch before the lane is idle


def lanes_of(rig: Rig, at: float) -> list[tuple[int, tuple[int, ...]]]:
    """Lane and requests of each batch that a Settle dispatches."""
    return [(action.lane, action.requests) for action in rig.settle(at) if isinstance(action, Dispatch)]


def test_a_short_full_batch_is_sent_ahead_and_not_more_than_one() -> None:
    rig = Rig(max_batch=2, fixed=1, per_row=0.5, prefetch_ns=5_000_000)
    for request in range(1, 8):
        rig.arrive(request)
    assert lanes_of(rig, 0) == [(1, (1, 2)), (1, (3, 4))]
    rig.finish(1, at=2)
    assert lanes_of(rig, 2) == [(1, (5, 6))]


@pytest.mark.parametrize(
    ("count", "fixed"),
    [(3, 1), (4, 5)],
    ids=["a batch that can grow waits", "long batches are not sent ahead"],
)
def test_not_sent_ahead(count: int, fixed: float) -> None:
    rig = Rig(max_batch=2, fixed=fixed, per_row=0.5, prefetch_ns=5_000_000)
    for request in range(1, count + 1):
        rig.arrive(request)
    assert rig.batches() == [(1, 2)]


def test_a_long_batch_is_followed_shortly_before_its_end() -> None:
    rig = Rig(max_batch=2, fixed=10, per_row=0.5, prefetch_ns=3_000_000)
    for request in range(1, 7):
        rig.arrive(request)
    assert lanes_of(rig, 0) == [(1, (1, 2))]
    rig.arrive(7, at=1)
    assert rig.woken_at(1) is None, "it was wished for already"
    assert lanes_of(rig, 7) == []
    assert lanes_of(rig, 8) == [(1, (3, 4))]
    assert lanes_of(rig, 9) == [], "one batch ahead and no more"


def test_a_busy_lane_asks_to_be_looked_at_shortly_before_its_end() -> None:
    rig = Rig(max_batch=2, fixed=10, per_row=0.5, prefetch_ns=3_000_000)
    rig.occupy()
    rig.arrive(1)
    assert rig.woken_at(0) == pytest.approx(10.5 - 3)


def test_what_may_be_late_behind_another_is_not_sent_ahead() -> None:
    rig = Rig(max_batch=1, fixed=4, per_row=0, prefetch_ns=3_000_000)
    rig.arrive(1, due=5)
    rig.arrive(2, due=8.5)
    assert lanes_of(rig, 0) == [(1, (1,))]
    assert lanes_of(rig, 3) == [(1, (2,))], "on time: free at 4, done at 8"
    rig = Rig(max_batch=1, fixed=4, per_row=0, prefetch_ns=3_000_000)
    rig.arrive(1, due=5)
    rig.arrive(2, due=8.5)
    assert lanes_of(rig, 0) == [(1, (1,))]
    assert lanes_of(rig, 4.4) == [], "overdue: expected to be free at 4.8, done at 8.8"
    rig.finish(1, at=4.5)
    assert lanes_of(rig, 4.5) == [(1, (2,))]


def test_a_batch_sent_ahead_is_timed_from_the_end_of_the_one_before() -> None:
    rig = Rig(max_batch=1, fixed=2, per_row=0, prefetch_ns=5_000_000)
    rig.arrive(1)
    rig.arrive(2)
    assert lanes_of(rig, 0) == [(1, (1,)), (1, (2,))]
    rig.finish(1, at=2, learn=True)
    rig.finish(2, at=4, learn=True)
    (batch_key,) = batch_keys(rig.scheduler)
    assert batch_key.fixed_ns + batch_key.per_row_ns == 2_000_000


def test_the_lane_that_is_free_first_is_filled() -> None:
    rig = Rig(max_batch=1, fixed=2, per_row=0, lanes=2, prefetch_ns=5_000_000)
    rig.arrive(1)
    rig.batches()
    rig.arrive(2, at=1)
    rig.arrive(3, at=1)
    assert lanes_of(rig, 1) == [(2, (2,)), (1, (3,))]
