"""A trial: every way through it, and that it ends by counts before it ends by time."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.rollout.catalog import TrialWish
from appliance.core.rollout.events import Compared, Crashed, Figures
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.policy import RolloutPolicy
from appliance.core.rollout.reasons import EngineSlower, PromiseBroken, TooSlow, WantedAgain
from appliance.core.rollout.trial import (
    OVER,
    SECOND_NS,
    Assessed,
    Event,
    Orphaned,
    Recalled,
    RunBeside,
    Seen,
    Trial,
    Wished,
)
from appliance.domain.histogram import BOUNDS_NS
from appliance.domain.side_by_side import FACTOR, SideBySide
from appliance.engine.versions.wording import verdict_text

CONFIG = RolloutPolicy(
    trial_requests=10, stage_s=1, patience_s=60, watch_s=30, error_percent=10.0,
    differing_percent=10.0, slower_factor=3.0, latency_factor=2.0, latency_slack_us=0,
)  # fmt: skip
FULL = TrialWish(shadow_percent=50, canary_percent=10)
GOOD = Assessed(None, 1_000, 1_000)
BUCKETS = len(BOUNDS_NS) + 1
JUDGED_NS = SECOND_NS + 10
"""When a stage that began with the test has lasted as long as it takes to judge runs by their time."""


def figures(answered: int, failed: int = 0, bucket: int = 5) -> Figures:
    runs = [0] * BUCKETS
    runs[bucket] = answered
    return Figures(answered, failed, tuple(runs))


OLD = figures(1_000)
NONE = figures(0)


def trial(
    wish: TrialWish = FULL, config: RolloutPolicy = CONFIG, *, before: bool = True, proven: bool = False
) -> Trial:
    return Trial(config, wish, before=before, comparable=before, now_ns=0, proven=proven)


def said(way: Trial) -> str:
    """Why it failed, in words."""
    assert way.verdict is not None
    return verdict_text(way.verdict)


def test_the_whole_way() -> None:
    way = trial()
    assert way.step(GOOD, 1) is Phase.SHADOW
    way.step(Seen(NONE, OLD), 1)
    for _ in range(10):
        assert way.step(Compared(1, None), 2) is Phase.SHADOW
    assert way.step(Seen(NONE, OLD), SECOND_NS // 2) is Phase.SHADOW, "not long enough"
    assert way.step(Seen(NONE, OLD), 2 * SECOND_NS) is Phase.CANARY
    way.step(Seen(NONE, OLD), 2 * SECOND_NS)
    assert way.step(Seen(figures(9), OLD), 4 * SECOND_NS) is Phase.CANARY, "not enough"
    assert way.step(Seen(figures(10), OLD), 4 * SECOND_NS) is Phase.WATCHED
    way.step(Seen(figures(10), OLD), 4 * SECOND_NS)
    assert way.step(Seen(figures(99), OLD), 33 * SECOND_NS) is Phase.WATCHED
    assert way.step(Seen(figures(99), OLD), 34 * SECOND_NS) is Phase.LIVE
    assert way.step(Crashed(1, "late", repeated=False), 35 * SECOND_NS) is Phase.LIVE


def test_without_shares_it_is_only_watched_and_without_a_watch_it_is_proven() -> None:
    assert trial(TrialWish()).step(GOOD, 1) is Phase.WATCHED
    assert trial(TrialWish(), replace(CONFIG, watch_s=0)).step(GOOD, 1) is Phase.LIVE


def test_shares_need_a_version_before_with_the_same_tensors() -> None:
    assert trial(before=False).step(GOOD, 1) is Phase.WATCHED
    alien = Trial(CONFIG, FULL, before=True, comparable=False, now_ns=0)
    assert alien.step(GOOD, 1) is Phase.WATCHED
    assert trial(before=False, proven=True).step(GOOD, 1) is Phase.LIVE


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Assessed(PromiseBroken(rows=1, p99_ns=9_000, promised_ns=5_000), 9, 0), "are promised"),
        (Assessed(None, 3_001, 1_000), "swap.slower_factor"),
    ],
)
def test_a_version_that_fails_its_assessment_goes_no_further(event: Event, words: str) -> None:
    way = trial()
    assert way.step(event, 1) is Phase.FAILED
    assert words in said(way)


@pytest.mark.parametrize(
    ("wish", "before", "comparable", "left_out"),
    [
        (FULL, True, False, True),
        (TrialWish(header="x-site", value="a"), True, False, True),
        (TrialWish(), True, False, False),
        (FULL, True, True, False),
        (FULL, False, False, False),
    ],
)
def test_a_trial_is_left_out_where_one_is_wished_and_requests_cannot_go_to_either(
    wish: TrialWish, before: bool, comparable: bool, left_out: bool
) -> None:
    way = Trial(CONFIG, wish, before=before, comparable=comparable, now_ns=0)
    assert way.left_out is left_out


def test_a_version_as_slow_as_is_allowed_goes_on() -> None:
    assert trial().step(Assessed(None, 3_000, 1_000), 1) is Phase.SHADOW
    assert trial().step(Assessed(None, 10**9, 0), 1) is Phase.SHADOW, "nothing to compare with"


def test_too_many_different_answers_end_the_shadow_at_once() -> None:
    way = trial()
    way.step(GOOD, 1)
    assert way.step(Compared(1, "is far off"), 2) is Phase.SHADOW, "one of ten may"
    assert way.step(Compared(1, "is far off"), 3) is Phase.FAILED
    assert "2 of 2" in said(way)
    assert "is far off" in said(way)


def at(phase: Phase) -> Trial:
    """A trial in that phase, its figures begun."""
    wish = {Phase.SHADOW: FULL, Phase.CANARY: TrialWish(canary_percent=10), Phase.WATCHED: TrialWish()}[phase]
    way = trial(wish)
    assert way.step(GOOD, 1) is phase
    way.step(Seen(NONE, OLD), 1)
    return way


@pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.CANARY, Phase.WATCHED])
def test_failures_beyond_those_of_before_end_it_before_everything_was_seen(phase: Phase) -> None:
    way = at(phase)
    assert way.step(Seen(figures(0, 1), OLD), 2) is phase, "one of ten may"
    assert way.step(Seen(figures(0, 2), OLD), 3) is Phase.FAILED
    assert "swap.error_percent" in said(way)


def test_failures_that_the_version_before_had_as_well_are_no_reason() -> None:
    way = at(Phase.WATCHED)
    bad_before = Figures(1_000, 1_000, OLD.runs)
    assert way.step(Seen(figures(100, 60), bad_before), 2) is Phase.WATCHED
    assert way.step(Seen(figures(100, 200), bad_before), 3) is Phase.FAILED


@pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.CANARY, Phase.WATCHED])
def test_slow_runs_end_it_once_there_are_enough(phase: Phase) -> None:
    way = at(phase)
    assert way.step(Seen(figures(9, bucket=20), OLD), JUDGED_NS) is phase
    assert way.step(Seen(figures(10, bucket=20), OLD), JUDGED_NS + 1) is Phase.FAILED
    assert "swap.latency_factor" in said(way)


@pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.CANARY, Phase.WATCHED])
def test_slow_runs_of_a_moment_in_which_others_had_the_processors_do_not(phase: Phase) -> None:
    way, moment = at(phase), figures(20, bucket=20)
    assert way.step(Seen(moment, OLD), 2) is phase
    since = tuple(a + b for a, b in zip(moment.runs, figures(200).runs, strict=True))
    assert way.step(Seen(Figures(220, 0, since), OLD), JUDGED_NS) is not Phase.FAILED


def test_a_watch_that_is_shorter_than_a_stage_judges_at_its_end() -> None:
    way = trial(TrialWish(), replace(CONFIG, watch_s=0.5))
    way.step(GOOD, 0)
    way.step(Seen(NONE, OLD), 0)
    assert way.step(Seen(figures(20, bucket=20), OLD), SECOND_NS // 2 - 1) is Phase.WATCHED
    assert way.step(Seen(figures(20, bucket=20), OLD), SECOND_NS // 2) is Phase.FAILED


@pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.CANARY, Phase.WATCHED])
def test_a_crash_ends_it(phase: Phase) -> None:
    way = at(phase)
    assert way.step(Crashed(1, "killed by signal 11", repeated=False), 2) is Phase.FAILED
    assert "signal 11" in said(way)


def test_a_crash_while_it_loads_is_for_others_to_judge() -> None:
    assert trial().step(Crashed(1, "x", repeated=False), 1) is Phase.LOADING


def test_a_quiet_model_is_not_on_trial_for_ever() -> None:
    way = at(Phase.CANARY)
    assert way.step(Seen(NONE, OLD), 59 * SECOND_NS) is Phase.CANARY
    assert way.step(Seen(NONE, OLD), 61 * SECOND_NS) is Phase.WATCHED


def test_what_is_held_stays_on_trial_until_the_wish_changes() -> None:
    way = trial(TrialWish(canary_percent=10, hold=True))
    way.step(GOOD, 1)
    way.step(Seen(NONE, OLD), 1)
    assert way.step(Seen(figures(99), OLD), 500 * SECOND_NS) is Phase.CANARY
    assert way.step(Wished(TrialWish(canary_percent=10)), 500 * SECOND_NS) is Phase.CANARY
    assert way.step(Seen(figures(99), OLD), 501 * SECOND_NS) is Phase.WATCHED


def test_a_trial_that_nobody_wishes_any_more_is_over_at_once() -> None:
    """An operator who wants the version does not wait for requests that will not come."""
    way = trial(TrialWish(canary_percent=10, hold=True))
    assert way.step(GOOD, 1) is Phase.CANARY
    assert way.step(Seen(NONE, OLD), 2) is Phase.CANARY
    way.step(Wished(TrialWish()), 2)
    assert way.step(Seen(NONE, OLD), 3) is Phase.WATCHED


def test_another_wish_leads_to_the_stage_that_it_asks_for() -> None:
    way = trial(TrialWish(canary_percent=10, hold=True))
    assert way.step(GOOD, 1) is Phase.CANARY
    assert way.step(Wished(TrialWish(canary_percent=50, header="h", value="v", hold=True)), 2) is Phase.CANARY
    assert (way.share_percent, way.header) == (50, "h: v")
    assert way.step(Wished(TrialWish(shadow_percent=20, hold=True)), 3) is Phase.SHADOW
    assert (way.share_percent, way.header) == (20, "")


def test_what_is_only_to_be_tried_never_serves_for_want_of_a_trial() -> None:
    held = Trial(CONFIG, TrialWish(canary_percent=10, hold=True), before=True, comparable=False, now_ns=0)
    assert held.step(GOOD, 1) is Phase.FAILED
    assert "cannot be tried" in said(held)
    assert trial(TrialWish(hold=True)).step(GOOD, 1) is Phase.FAILED
    assert trial(TrialWish(header="h", value="v", hold=True)).step(GOOD, 1) is Phase.CANARY
    late = trial(TrialWish(canary_percent=10, hold=True), before=False)
    late.replaces(comparable=True)
    assert late.step(GOOD, 1) is Phase.CANARY


MS = 1_000_000
BY_DEFAULT = RolloutPolicy()


def engine(*, proven: bool = False) -> Trial:
    """The trial of an engine, by what holds where nothing is configured."""
    return Trial(BY_DEFAULT, TrialWish(), before=True, comparable=True, now_ns=0, proven=proven, engine=True)


def beside(engine_ms: float, session_ms: float, rows: int = 1) -> SideBySide:
    return SideBySide(rows, 41, int(engine_ms * MS), int(session_ms * MS), engine_ms / session_ms)


@pytest.mark.parametrize(
    ("engine_ms", "session_ms", "taken"),
    [
        (2.9, 1.0, False),
        (1.09, 0.1, False),
        (1.09, 1.0, False),
        (1.07, 1.0, True),
        (0.011, 0.01, False),
        (0.4, 1.0, True),
    ],
)
def test_an_engine_is_no_slower_than_the_session_whatever_the_milliseconds(
    engine_ms: float, session_ms: float, taken: bool
) -> None:
    way = engine()
    phase = way.step(RunBeside((beside(engine_ms, session_ms),)), 1)
    assert phase is (Phase.LOADING if taken else Phase.FAILED)
    assert way.step(Assessed(None, 1, 1), 2) is (Phase.WATCHED if taken else Phase.FAILED)
    if not taken:
        assert way.verdict == EngineSlower(**beside(engine_ms, session_ms)._asdict(), factor=FACTOR)
        assert f"{engine_ms * 1000:,.0f} us" in said(way)
        assert f"and {session_ms * 1000:,.0f} us in the session" in said(way)


def test_an_engine_that_is_slower_at_one_batch_size_is_told_by_that() -> None:
    way = engine()
    assert (
        way.step(RunBeside((beside(0.5, 1.0), beside(9.0, 4.0, 16), beside(2.2, 2.0, 8))), 1) is Phase.FAILED
    )
    assert "of 16 rows), 2.25 times as long, where 1.08 times is allowed" in said(way)


@pytest.mark.parametrize(("run_ms", "taken"), [(2.9, False), (1.26, False), (1.24, True), (0.5, True)])
def test_an_engine_that_could_not_run_beside_the_session_has_a_wider_margin_and_no_slack(
    run_ms: float, taken: bool
) -> None:
    """Few runs of two times are what there is to go by."""
    for nothing in ((), (RunBeside(()),)):
        way = engine()
        for event in nothing:
            way.step(event, 1)
        assert way.step(Assessed(None, int(run_ms * MS), MS), 2) is (Phase.WATCHED if taken else Phase.FAILED)
        assert taken or "measured apart" in said(way)


@pytest.mark.parametrize("before_ms", [0.1, 1.0])
def test_figures_of_two_times_do_not_overrule_those_of_one(before_ms: float) -> None:
    """But for what is so slow that no noise explains it."""
    way = engine()
    way.step(RunBeside((beside(0.9, 1.0),)), 1)
    assert way.step(Assessed(None, int(1.3 * before_ms * MS), int(before_ms * MS)), 2) is Phase.WATCHED
    slow = engine()
    slow.step(RunBeside((beside(0.9, 1.0),)), 1)
    assert slow.step(Assessed(None, 5 * MS, MS), 2) is Phase.FAILED
    assert isinstance(slow.verdict, TooSlow)
    assert engine(proven=True).step(Assessed(None, 2 * MS, MS), 2) is Phase.WATCHED, "it was compared once"


TENTH_MS, ONE_MS, FOUR_MS, HUNDRED_MS = (bisect_left(BOUNDS_NS, ms * 1_000_000) for ms in (0.1, 1, 4, 100))


@pytest.mark.parametrize("phase", [Phase.SHADOW, Phase.CANARY, Phase.WATCHED])
@pytest.mark.parametrize(
    ("session_ms", "before", "now", "slow"),
    [
        (4, TENTH_MS, FOUR_MS, False),
        (4, TENTH_MS, HUNDRED_MS, True),
        (1, TENTH_MS, FOUR_MS, True),
        (1, FOUR_MS, FOUR_MS, False),
        (0, ONE_MS, FOUR_MS, False),
        (0, ONE_MS, HUNDRED_MS, True),
    ],
    ids=[
        "its session is no faster",
        "slow",
        "as fast as only an engine",
        "the engine waits, too",
        "unknown",
        "far",
    ],
)
def test_what_requests_take_is_compared_with_the_session_where_the_version_before_has_an_engine(
    phase: Phase, session_ms: int, before: int, now: int, slow: bool
) -> None:
    """Whatever its worker says of itself."""
    wish = {Phase.SHADOW: FULL, Phase.CANARY: TrialWish(canary_percent=10), Phase.WATCHED: TrialWish()}
    way = trial(wish[phase])
    assert way.step(Assessed(None, session_ms * MS, session_ms * MS, alike=False), 1) is phase
    way.step(Seen(NONE, figures(1_000, bucket=before)), 2)
    seen = way.step(Seen(figures(100, bucket=now), figures(1_000, bucket=before)), JUDGED_NS)
    after = Phase.WATCHED if phase is Phase.CANARY else phase
    assert seen is (Phase.FAILED if slow else after)
    assert not slow or "with the version before, without its engine; swap.latency_factor" in said(way)


def test_a_slow_version_is_seen_also_where_nobody_asked_the_engine_before_it() -> None:
    way = trial(TrialWish())
    way.step(Assessed(None, MS, MS, alike=False), 1)
    way.step(Seen(NONE, NONE), 2)
    assert way.step(Seen(figures(100, bucket=HUNDRED_MS), NONE), JUDGED_NS) is Phase.FAILED


@pytest.mark.parametrize(
    ("batches", "measured", "slow"),
    [
        ((), 1, True),
        (((1, 100),), 1, True),
        (((1, 96), (64, 4)), 1, False),
        (((1, 10), (64, 30)), 1, False),
        (((64, 100),), 64, True),
        (((1, 99), (64, 1)), 1, False),
        (((1, 1_000), (64, 1)), 1, True),
    ],
)
def test_a_session_that_takes_its_rows_in_batches_is_given_as_much_time_as_one_by_one(
    batches: tuple[tuple[int, int], ...], measured: int, slow: bool
) -> None:
    """It was measured with ``measured`` rows, for which it took 2 ms."""
    way = trial(TrialWish())
    way.step(Assessed(None, 2 * MS, 2 * MS, alike=False, rows=measured, before_rows=measured), 1)
    old = figures(1_000, bucket=TENTH_MS)
    way.step(Seen(figures(7)._replace(batches=((64, 7),)), old), 2)
    now = figures(107, bucket=HUNDRED_MS)
    counts = dict(batches)
    now = now._replace(
        runs=tuple(a + b for a, b in zip(now.runs, figures(7).runs, strict=True)),
        batches=tuple((rows, counts.get(rows, 0) + 7 * (rows == 64)) for rows in {64, *counts}),
    )
    assert way.step(Seen(now, old), JUDGED_NS) is (Phase.FAILED if slow else Phase.WATCHED)


@pytest.mark.parametrize(
    ("rows", "before_rows", "run_ms", "taken"),
    [(1, 1, 7, False), (1, 8, 7, False), (4, 1, 7, True), (4, 1, 25, False), (8, 8, 6, True)],
)
def test_runs_of_different_numbers_of_rows_are_compared_by_what_no_batch_is_beyond(
    rows: int, before_rows: int, run_ms: int, taken: bool
) -> None:
    """The session before took 2 ms; three times that is allowed."""
    event = Assessed(None, run_ms * MS, 2 * MS, alike=False, rows=rows, before_rows=before_rows)
    assert trial(TrialWish()).step(event, 1) is (Phase.WATCHED if taken else Phase.FAILED)


def test_what_is_no_engine_is_compared_as_versions_are() -> None:
    way = Trial(BY_DEFAULT, TrialWish(), before=True, comparable=True, now_ns=0)
    assert way.step(RunBeside((beside(2.9, 1.0),)), 1) is Phase.LOADING
    assert way.step(Assessed(None, int(2.9 * MS), MS), 2) is Phase.WATCHED


def test_going_back_and_being_left_alone() -> None:
    way = at(Phase.WATCHED)
    assert way.step(Recalled(WantedAgain(version=1)), 2) is Phase.FAILED
    assert way.verdict == WantedAgain(version=1)
    alone = at(Phase.CANARY)
    assert alone.step(Orphaned(), 2) is Phase.WATCHED
    assert alone.step(Seen(figures(0, 99), NONE), 3) is Phase.WATCHED, "there is nothing to go back to"


EVENTS = st.one_of(
    st.builds(Compared, st.just(1), st.sampled_from([None, None, "differs"])),
    st.builds(
        lambda new, failed, old: Seen(figures(new, failed), figures(old)),
        st.integers(0, 50), st.integers(0, 3), st.integers(0, 50),
    ),
    st.just(GOOD), st.just(Crashed(1, "x", repeated=False)), st.just(Orphaned()),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=60), st.booleans())
def test_it_never_goes_back_and_says_why_it_failed(events: list[Event], before: bool) -> None:
    way, order, now = trial(before=before), list(Phase), 0
    for event in events:
        was, now = way.phase, now + SECOND_NS
        phase = way.step(event, now)
        assert order.index(phase) >= order.index(was)
        assert was not in OVER or phase is was
        assert (way.verdict is not None) == (phase is Phase.FAILED)
