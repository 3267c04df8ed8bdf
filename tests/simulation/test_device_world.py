"""Several GPUs, their budgets and their faults, played by seed; no GPU is here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.device import Device, DeviceKind, DeviceState, DeviceWish, cuda
from appliance.domain.errors import NotServed
from appliance.workers.port import ExitCause
from tests.simulation.device_world import ECC, LOST, MB, ROOMY, DeviceWorld
from tests.simulation.scripted_workers import MS

ASKS_89 = DeviceWish(DeviceKind.CUDA, capability=(8, 9))
ASKS_90 = DeviceWish(DeviceKind.CUDA, capability=(9, 0))


@pytest.mark.parametrize("seed", range(12))
def test_no_request_fails_that_has_a_device(seed: int) -> None:
    DeviceWorld(seed, [(), (), (0,), (1,), (0, 1)], (ROOMY, ROOMY)).play_faults()


@pytest.mark.parametrize("seed", range(20, 32))
def test_nor_one_that_asks_for_what_few_devices_are(seed: int) -> None:
    asked: list[tuple[int, ...] | DeviceWish] = [
        (),
        (0,),
        ASKS_89,
        ASKS_90,
        DeviceWish(DeviceKind.CUDA, (0, 2), (8, 0), ("GPU-1", "GPU-2")),
    ]
    DeviceWorld(seed, asked, (ROOMY,) * 3).play_faults()


@pytest.mark.parametrize("seed", range(12, 18))
def test_nor_where_more_is_at_home_than_fits(seed: int) -> None:
    DeviceWorld(seed, [()] * 6, (25 * MB, 25 * MB), file_bytes=10 * MB).play_faults()


def test_models_are_spread_and_those_of_a_device_share_one_worker() -> None:
    world = DeviceWorld(1, [(1,), (1,), (), ()], (ROOMY, ROOMY))
    world.start()
    assert [world.device_of(name) for name in world.names] == ["cuda:1", "cuda:1", "cuda:0", "cuda:0"]
    assert sorted(map(str, world.workers.devices.values())) == ["cuda:0", "cuda:1"]
    assert world.engine.worker_pids().keys() == {cuda(0), cuda(1)}
    world.settle()


def test_more_than_fit_on_a_gpu_are_swapped_as_on_the_processor() -> None:
    world = DeviceWorld(2, [()] * 4, (25 * MB,), file_bytes=10 * MB)
    world.start()
    world.load_of(4_000, 200)
    world.looks(8_000)
    assert not world.pending
    assert sum(world.answers.values()) == 200
    figures = world.engine.status().residency
    assert figures.misses > 0
    assert figures.loads > 0
    assert figures.evictions == 0, "weights cannot leave a GPU alone"
    assert world.engine._cache._memory.statistics(cuda(0)).used_bytes <= 25 * MB
    world.settle()


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    world = DeviceWorld(3, [(0,), (5,)], (ROOMY, ROOMY))
    world.apply()
    world.soon()
    world.looks(1_000)
    state, reason = world.reason_of("m1")
    assert state == "UNAVAILABLE"
    assert reason == (
        "asks for GPU 5 (instance_group.gpus), and the driver tells of cuda:0 (simulated 0, GPU-0f, compute capability "
        "7.5), cuda:1 (simulated 1, GPU-1f, compute capability 8.9); ask for one of those, or for any"
    )
    assert world.reason_of("m0") == ("READY", "")


def test_one_that_asks_for_what_no_device_is_is_refused_with_what_there_is() -> None:
    world = DeviceWorld(
        3, [ASKS_89, ASKS_90, DeviceWish(DeviceKind.CUDA, (1,), (8, 9), ("GPU-0f",))], (ROOMY,) * 2
    )
    world.apply()
    world.soon()
    world.looks(1_000)
    assert (world.device_of("m0"), world.reason_of("m0")) == ("cuda:1", ("READY", ""))
    there = (
        ", and the driver tells of cuda:0 (simulated 0, GPU-0f, compute capability 7.5), cuda:1 (simulated 1, GPU-1f, "
        "compute capability 8.9); ask for one of those, or for any"
    )
    higher = "asks for compute capability 9.0 or more (min_compute_capability)"
    assert world.reason_of("m1") == ("UNAVAILABLE", higher + there)
    all_of_it = (
        "asks for GPU 1 (instance_group.gpus), compute capability 8.9 or more (min_compute_capability), UUID GPU-0f "
        "(gpu_uuids)"
    )
    assert world.reason_of("m2") == ("UNAVAILABLE", all_of_it + there)


def test_what_was_lost_before_it_told_what_it_is_is_waited_for() -> None:
    world = DeviceWorld(3, [ASKS_90], (ROOMY,) * 2)
    lost = Device(kind=DeviceKind.CUDA, index=1, uuid="cuda:1", name="NVIDIA", driver="1")
    world.devices_told((DeviceState(device=lost, budget_bytes=ROOMY, fault=LOST, gone=True),))
    world.looks(1_000)
    world.apply()
    world.soon()
    world.looks(1_000)
    assert world.reason_of("m0") == ("LOADING", f"waits for a device: cuda:1 is drained, as it {LOST}")


def test_it_moves_to_such_a_device_alone_and_is_unavailable_without() -> None:
    world = DeviceWorld(4, [ASKS_89], (ROOMY,) * 3)
    world.start()
    assert world.device_of("m0") == "cuda:1", "cuda:0 is as empty, and is not what it asks for"
    world.load_of(3_000, 100)
    world.tell(1, ECC)
    world.looks(5_000)
    assert (world.device_of("m0"), sum(world.answers.values()), world.refused) == ("cuda:2", 100, [])
    world.tell(2, ECC)
    world.looks(2_000)
    both = f"cuda:1 is drained, as it {ECC}; cuda:2 is drained, as it {ECC}"
    assert world.reason_of("m0") == ("UNAVAILABLE", both)
    world.tell(1)
    world.looks(1_000)
    assert (world.device_of("m0"), world.reason_of("m0")) == ("cuda:1", ("READY", ""))
    assert {device for _, device in world.workers.loaded_on} == {cuda(1), cuda(2)}
    world.settle()


def test_what_serves_is_loaded_elsewhere_before_it_leaves_a_device_that_had_errors() -> None:
    world = DeviceWorld(4, [(0, 1)], (ROOMY, ROOMY))
    world.start()
    before = world.device_of("m0")
    index = int(before[-1])
    world.load_of(4_000, 300)
    world.world.after(500 * MS, lambda: world.tell(index, ECC))
    world.looks(5_000)
    assert world.device_of("m0") != before
    assert sum(world.answers.values()) == 300
    assert not world.refused
    assert world.engine.status().residency.misses == 0, "nobody had to wait for it"
    assert world.reason_of("m0") == ("READY", "")
    world.settle()


def test_nothing_is_kept_to_go_back_to_on_a_device_that_had_errors() -> None:
    world = DeviceWorld(4, [(0, 1)], (ROOMY, ROOMY), watch_s=4.0)
    world.start()
    world.looks(6_000)
    before = world.device_of("m0")
    world.tell(int(before[-1]), ECC)
    world.looks(1_500)
    assert world.device_of("m0") != before
    assert [str(device) for device in world.engine.worker_pids()] == [world.device_of("m0")]
    world.settle()


def test_what_was_on_a_lost_device_waits_for_another_one_and_no_request_fails() -> None:
    world = DeviceWorld(5, [(0, 1)], (ROOMY, ROOMY))
    world.start()
    before = world.device_of("m0")
    world.load_of(4_000, 300)
    world.world.after(500 * MS, lambda: world.tell(int(before[-1]), LOST, gone=True))
    world.looks(5_000)
    assert world.device_of("m0") != before
    assert sum(world.answers.values()) == 300
    assert not world.refused
    assert set(world.engine.worker_pids()) == {cuda(1 - int(before[-1]))}, "its worker was ended"
    world.settle()


def test_what_may_run_nowhere_else_is_unavailable_until_the_fault_is_gone() -> None:
    world = DeviceWorld(6, [(1,), ()], (ROOMY, ROOMY))
    world.start()
    world.tell(1, ECC)
    world.looks(1_000)
    assert world.reason_of("m0") == ("UNAVAILABLE", f"cuda:1 is drained, as it {ECC}")
    assert not world.engine.is_ready("m0", "")
    with pytest.raises(NotServed, match="no available versions; version 1 cuda:1 is drained"):
        world.engine.resolve("m0", "")
    with pytest.raises(NotServed, match="not at ready state; version 1 cuda:1 is drained"):
        world.engine.resolve("m0", "1")
    assert world.reason_of("m1") == ("READY", "")
    world.tell(1)
    world.looks(1_000)
    assert world.reason_of("m0") == ("READY", "")
    world.client("m0")
    world.looks(1_000)
    assert sum(world.answers.values()) == 1
    assert world.device_of("m0") == "cuda:1"
    world.settle()


def test_a_new_version_waits_for_a_device_and_says_which() -> None:
    world = DeviceWorld(7, [(1,)], (ROOMY, ROOMY))
    world.start()
    world.tell(1, ECC)
    world.looks(1_000)
    second = world.next_version("m0", "sound")
    world.wanted["m0"] = replace(second, device=DeviceWish(DeviceKind.CUDA, (1,)), file_bytes=MB)
    world.apply()
    world.looks(2_000)
    states = {each.version: (each.state.value, each.reason) for each in world.engine.status().versions}
    assert states[2] == ("LOADING", f"waits for a device: cuda:1 is drained, as it {ECC}")
    (waiting,) = [each.waiting for each in world.engine.status().versions if each.version == 2]
    assert waiting == "device"
    world.tell(1)
    world.looks(5_000)
    assert world.engine.resolve("m0", "").version == 2
    world.settle()


def test_a_budget_that_shrinks_puts_models_out_and_they_come_back_with_it() -> None:
    world = DeviceWorld(8, [()] * 2, (25 * MB,), file_bytes=10 * MB)
    world.start()
    memory = world.engine._cache._memory
    assert memory.statistics(cuda(0)).used_bytes == 20 * MB
    world.tell(0, budget_bytes=15 * MB)
    world.looks(2_000)
    assert memory.statistics(cuda(0)).used_bytes == 10 * MB
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    world.tell(0, budget_bytes=25 * MB)
    for name in world.names:
        world.client(name)
    world.looks(2_000)
    assert memory.statistics(cuda(0)).used_bytes == 20 * MB
    world.settle()


@pytest.mark.parametrize(("fault", "gone"), [(LOST, True), (ECC, False)])
def test_a_worker_that_dies_of_a_fault_is_not_started_there_again(fault: str, gone: bool) -> None:
    world = DeviceWorld(9, [(0, 1)], (ROOMY, ROOMY))
    world.start()
    before = world.device_of("m0")
    (worker,) = world.workers.devices
    world.load_of(4_000, 300)
    world.world.after(500 * MS, lambda: world.workers._exit(worker, ExitCause.DIED, -1))
    world.world.after(1_400 * MS, lambda: world.tell(int(before[-1]), fault, gone=gone))
    world.world.run(world.world.now + 8_000 * MS)
    assert [str(device) for _, device in world.workers.loaded_on] == [before, f"cuda:{1 - int(before[-1])}"]
    assert not world.refused
    assert sum(world.answers.values()) == 300
    world.settle()


def test_a_worker_that_dies_on_a_sound_gpu_comes_back_there() -> None:
    world = DeviceWorld(10, [(1,)], (ROOMY, ROOMY))
    world.start()
    (worker,) = world.workers.devices
    world.workers._exit(worker, ExitCause.DIED, -1)
    world.looks(5_000)
    assert [str(device) for _, device in world.workers.loaded_on] == ["cuda:1"] * 2
    world.client("m0")
    world.looks(1_000)
    assert sum(world.answers.values()) == 1
    world.settle()
