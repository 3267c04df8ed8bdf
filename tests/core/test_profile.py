"""Learning how long a batch takes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.scheduling.profile import ServiceTime

LIFT = 1.6


def taught(truth: dict[int, int], batches: int = 100) -> ServiceTime:
    """A profile that has seen each size in turn."""
    profile = ServiceTime(LIFT)
    for number in range(batches):
        rows = sorted(truth)[number % len(truth)]
        profile.observe(rows, truth[rows])
    return profile


def test_nothing_known_estimates_nothing() -> None:
    profile = ServiceTime(LIFT)
    assert not profile.known
    assert profile.estimate(8) == 0


@pytest.mark.parametrize(
    "seeds", [((1, 10_000), (8, 12_000)), ((1, 1_500),), ((4, 7),), ((1, 5), (2, 9), (4, 17))]
)
def test_seeds_on_a_line_are_exact_and_stay_so(seeds: tuple[tuple[int, int], ...]) -> None:
    profile = ServiceTime(LIFT, seeds)
    for rows, ns in seeds:
        assert 0 <= profile.estimate(rows) - ns <= rows
    before = [profile.estimate(rows) for rows in range(1, 17)]
    for rows in range(1, 17):
        assert not profile.observe(rows, profile.estimate(rows))
    assert before == [profile.estimate(rows) for rows in range(1, 17)]


def test_sizes_never_seen_lie_on_the_line() -> None:
    profile = taught({1: 10_000_000, 8: 24_000_000})
    assert profile.estimate(4) == pytest.approx(16_000_000, rel=0.05)
    assert profile.estimate(16) == pytest.approx(40_000_000, rel=0.05)


def test_one_size_says_nothing_about_others_but_that_they_cost_more() -> None:
    profile = taught({1: 10_000})
    assert profile.estimate(1) == pytest.approx(10_000, rel=0.05)
    assert 10_000 < profile.estimate(2) < 20_000


def test_the_first_batch_weighs_little() -> None:
    profile = ServiceTime(LIFT)
    profile.observe(1, 500_000_000)
    assert profile.estimate(1) >= 500_000_000
    for _ in range(6):
        profile.observe(1, 2_000_000)
    assert profile.estimate(1) < 20_000_000
    for _ in range(20):
        profile.observe(1, 2_000_000)
    assert profile.estimate(1) < 4_000_000


def test_one_outlier_does_not_poison() -> None:
    profile = ServiceTime(LIFT, ((1, 10_000), (8, 12_000)))
    for _ in range(30):
        profile.observe(4, 11_143)
    profile.observe(4, 10_000_000)
    assert profile.estimate(4) < 1.25 * 11_143
    for _ in range(50):
        profile.observe(4, 11_143)
    assert profile.estimate(4) < 1.03 * 11_143


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 5.0])
def test_a_lasting_change_is_followed(factor: float) -> None:
    profile = ServiceTime(LIFT, ((1, 10_000), (8, 12_000)))
    for _ in range(50):
        profile.observe(4, int(11_143 * factor))
    assert profile.estimate(4) == pytest.approx(11_143 * factor, rel=0.25)
    for _ in range(50):
        profile.observe(4, int(11_143 * factor))
    assert profile.estimate(4) == pytest.approx(11_143 * factor, rel=0.05)


def test_the_estimate_is_an_upper_quantile() -> None:
    rng = random.Random(5)
    profile = ServiceTime(LIFT)
    above = 0
    for number in range(2_000):
        rows = rng.randrange(1, 9)
        took = int((10_000_000 + 500_000 * rows) * rng.gauss(1, 0.1))
        above += number >= 100 and took > profile.estimate(rows)
        profile.observe(rows, took)
    assert 0.03 < above / 1_900 < 0.17


def test_a_new_shape_borrows_and_soon_knows_better() -> None:
    known = taught({1: 2_000_000, 8: 9_000_000})
    profile = ServiceTime(LIFT)
    profile.borrow(known, row_ratio=2.0)
    assert profile.estimate(8) > known.estimate(8)
    for _ in range(10):
        profile.observe(1, 500_000)
    assert profile.estimate(1) < 1_000_000


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 10**10)), max_size=60))
def test_any_history_gives_a_line_that_never_falls(history: list[tuple[int, int]]) -> None:
    profile = ServiceTime(LIFT)
    for rows, ns in history:
        profile.observe(rows, ns)
        assert profile.fixed_ns >= 0
        assert profile.per_row_ns >= 0


def test_what_is_doubted_weighs_no_more_than_the_next_batch() -> None:
    profile = taught({1: 10_000})
    profile.doubt()
    profile.observe(1, 6_000)
    assert profile.estimate(1) == pytest.approx(8_000, rel=0.1)
    for _ in range(6):
        profile.observe(1, 6_000)
    assert profile.estimate(1) == pytest.approx(6_000, rel=0.2)


def test_what_is_doubted_comes_down_with_a_batch_that_takes_less_than_half_as_long() -> None:
    profile = taught({1: 10_000, 8: 80_000})
    profile.doubt()
    profile.observe(1, 1_000)
    assert profile.estimate(1) == pytest.approx(1_000, rel=0.1)
    assert profile.estimate(8) == pytest.approx(8_000, rel=0.1)


def test_what_is_doubted_and_confirmed_stays() -> None:
    profile = taught({1: 10_000, 8: 24_000})
    for _ in range(10):
        profile.doubt()
        profile.observe(8, 24_000)
    assert profile.estimate(1) == pytest.approx(10_000, rel=0.1)
    assert profile.estimate(8) == pytest.approx(24_000, rel=0.05)


def test_doubts_without_a_batch_between_count_once() -> None:
    once, often = (ServiceTime(LIFT) for _ in range(2))
    for profile, doubts in ((once, 1), (often, 5)):
        for number in range(50):
            profile.observe(1, 10_000 + 4_000 * (number % 2))
        for _ in range(doubts):
            profile.doubt()
        profile.observe(1, 12_000)
    assert once.estimate(1) == often.estimate(1)


def test_little_that_was_learned_weighs_no_more_when_it_is_doubted() -> None:
    """What another shape took has the weight of a cold batch."""
    estimates = []
    for doubted in (False, True):
        profile = ServiceTime(LIFT)
        profile.borrow(taught({1: 10_000}), 1.0)
        if doubted:
            profile.doubt()
        profile.observe(1, 6_000)
        estimates.append(profile.estimate(1))
    assert estimates[1] <= estimates[0]
