"""Lanes die, models close, clients leave: every request still ends exactly once, and innocents go on."""

from __future__ import annotations

import pytest

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Dropped, Evicted, Lost, RefusalReason, Refused
from appliance.domain.model import Batching
from tests.core.rig import MILLISECOND, START_NS, Rig
from tests.core.scheduler_detail import is_empty, running_requests


def back(at: float) -> int:
    """A time in the clock of the scheduler."""
    return START_NS + int(at * MILLISECOND)


def test_what_ran_is_tried_once_more_alone_and_then_lost() -> None:
    rig = Rig()
    for request in (1, 2, 3):
        rig.arrive(request)
    assert rig.batches() == [(1, 2, 3)]
    assert rig.step(on.LaneClosed(1, back(20)), 5) == []
    rig.step(on.LaneOpened(1, 1), 20)
    assert rig.batches(at=20) == [(1,)]
    assert rig.step(on.LaneClosed(1, back(40)), 25) == [Lost(1)]
    rig.step(on.LaneOpened(1, 1), 40)
    assert rig.batches(at=40) == [(2,)]
    rig.finish(3, at=50)
    assert rig.batches(at=50) == [(3,)]


def test_a_newcomer_does_not_ride_with_a_retried_request() -> None:
    rig = Rig()
    rig.arrive(1)
    rig.batches()
    rig.step(on.LaneClosed(1, back(20)), 5)
    rig.arrive(2, at=6)
    rig.step(on.LaneOpened(1, 1), 20)
    assert rig.batches(at=20) == [(1,)]
    rig.finish(2, at=29)
    assert rig.batches(at=29) == [(2,)]


def test_a_retry_that_would_be_late_is_lost_at_once() -> None:
    rig = Rig()
    rig.arrive(1, due=16)
    rig.arrive(2, due=100)
    assert rig.batches() == [(1, 2)]
    assert rig.step(on.LaneClosed(1, back(10)), 9) == [Lost(1)]


@pytest.mark.parametrize("ends", ["with its batch", "with its group"])
def test_a_model_serves_elsewhere_before_what_it_ran_where_it_was_closed_has_ended(ends: str) -> None:
    rig = Rig()
    rig.arrive(1)
    assert rig.batches() == [(1,)]
    rig.step(on.ModelClosed(1), 1)
    rig.step(on.GroupOpened(2), 2)
    rig.step(on.LaneOpened(2, 2), 2)
    rig.step(on.ModelOpened(1, 2, 8, Batching()), 2)
    rig.open_batch_key(9, 1)
    rig.arrive(2, at=3, batch_key=9)
    assert rig.batches(at=3) == [(2,)]
    if ends == "with its batch":
        rig.finish(1, at=4)
        rig.step(on.BatchKeyClosed(1), 5)
    else:
        assert rig.step(on.GroupClosed(1), 4) == [Lost(1)]
    rig.finish(2, at=6)
    rig.arrive(3, at=7, batch_key=9)
    assert rig.batches(at=7) == [(3,)]
    rig.finish(3, at=8)
    rig.scheduler.check_integrity()


def test_a_model_that_is_open_is_not_opened() -> None:
    rig = Rig()
    with pytest.raises(AssertionError, match="opened twice"):
        rig.step(on.ModelOpened(1, 1, 8, Batching()), 0)


def test_news_of_a_lost_batch_is_ignored() -> None:
    rig = Rig()
    rig.arrive(1)
    rig.batches()
    rig.step(on.LaneClosed(1, back(20)), 5)
    assert rig.step(on.BatchFinished(1, True), 6) == []
    assert rig.step(on.BatchFinished(99, True), 6) == []
    assert rig.scheduler.statistics().queued == 1


def test_the_last_lane_takes_the_queue_with_it_when_none_comes_back() -> None:
    rig = Rig(max_batch=1)
    rig.arrive(1)
    rig.arrive(2)
    rig.batches()
    assert set(rig.step(on.LaneClosed(1, 0), 5)) == {Lost(1), Lost(2)}
    assert rig.arrive(3, at=6) == [Refused(3, RefusalReason.NO_LANE, 0)]


def test_a_lane_that_is_awaited_and_given_up_loses_the_queue() -> None:
    rig = Rig(max_batch=1)
    rig.step(on.LaneClosed(1, back(20)), 1)
    assert rig.arrive(1, at=2) == []
    assert rig.step(on.LaneClosed(1, 0), 3) == [Lost(1)]


def test_a_replacement_may_have_another_id() -> None:
    rig = Rig(max_batch=1)
    rig.step(on.LaneClosed(1, back(20)), 1)
    rig.arrive(1, at=2)
    rig.step(on.LaneOpened(7, 1), 20)
    assert rig.batches(at=20) == [(1,)]
    assert set(rig.step(on.LaneClosed(7, 0), 21)) == {Lost(1)}


@pytest.mark.parametrize(("due", "admitted"), [(28, False), (29, True)])
def test_admission_counts_from_the_return_of_the_lane(due: float, admitted: bool) -> None:
    rig = Rig(max_batch=1)
    rig.step(on.LaneClosed(1, back(20)), 0)
    assert (rig.arrive(1, due=due) == []) == admitted


def test_another_lane_takes_over() -> None:
    rig = Rig(lanes=2)
    rig.arrive(1)
    rig.batches()
    rig.step(on.LaneClosed(1, back(1000)), 1)
    assert rig.batches(at=1) == [(1,)]


def test_cancelling_queued_running_and_unknown_requests() -> None:
    rig = Rig(max_batch=1)
    rig.arrive(1)
    rig.arrive(2)
    rig.batches()
    assert rig.step(on.CancelRequested(2), 1) == [Dropped(2)]
    assert rig.step(on.CancelRequested(2), 1) == []
    assert rig.step(on.CancelRequested(1), 1) == []
    assert rig.step(on.CancelRequested(99), 1) == []
    rig.finish(1, at=9)
    assert rig.batches(at=9) == []


def test_a_closed_model_evicts_its_queue_and_what_would_be_retried() -> None:
    rig = Rig(max_batch=1)
    rig.open_model(2)
    rig.open_batch_key(2, 2, seeds=Rig.seeds(1, 1, 8))
    rig.arrive(1)
    rig.arrive(2)
    rig.arrive(3, batch_key=2)
    rig.batches()
    assert rig.step(on.ModelClosed(1), 1) == [Evicted(2)]
    rig.step(on.BatchKeyClosed(1), 1)
    assert rig.step(on.LaneClosed(1, back(20)), 2) == [Evicted(1)]
    rig.step(on.LaneOpened(1, 1), 20)
    assert rig.batches(at=20) == [(3,)]


def test_a_batch_of_a_closed_model_still_ends() -> None:
    rig = Rig()
    rig.arrive(1)
    rig.batches()
    rig.step(on.ModelClosed(1), 1)
    rig.step(on.BatchKeyClosed(1), 1)
    rig.finish(1, at=9, learn=True)
    assert running_requests(rig.scheduler) == 0


def test_a_closed_group_leaves_nothing() -> None:
    rig = Rig(max_batch=1)
    rig.arrive(1, due=500)
    rig.arrive(2, due=600)
    rig.batches()
    assert set(rig.step(on.GroupClosed(1), 5)) == {Lost(1), Lost(2)}
    assert is_empty(rig.scheduler)
    assert rig.settle(1_000) == []
    assert rig.arrive(3, at=1_000) == [Refused(3, RefusalReason.UNKNOWN, 0)]
    assert rig.step(on.ModelClosed(1), 1_000) == [], (
        "whoever watched a version at the end of the daemon closes it late"
    )


def test_contradictions_are_programmers_errors() -> None:
    rig = Rig()
    rig.arrive(1)
    for event in (on.GroupOpened(1), on.LaneOpened(1, 1), on.BatchKeyOpened(1, 1, ()), on.BatchKeyClosed(1)):
        with pytest.raises(AssertionError):
            rig.scheduler.step(event, START_NS)
    with pytest.raises(AssertionError):
        rig.arrive(1)
