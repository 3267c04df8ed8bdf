"""Admission by hand-made numbers: what is promised, what is refused and how far it was off."""

from __future__ import annotations

import pytest

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Action, Expired, RefusalReason, Refused
from tests.core.rig import MILLISECOND, Rig
from tests.core.scheduler_detail import batch_keys


def late_by(actions: list[Action]) -> float | None:
    """How many ms a refused request is told to be too late; None when it was admitted."""
    if not actions:
        return None
    (action,) = actions
    assert isinstance(action, Refused)
    assert action.reason is RefusalReason.DEADLINE
    return action.retry_after_ns / MILLISECOND


@pytest.mark.parametrize(
    ("queued", "due", "expected"),
    [(0, 20, None), (0, 19, 1), (1, 30, None), (1, 29, 1), (3, 50, None), (3, 45, 5), (0, 5, 15)],
)
def test_one_at_a_time_behind_a_running_batch(queued: int, due: float, expected: float | None) -> None:
    """10 ms each; one runs. What is missing is told, however long the lane is still busy."""
    rig = Rig(max_batch=1, fixed=10, per_row=0)
    rig.occupy()
    for request in range(queued):
        assert rig.arrive(request + 1, due=due) == []
    assert late_by(rig.arrive(99, due=due)) == expected


@pytest.mark.parametrize(("margin_ms", "due", "admitted"), [(0, 10, True), (3, 12, False), (3, 13, True)])
def test_the_margin_is_kept_free(margin_ms: int, due: float, admitted: bool) -> None:
    rig = Rig(probe_after_refusals=0, max_batch=1, fixed=10, per_row=0, margin_ns=margin_ms * MILLISECOND)
    assert (rig.arrive(1, due=due) == []) == admitted


def test_a_lane_that_is_overdue_is_expected_to_need_as_long_again() -> None:
    rig = Rig(max_batch=1, fixed=10, per_row=0)
    rig.occupy()
    assert late_by(rig.arrive(1, at=15, due=29)) == 1
    assert late_by(rig.arrive(2, at=15, due=30)) is None


def test_two_lanes_share_the_work() -> None:
    rig = Rig(max_batch=1, fixed=10, per_row=0, lanes=2)
    rig.occupy()
    admitted = [request for request in range(1, 9) if not rig.arrive(request, due=40)]
    assert len(admitted) == 5


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("budget", [21, 27.5, 34])
def test_who_comes_back_when_told_is_promised_and_nobody_before(lanes: int, budget: float) -> None:
    """10 ms each; lanes began at different times. Refused requests come back with as long a deadline as they had."""
    rig = Rig(max_batch=1, fixed=10, per_row=0, lanes=lanes, probe_after_refusals=0)
    for lane in range(lanes):
        assert rig.arrive(1_000 + lane, at=3 * lane) == []
        assert rig.batches(at=3 * lane) == [(1_000 + lane,)]
    now = 3.0 * lanes
    refused = (rig.arrive(request, at=now, due=now + budget) for request in range(1, 100))
    wait = next(late for late in map(late_by, refused) if late is not None)
    sooner, then = now + wait - 0.001, now + wait
    if wait < 10 - now:  # no batch ends meanwhile
        assert late_by(rig.arrive(200, at=sooner, due=sooner + budget)) is not None
        assert late_by(rig.arrive(201, at=then, due=then + budget)) is None
    assert 0 < wait <= 10


def test_who_would_overtake_is_told_to_wait_for_the_next_batch_at_least() -> None:
    """10 ms each; of two that would be overtaken one would miss its deadline by 1 ms, as long as both are queued."""
    rig = Rig(max_batch=1, fixed=10, per_row=0)
    rig.occupy()
    assert rig.arrive(1, due=36) == []
    assert rig.arrive(2, due=39) == []
    assert late_by(rig.arrive(3, at=2, due=21)) == 8


def test_an_idle_lane_beside_a_long_batch_is_enough() -> None:
    rig = Rig(max_batch=1, fixed=10, per_row=0, lanes=2)
    rig.open_model(2, max_batch=1)
    rig.open_batch_key(2, 2, seeds=((1, 500 * MILLISECOND),))
    rig.arrive(1, batch_key=2)
    rig.batches()
    assert rig.arrive(2, due=10) == []
    assert rig.batches() == [(2,)]


def test_nothing_known_means_admitted() -> None:
    rig = Rig(seeded=False)
    rig.occupy()
    for request in range(1, 50):
        assert rig.arrive(request, due=1) == []


def test_no_deadline_is_never_refused_for_it() -> None:
    rig = Rig(max_batch=1, fixed=1000, per_row=0)
    rig.occupy()
    for request in range(1, 50):
        assert rig.arrive(request) == []


# --- overtaking


def test_who_would_break_a_promise_by_overtaking_is_refused() -> None:
    """10 ms each, one runs, one is promised to end at 20 by its deadline of 25."""
    rig = Rig(max_batch=1, fixed=10, per_row=0)
    rig.occupy()
    assert rig.arrive(1, due=25) == []
    assert late_by(rig.arrive(2, due=24)) is not None
    assert rig.arrive(3, due=60) == []
    assert late_by(rig.arrive(4, due=40)) is None


def test_spares_are_found_again_when_the_tight_request_has_gone() -> None:
    rig = Rig(max_batch=1, fixed=10, per_row=0)
    rig.occupy()
    assert rig.arrive(1, due=20) == []
    assert rig.arrive(2, due=100) == []
    assert late_by(rig.arrive(3, due=19)) is not None
    rig.finish(1, at=10)
    assert rig.batches(at=10) == [(1,)]
    assert rig.arrive(4, at=10, due=30) == []


@pytest.mark.parametrize("queued", [20, 400])
def test_one_without_spare_in_front_blocks_only_who_would_overtake_it(queued: int) -> None:
    rig = Rig(max_batch=1, fixed=1, per_row=0)
    rig.occupy()
    assert rig.arrive(1, due=2) == []
    for request in range(2, queued + 2):
        assert rig.arrive(request, due=10 * queued) == []
    assert late_by(rig.arrive(5_000, due=1.9)) is not None
    assert rig.arrive(5_001, due=5 * queued) == []


def test_a_long_queue_without_spare_lets_nobody_overtake_until_time_is_won() -> None:
    """400 of 1 ms each fill the time until their deadline; a lane that is 20 % faster than promised wins
    some."""
    rig = Rig(max_batch=1, fixed=1, per_row=0)
    rig.occupy()
    admitted = sum(not rig.arrive(request, due=400) for request in range(1, 500))
    assert admitted == 399
    for request in range(5_000, 5_020):
        assert late_by(rig.arrive(request, due=200)) is not None
    for batch in range(1, 101):
        rig.finish(batch, at=batch * 0.8)
        rig.batches(at=batch * 0.8)
    refused = [late_by(rig.arrive(request, at=80, due=300)) for request in range(6_000, 6_017)]
    assert None in refused, "looked at anew at least once in sixteen"


# --- deadlines shorter than the best batch


def test_the_planned_batch_leaves_time_to_wait_for_one_like_it() -> None:
    """1 ms + 1 ms per row, up to 64 rows: the cheapest batch takes 65 ms, but requests bring 20 ms."""
    rig = Rig(max_batch=64, fixed=1, per_row=1)
    assert batch_keys(rig.scheduler)[0].plan_rows == 64
    rig.arrive(1)
    rig.step(on.CancelRequested(1), 0)
    assert batch_keys(rig.scheduler)[0].plan_rows == 16, "within 5 % of the cheapest row"
    rig.arrive(2, due=20)
    assert batch_keys(rig.scheduler)[0].plan_rows == 9


def test_a_request_too_tight_for_the_plan_is_promised_its_own_rows() -> None:
    rig = Rig(max_batch=8, fixed=8, per_row=1)
    for request in range(40):
        rig.arrive(request, due=1000)
        rig.step(on.CancelRequested(request), 0)
    assert rig.arrive(100, due=9) == []
    assert late_by(rig.arrive(101, due=9)) is not None
    assert rig.batches() == [(100,)]


# --- estimates that are too long


def test_after_many_refusals_an_idle_lane_tries_one() -> None:
    rig = Rig(max_batch=1, fixed=100, per_row=0, probe_after_refusals=3)
    rig.arrive(1, due=1_000)
    rig.settle(0)
    rig.finish(1, at=100, learn=True)
    assert late_by(rig.arrive(2, at=400, due=410)) is not None
    assert late_by(rig.arrive(3, at=400, due=410)) is not None
    assert rig.arrive(4, at=400, due=410) == []
    assert late_by(rig.arrive(5, at=400, due=410)) is not None, "one at a time"
    assert rig.batches(at=400) == [(4,)]


def test_what_asks_for_what_is_over_before_it_could_begin_teaches_nothing() -> None:
    """Such a try is not made, and one that has no time to run leaves the estimate as it is."""
    rig = Rig(max_batch=1, fixed=100, per_row=0, probe_after_refusals=3, margin_ns=MILLISECOND)
    rig.arrive(1, due=1_000)
    rig.settle(0)
    rig.finish(1, at=100, learn=True)
    for request in range(2, 20):
        assert late_by(rig.arrive(request, at=900, due=901)) is not None
    before = late_by(rig.arrive(20, at=900, due=950))
    assert before is None, "one that could run is tried"
    assert rig.settle(960) == [Expired(20)], "and has waited too long for its turn"
    assert late_by(rig.arrive(21, at=960, due=961)) == pytest.approx(100)


def test_an_estimate_that_a_run_has_just_confirmed_is_not_tried() -> None:
    rig = Rig(max_batch=1, fixed=100, per_row=0, probe_after_refusals=3)
    rig.arrive(1, due=1_000)
    rig.settle(0)
    rig.finish(1, at=100, learn=True)
    for request in range(2, 100):
        assert late_by(rig.arrive(request, at=399, due=409)) is not None
    assert rig.arrive(100, at=400, due=410) == [], "three times as long as it takes have passed"


def test_what_a_front_end_ran_confirms_an_estimate() -> None:
    rig = Rig(max_batch=1, fixed=100, per_row=0, probe_after_refusals=1)
    rig.step(on.LeasedRan(1, 1, 1, 100 * MILLISECOND, 1), 0)
    assert late_by(rig.arrive(1, at=99, due=109)) is not None
    rig.step(on.LeasedRan(1, 1, 1, 100 * MILLISECOND, 1), 99)
    assert late_by(rig.arrive(2, at=198, due=208)) is not None
    assert rig.arrive(3, at=199, due=209) == []


def test_who_asks_for_what_cannot_be_has_a_small_part_of_an_idle_lane() -> None:
    """Of a model that takes 100 ms, 1,000 answers a second are wanted within 10 ms."""
    rig = Rig(max_batch=1, fixed=100, per_row=0)
    batch, busy_ms, free_at = 0, 0, 0
    for at in range(20_000):
        if batch > 0 and at == free_at:
            rig.finish(batch, at=at, learn=True)
            busy_ms += 100
        if rig.arrive(at + 1, at=at, due=at + 10) == []:
            batch, free_at = batch + 1, at + 100
            rig.settle(at)
    assert busy_ms <= 20_000 / 9 + 8 * 100, "the first tries come sooner, as little is known"
    assert batch > 10, "but it is tried again and again"


@pytest.mark.parametrize("slow_ms", [(1_200,), (3_000,), (900,), (400, 1_500)])
@pytest.mark.parametrize("every_ms", [160, 500])
def test_slow_runs_are_forgotten_soon_when_all_is_refused_for_them(
    slow_ms: tuple[int, ...], every_ms: int
) -> None:
    """A model of 400 ms was slow for twenty runs. Who asks it with a deadline of 700 ms, one request after the other,
    is refused for some times as long as a run seems to take, not for ever."""
    rig = Rig(max_batch=1, fixed=400, per_row=0)
    at = batch = 0
    for number in range(20):
        batch += 1
        rig.arrive(batch, at=at, due=at + 60_000)
        rig.settle(at)
        at += slow_ms[number % len(slow_ms)]
        rig.finish(batch, at=at, learn=True)
    known = batch_keys(rig.scheduler)[0]
    seems_ms = (known.fixed_ns + known.per_row_ns) / MILLISECOND
    assert seems_ms > 700
    end, answered = at + 20 * seems_ms, 0
    for request in range(1_000, 3_000):
        at += every_ms
        if at > end:
            break
        if rig.arrive(request, at=at, due=at + 700):
            answered = 0
            continue
        batch, answered = batch + 1, answered + 1
        rig.settle(at)
        at += 400
        rig.finish(batch, at=at, learn=True)
    assert answered >= 2, "nothing is refused any more"


def test_what_seeds_alone_say_is_too_late_is_tried_once_on_an_idle_lane() -> None:
    """Seeds say 100 ms, measured on a busy machine; the truth is 1 ms, and the first request finds that out."""
    rig = Rig(max_batch=8, fixed=20, per_row=10)
    assert rig.arrive(1, due=10) == []
    assert late_by(rig.arrive(2, due=10)) is not None, "one at a time"
    rig.settle(0)
    rig.finish(1, at=1, learn=True)
    for request in range(3, 8):
        assert rig.arrive(request, at=1, due=11) == []


def test_nothing_is_tried_where_nothing_may_be() -> None:
    rig = Rig(max_batch=1, fixed=100, per_row=0, probe_after_refusals=0)
    assert late_by(rig.arrive(1, due=10)) is not None


def test_wrong_estimates_come_down_by_probing() -> None:
    """Seeds say 100 ms, the truth is 1 ms: after some probes everything is admitted."""
    rig = Rig(max_batch=1, fixed=100, per_row=0, probe_after_refusals=2)
    at, batch, refused = 0.0, 0, 0
    for request in range(1, 400):
        at += 5
        if rig.arrive(request, at=at, due=at + 10):
            refused += 1
            continue
        batch += 1
        rig.settle(at)
        rig.finish(batch, at=at + 1, learn=True)
    assert rig.arrive(1_000, at=at + 5, due=at + 10) == []
    assert refused < 200
