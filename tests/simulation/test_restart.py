"""Restarts of a box with more models than memory: what was proven here need not prove itself again, nor be loaded."""

from __future__ import annotations

from collections import Counter

import pytest

from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.footprint import PROCESS_BYTES
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.model import VersionState
from tests.engine.memory_terms import terms_of
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import SwapWorld

MODELS = 200
ROOM = 20
MODEL_BYTES = PROCESS_BYTES + 5_000
PIN = f"m{MODELS - 1}"


class FullWorld(SwapWorld):
    """MODELS models on a box with memory for ROOM of them; the last one is pinned."""

    def __init__(self) -> None:
        terms = terms_of(ResidencyPolicy(pins=(PIN,)), ROOM * MODEL_BYTES)
        super().__init__(1, names=MODELS, swap=RolloutPolicy(watch_s=0.1), residency=terms)

    def until_ready(self) -> int:
        """Let time pass until the engine is ready; how long that took, in ns."""
        began = self.world.now
        self.soon()
        while not self.engine.ready:
            self.world.run(self.world.now + MS)
        return self.world.now - began

    def states(self) -> Counter[tuple[VersionState, str]]:
        """How many versions are in which state, and how much of them in memory."""
        return Counter((each.state, each.residency) for each in self.engine.status().versions)


@pytest.fixture(scope="module")
def world() -> FullWorld:
    """A world whose models are all proven."""
    world = FullWorld()
    world.apply()
    world.until_ready()
    states = world.states()
    assert sum(states.values()) == MODELS
    assert states[VersionState.LOADING, "resident"] > MODELS / 2, (
        "ready means that nobody waits for the others"
    )
    world.world.run(world.world.now + 120_000 * MS)
    assert {state for state, _ in world.states()} == {VersionState.READY}
    assert world.workers.loads == MODELS
    return world


def test_after_a_restart_only_what_fits_is_loaded_and_all_serves_at_once(world: FullWorld) -> None:
    world.reboot()
    took = world.until_ready()
    states = world.states()
    assert {state for state, _ in states} == {VersionState.READY}, "nothing is deferred"
    assert ROOM - 2 <= world.workers.loads <= ROOM + 2
    assert states[VersionState.READY, "cold"] == MODELS - ROOM
    assert took < 1_000 * MS
    (pinned,) = [each for each in world.engine.status().versions if each.name == PIN]
    assert pinned.residency == "resident"
    for name in world.names[-30:]:
        world.client(name)
    world.world.run(world.world.now + 60_000 * MS)
    assert not world.pending, "what rests is brought by who asks for it"
    assert sum(world.answers.values()) == 30
    world.answers.clear()


def test_what_was_proven_elsewhere_is_loaded_and_assessed_anew(world: FullWorld) -> None:
    world.box = "another box"
    world.reboot()
    world.until_ready()
    assert world.states()[VersionState.LOADING, "resident"] > MODELS / 2
    world.box = "this box"
