"""What pairs of runs can tell of an engine on a box that does other things: by seed."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from appliance.domain.side_by_side import APART_MAX, FACTOR, SIZES_MAX, SideBySide, of_pairs, slowest
from appliance.workers.child.comparison import PAIRS_MIN
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.pending_replies import PendingReplies
from appliance.workers.messages import Build
from appliance.workers.port import FormBuilt
from tests.workers.bench import fake

SEEDS = 150
WORKER, MODEL, DIGEST = 7, 3, "d" * 64
FORM = f"{DIGEST}-0123456789abcdef"
MS = 1_000_000


class BusyBox:
    """A machine that is slow and fast by turns, in which runs differ, and one of twenty is held up."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.slow = self.random.random() < 0.5

    def run(self, ns: float) -> int:
        """A run that takes so long when nothing disturbs it."""
        draw = self.random
        self.slow ^= draw.random() < 0.05
        held_up = draw.uniform(2, 10) if draw.random() < 0.05 else 1.0
        return int(ns * (2.0 if self.slow else 1.0) * draw.lognormvariate(0, 0.06) * held_up)

    def pairs(self, ratio: float, count: int = PAIRS_MIN) -> list[tuple[int, int]]:
        """Runs in turns, of an engine that takes ``ratio`` times as long as its session."""
        return [(self.run(ratio * MS), self.run(MS)) for _ in range(count)]


def refused(seed: int, ratio: float) -> bool:
    """Whether an engine is, at as many batch sizes as are compared."""
    box = BusyBox(seed)
    return slowest(of_pairs(rows + 1, box.pairs(ratio)) for rows in range(SIZES_MAX)) is not None


def test_an_engine_that_is_no_slower_is_taken_and_one_that_is_slower_is_not_whatever_else_runs() -> None:
    assert sum(refused(seed, 0.7) for seed in range(SEEDS)) == 0
    assert sum(refused(seed, 1.0) for seed in range(SEEDS)) <= SEEDS // 50
    assert sum(not refused(seed, 1.1) for seed in range(SEEDS)) <= SEEDS // 50
    assert sum(not refused(seed, 1.2) for seed in range(SEEDS)) == 0
    assert sum(not refused(seed, 2.9) for seed in range(SEEDS)) == 0


def test_few_runs_of_two_times_could_not_tell_it() -> None:
    """Which is how versions are compared with those that they replace, by a factor that allows for it."""
    wrong = 0
    for seed in range(SEEDS):
        box = BusyBox(seed)
        engine_ns = sorted(box.run(MS) for _ in range(5))[2]
        for _ in range(100):
            box.run(MS)
        wrong += engine_ns > FACTOR * sorted(box.run(MS) for _ in range(5))[2]
    assert wrong > SEEDS // 5


def test_up_to_half_of_the_pairs_may_be_spoilt() -> None:
    sound, spoilt = [(90, 100)] * 6, [(9_000, 100)] * 5
    assert slowest([of_pairs(1, sound + spoilt)]) is None
    assert slowest([of_pairs(1, sound[:4] + spoilt)]) is not None


def test_a_machine_that_is_slow_by_turns_says_nothing_that_cannot_be() -> None:
    for seed in range(SEEDS):
        for ratio in (0.05, 1.0, 20.0):
            assert of_pairs(1, BusyBox(seed).pairs(ratio)).possible


def test_figures_are_medians_and_the_ratio_is_that_of_pairs() -> None:
    assert of_pairs(4, [(10, 10), (30, 20), (400, 200)]) == SideBySide(4, 3, 30, 20, 1.5)


@pytest.mark.parametrize(
    ("ratio", "slower"), [(0.3, False), (1.0, False), (FACTOR, False), (FACTOR + 0.001, True)]
)
def test_the_margin_is_a_share_and_no_time(ratio: float, slower: bool) -> None:
    for nanoseconds in (1_000, 10_000_000_000):
        found = SideBySide(1, 99, int(ratio * nanoseconds), nanoseconds, ratio)
        assert (slowest([found]) is found) is slower


def test_one_size_at_which_it_is_slower_is_enough_and_the_worst_is_told() -> None:
    sizes = [
        SideBySide(1, 9, 120, 100, 1.2),
        SideBySide(4, 9, 150, 100, 1.5),
        SideBySide(32, 9, 10, 100, 0.1),
    ]
    assert slowest(sizes) is sizes[1]
    assert slowest(sizes[2:]) is None
    assert slowest([]) is None


@pytest.mark.parametrize(
    "found",
    [
        SideBySide(0, 9, 1, 1, 1.0),
        SideBySide(1, 0, 1, 1, 1.0),
        SideBySide(1, 9, 0, 1, 1.0),
        SideBySide(1, 9, 1, -1, 1.0),
        SideBySide(1, 9, 1, 1, 0.0),
        SideBySide(1, 9, 1, 1, math.nan),
        SideBySide(1, 9, 1, 1, math.inf),
        SideBySide(1, 9, 1, 1, 1e308),
        SideBySide(1, 9, 1 << 62, 1 << 62, 1e308),
        SideBySide(1, 9, 1, 1, 5e-324),
        SideBySide(1, 9, 100, 100, 1.01 * APART_MAX),
        SideBySide(1, 9, 2_900, 1_000, 0.2),
    ],
)
def test_what_no_runs_can_have_shown(found: SideBySide) -> None:
    assert not found.possible
    assert SideBySide(1, 1, 1, 1, 0.1).possible


@pytest.mark.parametrize(
    "compared",
    [
        (SideBySide(1, 41, 29, 10, 2.9),) * (SIZES_MAX + 1),
        (SideBySide(0, 41, 29, 10, 2.9),),
        (SideBySide(1, 41, 29, 10, math.nan),),
        (SideBySide(1, 41, 29, 10, 1e308),),
        (SideBySide(1, 41, 29, 10**12, 2.9),),
    ],
    ids=["many", "no rows", "no ratio", "a ratio of no runs", "longer than it took"],
)
def test_an_engine_is_compared_by_what_can_have_been(compared: tuple[SideBySide, ...]) -> None:
    owes = PendingReplies(WORKER)
    owes.expect_background(Build(MODEL, replace(fake(), digest=DIGEST)), 100)
    with pytest.raises(MessageInvalid, match=r"compar|times that"):
        owes.settle(FormBuilt(WORKER, MODEL, FORM, 1, 1, None, compared=compared))
    with pytest.raises(MessageInvalid, match="comparisons"):
        owes.settle(FormBuilt(WORKER, MODEL, "", 1, 1, "no", compared=(SideBySide(1, 41, 29, 10, 2.9),)))
    owes.settle(FormBuilt(WORKER, MODEL, FORM, 1, 1, None, compared=(SideBySide(1, 41, 29, 10, 2.9),)))
