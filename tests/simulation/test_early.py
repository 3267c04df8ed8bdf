"""Models that come back to memory with a quick session: each of their processes is given the fast one, which counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest

from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.footprint import PROCESS_BYTES
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.workers import port
from tests.engine.memory_terms import terms_of
from tests.simulation.scripted_workers import EVICTABLE_BYTES, MS
from tests.simulation.swap_world import FatedWorkers, SwapWorld
from tests.simulation.test_packed_forms import ask

SLOW_NS = 400 * MS
FAST_BYTES = 1_000_000
"""What the fast session takes."""


WEIGHTS_BYTES = 10


class EarlyWorkers(FatedWorkers):
    """Workers of which each that comes back quickly takes SLOW_NS longer than the one before."""

    came = 0
    exchanges: Counter[int]
    renewed_packed = False
    rotten = False
    probed: ClassVar[list[bool]] = []
    """Whether rows are tried by the loads that make a fast session."""

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        if wish.early:
            self._later(worker, 5 * MS + self.came * SLOW_NS, lambda: self._came(worker, model, version))
            self.came += 1
        elif wish.background and model in self._holds[worker]:
            self.probed.append(wish.probe)
            self._beside(worker, model, 40 * MS, lambda: self._exchanged(worker, model))
        else:
            super().load(worker, model, version, wish)

    def _came(self, worker: int, model: int, version: ModelVersion) -> None:
        self._holds[worker][model] = version
        self._emit(port.ModelLoaded(worker, model, (), 5 * MS, 1000))
        self._beside(worker, model, 3 * MS, lambda: self._page_in(worker, model))

    def _page_in(self, worker: int, model: int) -> None:
        if self.rotten:
            self._emit(port.WeightsPagedIn(worker, model, 0, 3 * MS, "rot"))
        else:
            super()._page_in(worker, model)

    def _exchanged(self, worker: int, model: int) -> None:
        self.exchanges[worker] += 1
        packed = self.renewed_packed
        self._emit(port.ModelLoaded(worker, model, ((1, MS),), 40 * MS, FAST_BYTES, packed=packed))


class EarlyWorld(SwapWorld):
    """Two models that do not fit together; the first has weights and two processes."""

    workers_type = EarlyWorkers
    workers: EarlyWorkers

    def __init__(self, packed_forms: bool = False) -> None:
        config = ResidencyPolicy(early_bytes=1, evict_weights=False)
        terms = terms_of(config, 2 * (PROCESS_BYTES + FAST_BYTES) + 100_000)
        swap = RolloutPolicy(watch_s=0.1, packed_forms=packed_forms)
        super().__init__(3, names=2, swap=swap, residency=terms)
        weights = WeightsFile(path="w", size=WEIGHTS_BYTES, pieces=("ab",))
        self.large = self.wanted["m0"] = replace(
            self.wanted["m0"], instance_count=2, weights=weights, file_bytes=100, digest="d" * 64, forms="/no"
        )
        self.small = self.wanted["m1"]

    def boot(self) -> None:
        super().boot()
        self.workers.exchanges = Counter()

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.world.run(self.world.now + ms * MS)

    def put_out(self) -> None:
        """Have the other one in memory, so that the large one comes back when it is asked for."""
        ask(self, self.small)
        self.run(5_000)
        assert self.residency() == {"m0": "cold", "m1": "resident"}

    def residency(self) -> dict[str, str]:
        return {each.name: each.residency for each in self.engine.status().versions}


@pytest.fixture
def world() -> EarlyWorld:
    world = EarlyWorld()
    world.start()
    world.run(10_000)
    world.put_out()
    return world


def test_each_process_is_given_the_fast_session_however_late_it_comes(world: EarlyWorld) -> None:
    ask(world, world.large)
    world.run(200)
    assert world.residency()["m0"] == "resident"
    assert len(world.workers.exchanges) == 1, "the other one is still loading"
    world.run(5_000)
    assert sorted(world.workers.exchanges.values()) == [1, 1]
    world.settle()


def test_what_the_fast_session_takes_is_counted_when_it_is_there(world: EarlyWorld) -> None:
    ask(world, world.large)
    world.run(20)
    assert world.engine.status().residency.used_bytes == 2 * (PROCESS_BYTES + 1000)
    world.run(5_000)
    assert world.engine.status().residency.used_bytes == 2 * (PROCESS_BYTES + FAST_BYTES)
    world.settle()


def test_what_the_last_request_has_made_a_model_take_is_seen_though_nothing_else_happens(
    world: EarlyWorld,
) -> None:
    before = world.engine.status().residency.used_bytes
    world.workers.growth = 1.0
    ask(world, world.small)
    world.run(5_000)
    assert world.engine.status().residency.used_bytes > before
    world.settle()


def verified(world: EarlyWorld) -> tuple[int, int, int]:
    figures = world.engine.status().residency
    return figures.verified, figures.verified_bytes, figures.not_as_stored


def test_weights_count_as_verified_each_time_they_were_read(world: EarlyWorld) -> None:
    assert verified(world) == (2, 2 * WEIGHTS_BYTES, 0), "both processes, at the first load"
    ask(world, world.large)
    world.run(5_000)
    assert verified(world) == (6, 4 * WEIGHTS_BYTES + 2 * EVICTABLE_BYTES, 0), "quick sessions and fast ones"
    world.settle()


def test_weights_that_are_not_as_they_were_stored_are_counted(world: EarlyWorld) -> None:
    world.workers.rotten = True
    world.names.remove("m0")  # it is given up, and nothing serves in its place
    ask(world, world.large)
    world.run(20)
    assert verified(world) == (2, 2 * WEIGHTS_BYTES, 1)


def test_nothing_is_left_of_a_model_that_goes_while_it_is_loaded(world: EarlyWorld) -> None:
    ask(world, world.large)
    world.run(3)
    cache = world.engine._cache
    assert [cached.moved_ns for cached in cache._cached.values() if cached.moved_ns is not None]
    del world.wanted["m0"]
    world.names.remove("m0")
    world.engine.apply(Catalog(versions=(CatalogVersion(model=world.small, fingerprint="first"),)))
    world.run(5_000)
    assert not [cached for cached in cache._cached.values() if cached.moved_ns is not None]
    assert not cache._moves.draining


@pytest.mark.parametrize("packed", [False, True])
def test_a_form_is_built_if_the_fast_session_shows_that_there_is_none(packed: bool) -> None:
    """The quick one shows nothing: it never runs from a form."""
    world = EarlyWorld(packed_forms=True)
    world.start()
    world.run(10_000)
    world.put_out()
    world.wanted = dict(reversed(world.wanted.items()))
    world.reboot()
    world.workers.renewed_packed = packed
    world.run(5_000)
    assert world.residency() == {"m0": "cold", "m1": "resident"}
    assert world.workers.built == 0
    ask(world, world.large)
    world.run(20_000)
    assert world.workers.exchanges
    assert world.workers.built == (0 if packed else 1)


@pytest.mark.parametrize("assumed", [False, True])
def test_the_fast_session_is_looked_at_for_rows_that_mix_where_the_quick_one_was_not(assumed: bool) -> None:
    world = EarlyWorld()
    world.workers.probed.clear()
    world.large = world.wanted["m0"] = replace(world.large, rows_assumed=assumed)
    world.start()
    world.run(10_000)
    world.put_out()
    ask(world, world.large)
    world.run(5_000)
    assert world.workers.probed == [assumed] * 2
    world.settle()
