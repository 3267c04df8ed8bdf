"""Worlds of swaps in too little memory. A failing seed replays: ``python -m tests.simulation.crowded_world SEED``."""

from __future__ import annotations

from contextlib import suppress

import pytest

from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.footprint import PROCESS_BYTES
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.errors import ModelAway
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from tests.engine.memory_terms import terms_of
from tests.simulation.crowded_world import CrowdedWorld
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import SOUND, FatedWorkers, SwapWorld
from tests.simulation.test_packed_forms import ask

SEEDS = 40
CHUNK = 10


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_serves_is_as_much_in_memory_as_it_is_known_to_be(first: int) -> None:
    evicted = rolled_back = 0
    for seed in range(first, first + CHUNK):
        world = CrowdedWorld(seed)
        try:
            world.play(swaps=12)
        except Exception as error:
            raise AssertionError(f"replay with: python -m tests.simulation.crowded_world {seed}") from error
        evicted += world.engine.status().residency.evictions
        rolled_back += sum(change.ending.value == "rolled back" for change in world.records.history(""))
    assert evicted > 0
    assert rolled_back > 0


class FullWorld(SwapWorld):
    """Two models and room for both: one is swapped while a client waits for the other, which is out of memory."""

    def __init__(self) -> None:
        terms = terms_of(ResidencyPolicy(evict_weights=False), 2 * (PROCESS_BYTES + 5_000), 0)
        swap = RolloutPolicy(watch_s=0.2, canary_percent=0.0)
        super().__init__(8, names=2, swap=swap, residency=terms)

    def check(self) -> None:
        super().check()
        workers = self.engine._rollouts.groups._workers.values()
        there = [model for worker in workers for model in worker.loaded | worker.loading.keys()]
        assert len(there) <= 2, "memory is given to two"


def test_memory_of_a_version_that_takes_over_is_not_given_to_who_waits_for_room() -> None:
    world = FullWorld()
    world.start()
    world.wish("m0", SOUND)
    world.world.run(world.world.now + 1 * MS)
    for _ in range(3):
        ask(world, world.wanted["m1"])
    world.world.run(world.world.now + 5_000 * MS)
    assert world.engine.resolve("m0", "") is world.wanted["m0"]
    assert world.engine.status().residency.loads > 0
    world.settle()


class LeavingWorld(SwapWorld):
    """Three models and room for three, of which one stays; the first is swapped, which takes the third's place."""

    def __init__(self, canary_percent: float) -> None:
        config = ResidencyPolicy(evict_weights=False, pins=("m1",))
        terms = terms_of(config, 3 * (PROCESS_BYTES + 5_000), 0)
        swap = RolloutPolicy(watch_s=5.0, canary_percent=canary_percent, stage_s=5.0)
        super().__init__(8, names=3, swap=swap, residency=terms)

    def in_memory(self) -> set[int]:
        """The versions that processes have, or are given."""
        workers = self.engine._rollouts.groups._workers.values()
        return {model for worker in workers for model in worker.loaded | worker.loading.keys()}

    def check(self) -> None:
        super().check()
        assert len(self.in_memory()) <= 3, "more is promised than there is"


@pytest.mark.parametrize("canary_percent", [0.0, 100.0], ids=["it served", "it was on trial"])
def test_a_version_that_is_gone_back_from_counts_until_its_last_request_has_ended(
    canary_percent: float,
) -> None:
    world = LeavingWorld(canary_percent)
    world.start()
    first = world.wanted["m0"]
    new = world.wish("m0", SOUND)
    world.world.run(world.world.now + 1_000 * MS)
    world.client("m0")
    world.world.run(world.world.now)
    with suppress(ModelAway):
        ask(world, world.wanted["m2"])
    (served,) = [each for each in world.engine._rollouts._served.values() if each.model is new]
    assert served.requests.live == 1
    world.wanted["m0"] = first
    world.apply()
    assert world.engine.resolve("m0", "") is first
    world.world.run(world.world.now + 5_000 * MS)
    assert world.engine.status().residency.loads == 1, "nobody has its memory"
    world.settle()


class FatalWorkers(FatedWorkers):
    """While they are ``fatal``, every load takes its worker down."""

    fatal = False

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        if self.fatal:
            self._later(worker, MS, lambda: self._exit(worker, ExitCause.DIED, model))
        else:
            super().load(worker, model, version, wish)


class FatalWorld(SwapWorld):
    """A world in which a version that served may be given up, when it comes back."""

    workers_type = FatalWorkers
    workers: FatalWorkers

    def check(self) -> None:
        self.scheduler.check_integrity()


def test_a_version_that_is_quarantined_while_it_comes_back_leaves_no_process_behind() -> None:
    terms = terms_of(ResidencyPolicy(), PROCESS_BYTES + 6_000)
    world = FatalWorld(8, names=2, swap=RolloutPolicy(watch_s=0.1, retry_first_s=0.0), residency=terms)
    world.start()

    def asked(name: str) -> None:
        ask(world, world.wanted[name])
        world.world.run(world.world.now + 20_000 * MS)

    asked("m0")
    world.client("m0")
    world.world.run(world.world.now + MS // 10)
    (worker,) = world.engine.status().workers
    world.workers.kill(worker.worker, ExitCause.KILLED)
    asked("m1")
    world.workers.fatal = True
    asked("m0")
    (reason,) = [each.reason for each in world.engine.index(ready_only=False) if each.name == "m0"]
    assert "quarantined" in reason
    assert not world.engine.status().workers


def test_a_version_is_back_when_the_load_of_another_opens_the_lane_of_both() -> None:
    """The one that was asked for came first; its process opens with the one that was open before."""
    world = CrowdedWorld(62)
    world.play(swaps=12)


def test_memory_that_is_kept_for_a_version_is_not_kept_for_ever_because_another_one_waits_before_it() -> None:
    world = CrowdedWorld(128)
    world.play(swaps=12)
