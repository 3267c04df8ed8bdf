"""Who goes first: by priority level, then deadline, then arrival; and what time-outs do to that."""

from __future__ import annotations

import pytest

from appliance.core.scheduling.actions import Expired
from appliance.domain.model import Batching, QueuePolicy, TimeoutAction
from tests.core.rig import Rig

LEVELS = Batching(priority_levels=3, default_priority_level=2)


def order(rig: Rig, count: int) -> list[int]:
    """Requests in the order in which a lane that takes one at a time gets them; batch 1 runs already."""
    served: list[int] = []
    for batch in range(1, count + 1):
        rig.finish(batch, at=batch)
        served += [request for requests in rig.batches(at=batch) for request in requests]
    return served


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ([(1, 0, 300), (2, 0, 200), (3, 0, 250)], [2, 3, 1]),
        ([(1, 0, 300), (2, 0, 300), (3, 0, 300)], [1, 2, 3]),
        ([(1, 0, None), (2, 0, 300), (3, 0, None)], [2, 1, 3]),
        ([(1, 3, 300), (2, 1, 900), (3, 2, 800)], [2, 3, 1]),
        ([(1, 0, 800), (2, 2, 700), (3, 3, 600)], [2, 1, 3]),
        ([(1, 9, 800), (2, 1, 900), (3, 3, 700)], [2, 1, 3]),
        ([(1, 3, None), (2, 3, 900), (3, 1, None)], [3, 2, 1]),
    ],
    ids=[
        "earliest deadline",
        "arrival breaks ties",
        "no deadline comes last",
        "level before deadline",
        "no priority means the default level",
        "a level that does not exist means the default one",
        "an urgent level without a deadline comes before deadlines",
    ],
)
def test_order(arrivals: list[tuple[int, int, float | None]], expected: list[int]) -> None:
    rig = Rig(max_batch=1, fixed=1, per_row=0, batching=LEVELS)
    rig.occupy()
    for request, priority, due in arrivals:
        assert rig.arrive(request, priority=priority, due=due) == []
    assert order(rig, len(expected)) == expected


def test_without_levels_priority_means_nothing() -> None:
    rig = Rig(max_batch=1)
    rig.occupy()
    rig.arrive(1, priority=5, due=500)
    rig.arrive(2, priority=1, due=600)
    assert order(rig, 2) == [1, 2]


def test_a_mate_is_taken_in_order_too() -> None:
    rig = Rig(max_batch=2)
    rig.occupy()
    for request, due in ((1, 900), (2, 700), (3, 800)):
        rig.arrive(request, due=due)
    rig.finish(1, at=9)
    assert rig.batches(at=9) == [(2, 3)]


@pytest.mark.parametrize(
    ("due", "timeout", "policy_ms", "expired_at"),
    [
        (50, 0, 0, 50),
        (50, 30, 0, 30),
        (20, 30, 0, 20),
        (None, 40, 0, 40),
        (None, 0, 25, 25),
        (50, 30, 25, 25),
    ],
)
def test_the_earliest_limit_is_the_deadline(
    due: float | None, timeout: float, policy_ms: int, expired_at: float
) -> None:
    policy = QueuePolicy(default_timeout_us=policy_ms * 1000)
    rig = Rig(seeded=False, batching=Batching(default_queue_policy=policy))
    rig.arrive(1000, timeout=500)
    rig.settle()
    assert rig.arrive(1, due=due, timeout=timeout) == []
    assert rig.settle(expired_at - 0.001) == []
    assert rig.settle(expired_at) == [Expired(1)]


def test_each_level_has_its_own_time_out() -> None:
    urgent = QueuePolicy(default_timeout_us=10_000)
    batching = Batching(priority_levels=2, default_priority_level=2, priority_queue_policy={1: urgent})
    rig = Rig(seeded=False, batching=batching)
    rig.occupy()
    rig.arrive(1, priority=1)
    rig.arrive(2, priority=2)
    assert rig.settle(10) == [Expired(1)]
    assert rig.settle(10_000) == []


def test_a_time_out_that_delays_moves_behind_all_others_and_keeps_the_deadline() -> None:
    policy = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=10_000)
    rig = Rig(max_batch=1, seeded=False, batching=Batching(default_queue_policy=policy))
    rig.occupy()
    rig.arrive(1, due=100)
    rig.arrive(2, at=5, due=200)
    assert rig.settle(9.9) == []
    assert rig.settle(10) == []
    rig.finish(1, at=11)
    assert rig.batches(at=11) == [(2,)]
    assert rig.settle(99.9) == []
    assert rig.settle(100) == [Expired(1)]


def test_an_arrival_after_its_deadline_expires_at_once() -> None:
    assert Rig().arrive(1, at=10, due=10) == [Expired(1)]


def test_the_wish_to_be_woken_is_told_once_and_told_again_when_it_changes() -> None:
    rig = Rig(seeded=False)
    rig.occupy()
    rig.arrive(1, due=50)
    assert rig.woken_at(0) == 50
    assert rig.woken_at(1) is None
    rig.arrive(2, at=2, due=40)
    assert rig.woken_at(2) == 40
    assert rig.woken_at(40) == 50
