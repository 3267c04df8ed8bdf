"""Worlds of power cuts. A failing seed replays with ``python -m tests.simulation.power_cut_world SEED [jumps]``."""

from __future__ import annotations

import pytest

from tests.simulation.power_cut_world import PowerCutWorld

SEEDS = 40


@pytest.mark.parametrize("jumps", [False, True])
def test_a_box_alone_comes_back_to_serve_what_can_serve_and_survives_what_cannot(jumps: bool) -> None:
    cuts = 0
    for seed in range(SEEDS):
        world = PowerCutWorld(seed, jumps=jumps)
        try:
            world.live()
        except Exception as error:
            raise AssertionError(
                f"replay with: python -m tests.simulation.power_cut_world {seed}{' jumps' if jumps else ''}"
            ) from error
        cuts += world.cuts
    assert cuts > SEEDS, "a world of power cuts without any"
