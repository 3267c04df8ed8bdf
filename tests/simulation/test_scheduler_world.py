"""The scheduler against hundreds of random worlds; every rule is checked after every step."""

from __future__ import annotations

import pytest

from tests.simulation.leased_world import LeasedWorld
from tests.simulation.scheduler_world import World

SEEDS = 600
CHUNK = 20


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_worlds_keep_all_rules(first: int) -> None:
    outcomes: set[str] = set()
    for seed in range(first, first + CHUNK):
        try:
            outcomes |= World(seed).run().outcomes.keys()
        except AssertionError as broken:
            raise AssertionError(
                f"{broken}; replay: python -m tests.simulation.replay {seed} --trace"
            ) from broken
    assert "answered" in outcomes


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_worlds_with_a_leased_front_end_keep_all_rules(first: int) -> None:
    outcomes: set[str] = set()
    for seed in range(first, first + CHUNK):
        try:
            outcomes |= LeasedWorld(seed).run().outcomes.keys()
        except AssertionError as broken:
            raise AssertionError(
                f"{broken}; replay: python -m tests.simulation.replay {seed} --leased --trace"
            ) from broken
    assert {"answered", "answered by the front end", "leased", "revoked"} <= outcomes
