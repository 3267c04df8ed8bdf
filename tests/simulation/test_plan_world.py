"""The agent's plan by seed: it comes to an end, fights nobody, and takes nothing away that is wanted or serves."""

from __future__ import annotations

import os

import pytest

from tests.simulation.plan_world import PlanWorld

HISTORIES = 2_000
PART = 250
EVENTS = 60
FIRST = int(os.environ.get("PLAN_SEED", "0"))


@pytest.mark.parametrize("part", range(HISTORIES // PART))
def test_whatever_happened_it_comes_to_what_is_wished(part: int) -> None:
    for seed in range(FIRST + part * PART, FIRST + (part + 1) * PART):
        world = PlanWorld(seed)
        try:
            for _ in range(EVENTS):
                world.happen()
            world.check_settled(world.settle())
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
