"""What an admission charges and takes from the spares of others, number by number. Times are in fine buckets of
``charges``, so that sums are exact."""

from __future__ import annotations

import pytest

from appliance.core.scheduling.admission import (
    RECOUNT_EVERY,
    RECOUNT_MAX,
    admit,
    recount,
    release_hold,
    smallest_spare,
    spend,
)
from appliance.core.scheduling.charges import FINE_SHIFT
from appliance.core.scheduling.group import LEVEL_DELAYED, NEVER, BatchKey, Group, Lane, Model, QueuedRequest
from appliance.core.scheduling.profile import ServiceTime
from appliance.core.scheduling.queueing import enqueue
from appliance.domain.model import Batching

UNIT = 1 << FINE_SHIFT
FAR = 1_000


def group_of(*frees: int) -> Group:
    """A group whose lanes are busy until ``frees``; now is 0."""
    group = Group(1)
    for number, free in enumerate(frees or (0,)):
        lane = Lane(number, group)
        lane.leased_requests, lane.free_ns = 1, free * UNIT
        group.lanes.append(lane)
    return group


def key_of(group: Group, *, fixed: int = 8, per_row: int = 1, planned: int = 8) -> BatchKey:
    key = BatchKey(len(group.models), Model(1, group, planned, Batching()), ServiceTime(0.0))
    group.models.append(key.model)
    key.fixed_ns, key.per_row_ns, key.plan_rows = fixed * UNIT, per_row * UNIT, planned
    key.plan_ns = key.fixed_ns + key.per_row_ns * planned
    return key


def request(key: BatchKey, due: int, *, level: int = 1, rows: int = 1) -> QueuedRequest:
    return QueuedRequest(1, key, rows, 0, level, due if due == NEVER else due * UNIT, 1 << 20, 0)


def queue(key: BatchKey, due: int, *, level: int = 1, charge: int = 1, own: int = 0, waste: int = 0) -> None:
    """Have a request wait that was admitted with these numbers."""
    group, entry = key.model.group, request(key, due, level=level)
    entry.sequence = group.queued
    entry.charge_ns, entry.own_ns, entry.waste_ns = charge * UNIT, own * UNIT, waste * UNIT
    enqueue(group, entry)


def spares(group: Group) -> dict[int, float]:
    return {level: spare_ns / UNIT for level, spare_ns in group.promises.spare_ns.items()}


# --- what is charged


@pytest.mark.parametrize(
    ("due", "ahead", "rows", "late"),
    [
        (9, 0, 1, 0),
        (8, 0, 1, 8),
        (16, 3, 1, 3),
        (17, 3, 1, 2),
        (9, 0, 8, 7),
    ],
)
def test_only_what_its_planned_batch_alone_makes_late_is_promised_its_own_rows(
    due: int, ahead: int, rows: int, late: int
) -> None:
    """Planned are 16 for eight rows; one row alone takes 9."""
    group = group_of()
    other, key = key_of(group, fixed=0, per_row=0), key_of(group)
    if ahead:
        queue(other, 1, charge=ahead)
    assert admit(group, request(key, due, rows=rows), 0, 0) == late * UNIT


@pytest.mark.parametrize(
    ("rows", "retried", "behind", "charge", "waste", "own"),
    [
        (1, False, False, 2, 0, 16),
        (1, False, True, 2, 0, 16),
        (4, False, False, 8, 0, 16),
        (4, False, True, 14, 6, 16),
        (8, False, True, 30, 14, 16),
        (9, False, False, 17, 0, 17),
        (9, False, True, 33, 16, 17),
        (1, True, False, 16, 0, 16),
        (1, True, True, 32, 16, 16),
    ],
)
def test_the_rows_wasted_ahead_count_where_something_is_ahead(
    rows: int, retried: bool, behind: bool, charge: int, waste: int, own: int
) -> None:
    group = group_of()
    key = key_of(group)
    if behind:
        queue(key, 1)
    entry = request(key, FAR, rows=rows)
    if retried:
        entry.retried = entry.uneven = True
    assert admit(group, entry, 0, 0) == 0
    assert (entry.charge_ns, entry.waste_ns, entry.own_ns) == (charge * UNIT, waste * UNIT, own * UNIT)


@pytest.mark.parametrize(("due", "admitted"), [(15, True), (14, False)])
def test_a_tight_request_pays_for_the_batch_that_it_closes_early(due: int, admitted: bool) -> None:
    """Three lanes have 18 until the latest start of one row that is due at 15: 2 are ahead, 16 wasted."""
    group = group_of(0, 0, 0)
    key = key_of(group)
    queue(key, 1, charge=2)
    entry = request(key, due)
    assert (admit(group, entry, 0, 0) == 0) == admitted
    assert (entry.charge_ns, entry.waste_ns) == (32 * UNIT, 16 * UNIT)


# --- what others pay


@pytest.mark.parametrize(
    ("due", "other", "uneven", "cost"),
    [(100, True, 0, 10), (99, True, 0, 20), (99, False, 0, 10), (99, False, 1, 20), (101, True, 1, 10)],
)
def test_who_becomes_first_pays_for_a_batch_that_was_not_counted(
    due: int, other: bool, uneven: int, cost: int
) -> None:
    """First is who is due before the first, not with it: that one came earlier."""
    group = group_of()
    key = key_of(group, fixed=10, per_row=0, planned=1)
    queue(key, 100)
    queue(key_of(group, fixed=5, per_row=0, planned=1) if other else key, 200, level=2)
    key.uneven = uneven
    group.promises.spare_ns = {2: 500 * UNIT}
    assert admit(group, request(key, due), 0, 0) == 0
    ahead = (5 if other else 0) + (due >= 100)
    assert spares(group) == {1: due - 10 - ahead, 2: 500 - cost}, "only what is ahead counts against its own"


def test_work_put_ahead_of_a_level_is_put_ahead_of_the_less_urgent_ones() -> None:
    group = group_of()
    group.promises.spare_ns = {1: 3, 2: 9, 3: 7}
    assert [smallest_spare(group, level, 0) for level in (1, 2, 3)] == [3, 7, 7]
    spend(group, 2, 5)
    assert group.promises.spare_ns == {1: 3, 2: 4, 3: 2}


def test_the_time_that_an_idle_lane_waited_is_taken_once() -> None:
    group = group_of(0, 0)
    group.promises.spare_ns = {1: 50}
    release_hold(group, 8)
    assert group.promises.spare_ns == {1: 50}, "none waited"
    group.held_ns = 3
    assert smallest_spare(group, 1, 8) == 40
    release_hold(group, 8)
    assert (group.promises.spare_ns, group.held_ns) == ({1: 40}, 0)


# --- counted anew


@pytest.mark.parametrize(("held_ns", "after"), [(0, 0), (3, 8)])
def test_a_wait_that_goes_on_is_counted_from_now(held_ns: int, after: int) -> None:
    group = group_of()
    group.held_ns = held_ns
    recount(group, 8, 0)
    assert group.held_ns == after


@pytest.mark.parametrize(("cost", "missing", "left"), [(9, 0, 73), (82, 0, 0), (83, 1, 82)])
def test_a_cost_is_taken_from_those_behind_if_all_of_them_can_bear_it(
    cost: int, missing: int, left: int
) -> None:
    """Who is due with the one that comes was there before, and is not overtaken; the delayed are promised nothing."""
    group = group_of()
    key = key_of(group, fixed=0, per_row=0)
    queue(key, 50, charge=2, own=1)
    queue(key, 90, level=2, charge=4, own=6)
    queue(key, FAR, level=LEVEL_DELAYED)
    assert recount(group, 0, 0, (1, 50 * UNIT), cost * UNIT) == missing * UNIT
    assert spares(group) == {1: 49, 2: left}


@pytest.mark.parametrize(
    ("queued", "recount_in", "held_ns", "spare", "admitted"),
    [
        (RECOUNT_MAX, 5, 0, 0, True),
        (RECOUNT_MAX + 1, 5, 0, 0, False),
        (RECOUNT_MAX + 1, 5, 0, 1, True),
        (RECOUNT_MAX + 1, 1, 0, 0, True),
        (RECOUNT_MAX + 1, 2, 0, 0, False),
        (RECOUNT_MAX + 1, 1, 1, 0, False),
    ],
)
def test_a_long_queue_is_counted_anew_now_and_then(
    queued: int, recount_in: int, held_ns: int, spare: int, admitted: bool
) -> None:
    group = group_of()
    key = key_of(group, fixed=1, per_row=0, planned=1)
    for _ in range(queued):
        queue(key, FAR, level=2, own=1)
    group.promises.spare_ns = {2: spare * UNIT}
    group.promises.recount_in, group.held_ns = recount_in, held_ns
    assert (admit(group, request(key, 500), 1, 0) == 0) == admitted


def test_the_sums_of_a_long_queue_tell_those_behind_from_those_before() -> None:
    """Level 1 ends where the one that comes is due; nothing is known of level 3, where nothing is due."""
    group = group_of()
    key = key_of(group, fixed=1, per_row=0, planned=1)
    queue(key, 499, own=100)
    for _ in range(RECOUNT_MAX):
        queue(key, FAR, level=2, own=1)
    queue(key, NEVER, level=3)
    group.promises.spare_ns = {1: 0, 2: 0, 3: 7 * UNIT}
    assert admit(group, request(key, 500), 0, 0) == 0
    assert spares(group) == {1: 499 - 100 - 2, 2: FAR - 100 - 2 - RECOUNT_MAX - 1, 3: 7}
    assert group.promises.recount_in == RECOUNT_EVERY
