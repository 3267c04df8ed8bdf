"""How much of a GPU each load is told that its session may take, by the real engine with simulated workers; no GPU is
here."""

from __future__ import annotations

from dataclasses import replace

from appliance.core.memory.homes import CONTEXT_BYTES, ROOM_BYTES
from appliance.domain.device import DeviceKind, DeviceName, cuda
from appliance.domain.device_wish import DeviceWish
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.workers import port
from tests.simulation.device_world import ECC, MB, DeviceWorld, GpuWorkers
from tests.simulation.scripted_workers import MS

GIB = 1 << 30
TOO_MUCH = "it needs more of its GPU than it may take"


class RoomyWorkers(GpuWorkers):
    """``rooms`` is what each load was told, in order; ``greed`` what the sessions of a version try to take, by key."""

    rooms: list[tuple[str, DeviceName, int]]
    greed: dict[str, int]

    def load(self, worker: int, model: int, version: ModelVersion, wish: LoadWish = PLAIN_LOAD) -> None:
        self.rooms.append((version.key, self.devices[worker], wish.room_bytes))
        if self.greed.get(version.key, 0) <= wish.room_bytes:
            super().load(worker, model, version, wish)
            return
        refused = port.ModelRefused(worker, model, TOO_MUCH)
        self._later(worker, 2 * MS, lambda: self._emit(refused))


class RoomyWorld(DeviceWorld):
    """Models of 1 GiB of files."""

    workers_type = RoomyWorkers
    workers: RoomyWorkers

    def __init__(self, seed: int, gpus: list[tuple[int, ...]], budgets: tuple[int, ...]) -> None:
        RoomyWorkers.rooms, RoomyWorkers.greed = [], {}
        super().__init__(seed, gpus, budgets, file_bytes=GIB)

    def renew(self, name: str, file_bytes: int = GIB) -> None:
        """Wish for the next version of a model, which gets some seconds."""
        wish = self.wanted[name].device
        self.wanted[name] = replace(self.next_version(name, "sound"), device=wish, file_bytes=file_bytes)
        self.workers.rooms.clear()
        self.apply()
        self.looks(3_000)

    def told(self, key: str) -> list[int]:
        """What loads of a version were told."""
        return [room for each, _, room in self.workers.rooms if each == key]


def test_a_load_may_take_what_no_other_version_has() -> None:
    world = RoomyWorld(1, [(0,), (0,), (0,)], (8 * GIB,))
    world.start()
    assert {key: room for key, _, room in world.workers.rooms} == dict.fromkeys(
        ("m0/1", "m1/1", "m2/1"), 6 * GIB
    ), "of 8, as two are promised 1 each: not the size of its files"
    world.renew("m0")
    assert world.told("m0/2") == [5 * GIB], "the version that it replaces has its own still"
    world.settle()


def test_what_sessions_said_that_they_have_counts_for_those_that_come_after() -> None:
    world = RoomyWorld(2, [(0,), (0,)], (8 * GIB,))
    world.workers.says["m1"] = 3 * GIB
    world.start()
    world.renew("m0")
    assert world.told("m0/2") == [4 * GIB]
    world.settle()


def test_a_session_that_takes_too_much_is_refused_and_costs_nobody_anything() -> None:
    world = RoomyWorld(3, [(0,), (0,)], (8 * GIB,))
    world.start()
    before = {each.name: each.workers for each in world.engine.status().versions}
    world.workers.greed["m0/2"] = 7 * GIB
    world.renew("m0")
    versions = {(each.name, each.version): each for each in world.engine.status().versions}
    assert TOO_MUCH in versions["m0", 2].reason
    assert world.engine.resolve("m0", "").version == 1
    assert {name: versions[name, 1].workers for name in before} == before, "in the worker in which they were"
    world.load_of(500, 20)
    world.looks(2_000)
    assert sum(world.answers.values()) == 20
    world.renew("m0")
    assert world.engine.resolve("m0", "").version == 3, "nothing is left of the refused one"
    assert world.told("m0/3") == [6 * GIB]
    world.settle()


def test_a_worker_that_is_started_again_has_the_room_that_there_is_then() -> None:
    world = RoomyWorld(4, [(0,), (0,)], (8 * GIB,))
    world.start()
    world.tell(0, budget_bytes=5 * GIB)
    world.workers.rooms.clear()
    (worker,) = world.workers.devices
    world.workers._exit(worker, ExitCause.DIED, -1)
    world.looks(6_000)
    assert world.workers.rooms == [(f"{name}/1", cuda(0), 4 * GIB) for name in world.names]
    world.settle()


def test_a_version_that_moves_has_the_room_of_its_new_device() -> None:
    world = RoomyWorld(5, [()], (8 * GIB, 6 * GIB))
    world.start()
    ((_, device, room),) = world.workers.rooms
    assert (device, room) == (cuda(0), 8 * GIB)
    world.workers.rooms.clear()
    world.tell(0, ECC)
    world.looks(3_000)
    assert world.workers.rooms == [("m0/1", cuda(1), 6 * GIB)]
    world.settle()


def test_a_worker_of_its_own_leaves_room_for_its_context() -> None:
    world = RoomyWorld(6, [(0,), (0,)], (8 * GIB,))
    own = world.wanted["m0"]
    world.wanted["m0"] = replace(own, parameters={**own.parameters, "own_worker": "true"})
    world.start()
    assert world.told("m0/1") == [7 * GIB - CONTEXT_BYTES]
    assert world.told("m1/1") == [7 * GIB - CONTEXT_BYTES]
    world.settle()


def test_where_there_is_just_the_room_that_was_promised_a_session_may_take_a_little_more() -> None:
    """What is known of a version before its first load is the size of its files, and every session takes more."""
    world = RoomyWorld(7, [(0,)], (GIB,))
    world.start()
    assert world.told("m0/1") == [GIB + GIB // 4 + ROOM_BYTES]
    world.settle()


def test_a_model_on_the_processor_is_told_nothing() -> None:
    world = RoomyWorld(8, [(0,), (0,)], (8 * GIB,))
    world.wanted["m1"] = replace(world.wanted["m1"], device=DeviceWish(DeviceKind.CPU), file_bytes=MB)
    world.start()
    assert (world.told("m0/1"), world.told("m1/1")) == ([8 * GIB], [0])
    world.settle()


def test_a_word_that_there_was_no_room_for_is_refused_and_costs_nobody_anything() -> None:
    world = RoomyWorld(8, [(0,), (0,)], (8 * GIB,))
    world.start()
    world.workers.says["m0"] = 6 * GIB + CONTEXT_BYTES + 1
    world.renew("m0")
    versions = {(each.name, each.version): each for each in world.engine.status().versions}
    assert "bytes of its GPU, where others left" in versions["m0", 2].reason
    assert [world.reason_of("m1"), world.engine.resolve("m0", "").version] == [("READY", ""), 1]
    residency = world.engine.status().residency
    assert (residency.unloads, residency.loads) == (0, 0), "nobody left memory for it"
    held = [model.key for holds in world.workers._holds.values() for model in holds.values()]
    assert sorted(held) == ["m0/1", "m1/1"], "its worker was told to let go of it"
    del world.workers.says["m0"]
    world.renew("m0")
    assert world.told("m0/3") == [6 * GIB], "nothing of the word is left"
    world.settle()


def test_a_word_a_little_above_its_room_counts_for_the_room_alone_and_is_not_remembered() -> None:
    """The first session of a process brings CUDA's libraries, which are in its context's GiB."""
    world = RoomyWorld(9, [(0,), (0,)], (8 * GIB,))
    world.workers.says["m0"] = 7 * GIB + CONTEXT_BYTES
    world.start()
    cache = world.engine._cache
    served = {each.model.name: each for each in world.engine._rollouts.on_devices()}
    assert cache.memory_of(served["m0"])[0] == 7 * GIB
    assert cache._memory.statistics(cuda(0)).used_bytes == 8 * GIB, "of a budget of 8"
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    world.settle()


def test_a_gpu_that_is_full_for_a_moment_ends_nothing_that_serves() -> None:
    world = DeviceWorld(10, [()] * 4, (25 * MB,), file_bytes=10 * MB)
    world.start()
    world.tight = True
    world.workers.full = {cuda(0)}
    for _ in range(20):
        for name in world.names:
            world.ask(name)
        world.looks(1_000)
    assert [world.reason_of(name) for name in world.names] == [("READY", "")] * 4
    assert world.full, "those that are out of memory do not come back meanwhile"
    world.workers.full = set()
    world.looks(120_000)
    missed = world.full
    for name in world.names:
        world.ask(name)
        world.looks(2_000)
    assert world.full == missed, "and each does afterwards"
    world.settle()


def test_a_worker_that_is_started_again_on_a_full_gpu_costs_its_versions_nothing_but_the_time() -> None:
    world = DeviceWorld(11, [()] * 2, (25 * MB,), file_bytes=10 * MB)
    world.start()
    world.tight = True
    (worker,) = world.workers.devices
    world.workers.full = {cuda(0)}
    world.workers._exit(worker, ExitCause.DIED, -1)
    world.looks(20_000)
    assert [world.reason_of(name) for name in world.names] == [("READY", "")] * 2
    world.workers.full = set()
    world.looks(120_000)
    missed = world.full
    for name in world.names:
        world.ask(name)
    world.looks(2_000)
    assert world.full == missed
    world.settle()
