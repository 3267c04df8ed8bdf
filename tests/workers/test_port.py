"""The conformance suite of WorkerPort on the pool and on the simulation's scripted workers."""

from __future__ import annotations

import pytest

from appliance.workers import port
from appliance.workers.arena import Arena
from tests.simulation.scripted_workers import MS, ScriptedWorkers, World
from tests.workers.bench import SMALL_ARENA, Bench
from tests.workers.port_conformance import PortConformance, Workers


class TestPool(PortConformance):
    @pytest.fixture
    def workers(self, shared_bench: Bench) -> Workers:
        return Workers(shared_bench.pool, shared_bench.call, shared_bench.any_event)


class TestScripted(PortConformance):
    @pytest.fixture
    def workers(self) -> Workers:
        world, events = World(3), list[port.PoolEvent]()
        scripted = ScriptedWorkers(world, Arena(SMALL_ARENA), events.append, trouble=0.0)

        def event() -> port.PoolEvent:
            world.run(world.now + 1000 * MS)
            return events.pop(0)

        return Workers(scripted, lambda action, *arguments: action(*arguments), event)
