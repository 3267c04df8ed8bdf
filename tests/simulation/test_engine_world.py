"""Five hundred engine worlds. A failing seed replays with ``python -m tests.simulation.engine_world SEED``."""

from __future__ import annotations

import pytest

from tests.simulation.engine_world import EngineWorld

SEEDS = 500
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_request_ends_once_and_nothing_leaks(first: int) -> None:
    answered = came_early = exchanged = 0
    for seed in range(first, first + CHUNK):
        world = EngineWorld(seed)
        try:
            world.play()
        except Exception as error:
            raise AssertionError(f"replay with: python -m tests.simulation.engine_world {seed}") from error
        answered += world.outcomes.get("Answer", 0)
        came_early += world.workers.came_early
        exchanged += world.workers.exchanged
        if world.trouble == 0.0:
            assert not set(world.outcomes) & {"RunFailed", "WorkerDied"}, (
                f"seed {seed}: trouble in a calm world"
            )
    assert answered > 0
    assert came_early >= exchanged > 0
