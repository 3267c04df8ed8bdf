"""Versions with a worker of their own, by the real engine with simulated workers; no GPU is here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from appliance.config.engine import ResidencyConfig
from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.memory.homes import CONTEXT_BYTES
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.binding import extended
from appliance.domain.device import cuda
from appliance.domain.exit_cause import ExitCause
from appliance.engine.control.model_cache import HOST, ResidencyTerms
from tests.simulation.device_world import MB, DeviceWorld
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import SOUND, SwapWorld

GIB = 1 << 30
PLAIN = ResidencyTerms(extended(ResidencyPolicy, ResidencyConfig()), (Budget(HOST, 64 * GIB),))


def own(world: SwapWorld, *names: str) -> None:
    """Have these models ask for a worker of their own."""
    for name in names:
        model = world.wanted[name]
        world.wanted[name] = replace(model, parameters={**model.parameters, "own_worker": "true"})


def holders(world: SwapWorld) -> dict[str, tuple[int, ...]]:
    """The workers of each model."""
    return {each.name: each.workers for each in world.engine.status().versions}


def crash(world: DeviceWorld, name: str) -> None:
    """The workers of a model die."""
    for worker in holders(world)[name]:
        world.workers._exit(worker, ExitCause.DIED, -1)


def processes(seed: int, limit: int, names: int) -> SwapWorld:
    """Small models on the processor, and so many processes."""
    world = SwapWorld(seed, names=names, swap=RolloutPolicy(watch_s=0.1), residency=PLAIN)
    world.engine._rollouts._groups._placement = replace(
        world.engine._rollouts._groups._placement, max_processes=limit
    )
    for name in world.names:
        world.wanted[name] = replace(world.wanted[name], file_bytes=1000)
    return world


def test_on_a_gpu_it_has_its_own_and_its_context_counts() -> None:
    world = DeviceWorld(1, [(0,), (0,), (0,)], (8 * GIB,), file_bytes=GIB)
    world.max_processes = 64
    own(world, "m1")
    world.start()
    held = holders(world)
    assert held["m0"] == held["m2"] != held["m1"]
    assert len(world.workers.devices) == 2
    statistics = world.engine._cache._memory.statistics(cuda(0))
    assert statistics.used_bytes == 3 * GIB + CONTEXT_BYTES, "the context of the other one is reserved once"
    assert len(world.engine.worker_pids()[cuda(0)]) == 2, "its memory is none of others'"
    world.settle()


def test_its_context_is_no_room_for_others() -> None:
    world = DeviceWorld(2, [(0,), (0,)], (2 * GIB + CONTEXT_BYTES // 2,), file_bytes=GIB)
    own(world, "m1")
    world.start()
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    used = world.engine._cache._memory.statistics(cuda(0)).used_bytes
    assert used in (GIB, GIB + CONTEXT_BYTES), "one at a time"
    world.load_of(2_000, 60)
    world.looks(6_000)
    assert sum(world.answers.values()) + world.full == 60
    world.settle()


def test_its_crash_costs_the_others_nothing_and_theirs_costs_it_nothing() -> None:
    for seed, victim in ((3, "m1"), (4, "m0")):
        world = DeviceWorld(seed, [(0,), (0,), (0,)], (8 * GIB,), file_bytes=MB)
        own(world, "m1")
        world.start()
        before = holders(world)
        (worker,) = before[victim]
        world.load_of(4_000, 300)
        for at_ms in (500, 1_500):
            world.world.after(at_ms * MS, partial(crash, world, victim))
        world.looks(8_000)
        assert sum(world.answers.values()) == 300
        restarts = {each.name: sum(each.restarts.values()) for each in world.engine.status().versions}
        others = {"m0", "m2"} if victim == "m1" else {"m1"}
        assert {name for name, count in restarts.items() if not count} == others
        for name in others:
            assert holders(world)[name] == before[name], "its worker went on"
            assert worker not in before[name]
        world.settle()


def test_on_the_processor_small_ones_leave_it_alone() -> None:
    world = processes(5, limit=2, names=5)
    own(world, "m3")
    world.start()
    held = holders(world)
    assert len(set(held.values())) == 2
    assert [name for name in world.names if held[name] == held["m3"]] == ["m3"]
    world.settle()


def test_where_all_processes_are_taken_it_waits_and_says_so() -> None:
    world = processes(6, limit=2, names=4)
    own(world, "m0", "m1", "m2")
    world.apply()
    world.soon()
    world.world.run(world.world.now + 5_000 * MS)
    states = {
        each.name: (each.state.value, each.reason, each.waiting) for each in world.engine.status().versions
    }
    waiting = [name for name in ("m0", "m1", "m2") if states[name][0] == "LOADING"]
    assert len(waiting) == 1, "two have the processes, and what may share goes on beside them"
    assert states["m3"][0] == "READY"
    assert states[waiting[0]][1:] == (
        "waits for a worker process of its own (own_worker): all 2 are taken (placement.max_processes)",
        "process",
    )
    leaves = next(name for name in ("m0", "m1", "m2") if name not in waiting)
    del world.wanted[leaves]
    del world.wanted["m3"]
    world.names = [name for name in world.names if name not in (leaves, "m3")]
    world.apply()
    world.world.run(world.world.now + 30_000 * MS)
    assert all(each.state.value == "READY" for each in world.engine.status().versions)
    world.settle()


def test_what_waits_for_memory_takes_no_processes_from_others() -> None:
    world = processes(8, limit=4, names=7)
    for name in world.names[:4]:
        world.wanted[name] = replace(world.wanted[name], file_bytes=900 * GIB)
    own(world, *world.names[:4])
    late = {name: world.wanted.pop(name) for name in world.names[4:]}
    world.apply()
    world.world.run(world.world.now + 3_000 * MS)
    assert [each.waiting for each in world.engine.status().versions] == ["never fits"] * 4
    world.wanted |= late
    world.apply()
    world.world.run(world.world.now + 5_000 * MS)
    held = holders(world)
    assert len({held[name] for name in late}) == 3, "each has its own"


def test_a_new_version_takes_the_place_of_its_own() -> None:
    world = processes(7, limit=2, names=2)
    own(world, "m0", "m1")
    world.start()
    new = world.next_version("m0", SOUND)
    world.wanted["m0"] = replace(new, file_bytes=1000, parameters={**new.parameters, "own_worker": "true"})
    world.apply()
    world.world.run(world.world.now + 5_000 * MS)
    assert world.engine.resolve("m0", "").version == 2, "both had theirs for a while"
    world.settle()
