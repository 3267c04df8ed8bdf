"""Hostile clients among lawful ones, by seed."""

from __future__ import annotations

import pytest

from tests.simulation.hostile_world import HANG_NS, OUTAGES_MAX, RESTART_NS, HostileWorld


@pytest.mark.parametrize("seed", range(12))
def test_a_lawful_client_waits_for_restarts_and_for_nothing_else(seed: int) -> None:
    world = HostileWorld(seed)
    world.play()
    assert len(world.waits) > 20, "nobody asked"
    assert 2 <= len(world.workers.deaths) <= OUTAGES_MAX * world.newest, (
        "it was no attack, or was not bounded"
    )
    assert {state.value for state in world.states} == {"READY"}
    assert not world.other, "one client has moved others to another version"
    hang_ns = HANG_NS if world.workers.hangs else 0
    assert max(world.waits) <= 3 * (RESTART_NS + hang_ns), "more than it and those that it was with"
