"""One of the first runs took seconds because its worker stood still: what that does to the requests after it."""

from __future__ import annotations

import random

import pytest

from appliance.core.scheduling import events as on
from tests.core.rig import MILLISECOND, Rig

PAUSE_MS = 3_000.0
DUE_MS = 50.0


def run(rig: Rig, number: int, at: float, took: float, *, rows: int = 1, due: float | None = None) -> float:
    """A request that is admitted and runs by itself; when it ends."""
    assert rig.arrive(number, at, rows=rows, due=due) == [], f"request {number} is refused"
    assert rig.batches(at) == [(number,)]
    rig.finish(number, at + took, learn=True)
    return at + took


@pytest.mark.parametrize("paused", range(1, 6))
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_refused_once_another_has_run(paused: int, seed: int) -> None:
    dice = random.Random(seed)
    rig = Rig(seeded=False)
    at, rows = 0.0, dice.randrange(1, 5)
    for number in range(1, paused):
        at = run(rig, number, at, dice.uniform(0.9, 1.1), rows=rows)
    at = run(rig, paused, at, PAUSE_MS, rows=rows)
    at = run(rig, paused + 1, at, dice.uniform(0.9, 1.1), rows=rows + dice.randrange(4))
    for number in range(paused + 2, paused + 50):
        at = run(rig, number, at, dice.uniform(0.9, 1.1), rows=rows, due=at + DUE_MS)


def test_nor_where_leased_runs_of_the_time_are_told_by_their_mean() -> None:
    rig = Rig(seeded=False)
    at = run(rig, 1, 0, 1)
    rig.step(on.LeasedRan(1, 1, 1, int(PAUSE_MS * MILLISECOND / 4), 4), at)
    at = run(rig, 2, at, 1)
    run(rig, 3, at, 1, due=at + DUE_MS)


@pytest.mark.parametrize("after", [2_900.0, 1_600.0])
def test_what_takes_that_long_indeed_is_believed(after: float) -> None:
    rig = Rig(seeded=False, probe_after_refusals=0)
    at = run(rig, 1, 0, 1)
    at = run(rig, 2, at, PAUSE_MS)
    at = run(rig, 3, at, after)
    assert rig.arrive(4, at, due=at + DUE_MS) != []


def test_a_smaller_batch_says_nothing_against_a_large_one() -> None:
    rig = Rig(seeded=False, probe_after_refusals=0)
    at = run(rig, 1, 0, 1)
    at = run(rig, 2, at, PAUSE_MS, rows=8)
    at = run(rig, 3, at, 1)
    assert rig.arrive(4, at, rows=8, due=at + DUE_MS) != []
    at = run(rig, 4, at, 2, rows=8)
    run(rig, 5, at, 2, rows=8, due=at + DUE_MS)


def test_nor_does_one_large_batch_speak_against_what_hundreds_took_since() -> None:
    rig = Rig(seeded=False, probe_after_refusals=0)
    at = run(rig, 1, 0, 1)
    at = run(rig, 2, at, 80, rows=8)
    for number in range(3, 203):
        at = run(rig, number, at, 10)
    at = run(rig, 203, at, 1, rows=8)
    assert rig.arrive(204, at, due=at + 5) != [], "it is promised in half the time that it takes"
