"""Worlds of the rollout's core alone. A failing seed replays with ``python -m tests.simulation.rollout_world SEED``."""

from __future__ import annotations

import pytest

from tests.simulation.rollout_world import RolloutWorld

SEEDS = 2_000
CHUNK = 500


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_is_wanted_and_sound_serves_at_the_end_and_nothing_is_left(first: int) -> None:
    endings: set[str] = set()
    held = 0
    for seed in range(first, first + CHUNK):
        world = RolloutWorld(seed)
        try:
            world.play()
        except Exception as error:
            raise AssertionError(f"replay with: python -m tests.simulation.rollout_world {seed}") from error
        held += world.held
        endings |= {change.ending.value for change in world.records.history("")}
    assert endings >= {"live", "refused", "rolled back", "abandoned", "given up", "postponed", "recalled"}
    assert held, "nothing was ever held back"
