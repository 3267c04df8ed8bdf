"""Several GPUs, their budgets and their faults, played by seed; no GPU is here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.core.memory.footprint import Residency
from appliance.domain.device import Device, DeviceKind, cuda
from appliance.domain.device_reading import DeviceState
from appliance.domain.device_wish import DeviceWish
from appliance.domain.errors import NotServed
from appliance.domain.exit_cause import ExitCause
from appliance.engine.control.devices import STAYS_NS
from appliance.engine.versions.wording import AT_THE_START
from tests.simulation.device_world import ECC, HOT, LOST, MB, ROOMY, DeviceWorld
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


@pytest.mark.parametrize("seed", [1026, 1036])
def test_nor_where_three_devices_take_turns_in_holding_what_two_can(seed: int) -> None:
    """What a model still runs on a device that it has left may end after it serves on the next one."""
    world = DeviceWorld(seed, [()] * 6, (45 * MB, 45 * MB, 30 * MB), file_bytes=10 * MB)
    world.tight = True  # with two of them
    world.play_faults()


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
        "asks for cuda:5 (instance_group.gpus), and the driver tells of cuda:0 (compute capability "
        f"7.5), cuda:1 (compute capability 8.9); ask for one of those, or for any; {AT_THE_START}"
    )
    status = next(each for each in world.engine.status().versions if each.name == "m1")
    assert (status.placed, status.next_try_ms) == ("cuda", 0)
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
        ", and the driver tells of cuda:0 (compute capability 7.5), cuda:1 ("
        f"compute capability 8.9); ask for one of those, or for any; {AT_THE_START}"
    )
    higher = "asks for compute capability 9.0 or more (min_compute_capability)"
    assert world.reason_of("m1") == ("UNAVAILABLE", higher + there)
    all_of_it = (
        "asks for cuda:1 (instance_group.gpus), compute capability 8.9 or more (min_compute_capability), UUID GPU-0f "
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


def test_what_serves_on_a_slowed_device_is_loaded_elsewhere_before_it_leaves() -> None:
    world = DeviceWorld(4, [(0, 1)] * 3, (ROOMY, ROOMY))
    world.start()
    there = [name for name in world.names if world.device_of(name) == "cuda:0"]
    assert len(there) == 2
    world.load_of(8_000, 600)
    world.world.after(500 * MS, lambda: world.tell(0, slow=HOT))
    world.looks(9_000)
    assert {world.device_of(name) for name in world.names} == {"cuda:1"}
    assert (sum(world.answers.values()), world.refused) == (600, [])
    assert world.engine.status().residency.misses == 0, "nobody had to wait for it"
    world.tell(0)
    world.looks(5_000)
    assert {world.device_of(name) for name in world.names} == {"cuda:1"}, "what moved stays"
    world.settle()


def test_what_a_slowed_device_holds_stays_where_no_other_has_room() -> None:
    world = DeviceWorld(5, [(1,), (0, 1), (1,), (0,)], (25 * MB, 25 * MB), file_bytes=10 * MB)
    world.start()
    before = [world.device_of(name) for name in world.names]
    assert before == ["cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    loads = len(world.workers.loaded_on)
    world.load_of(8_000, 300)
    world.world.after(500 * MS, lambda: world.tell(0, slow=HOT))
    world.looks(9_000)
    assert [world.device_of(name) for name in world.names] == before
    assert len(world.workers.loaded_on) == loads
    assert (sum(world.answers.values()), world.refused) == (300, [])
    assert all(world.reason_of(name) == ("READY", "") for name in world.names)
    world.tell(1, budget_bytes=35 * MB)
    world.looks(3_000)
    assert world.device_of("m1") == "cuda:1", "there is room now"
    assert world.device_of("m3") == "cuda:0", "it may run nowhere else"
    world.settle()


def test_a_new_version_goes_where_no_device_is_slowed_and_else_to_a_slowed_one() -> None:
    world = DeviceWorld(6, [(0, 1)], (ROOMY, ROOMY))
    world.tell(0, slow=HOT)
    world.soon()
    world.looks(100)
    world.start()
    assert world.device_of("m0") == "cuda:1"
    world.tell(1, ECC)
    world.looks(3_000)
    assert world.device_of("m0") == "cuda:0", "slow is better than gone"
    assert world.reason_of("m0") == ("READY", "")
    world.settle()


def test_devices_that_slow_each_other_do_not_pass_versions_to_and_fro() -> None:
    world = DeviceWorld(7, [(0, 1)], (ROOMY, ROOMY))
    world.start()
    first = int(world.device_of("m0")[-1])
    for _ in range(5):
        for index in (first, 1 - first):
            world.tell(index, slow=HOT)
            world.tell(1 - index)
            world.looks(3_000)
    assert world.device_of("m0") == f"cuda:{1 - first}"
    assert [str(device) for _, device in world.workers.loaded_on] == [f"cuda:{first}", f"cuda:{1 - first}"]
    world.world.run(world.world.now + STAYS_NS)
    world.looks(3_000)
    assert world.device_of("m0") == f"cuda:{first}", "an hour later it may leave again"
    world.settle()


def test_a_copy_that_comes_to_nothing_is_not_tried_again_and_again() -> None:
    world = DeviceWorld(8, [(0, 1)], (ROOMY, ROOMY))
    world.start()
    assert world.device_of("m0") == "cuda:0"
    world.workers.refusing = {cuda(1)}
    world.load_of(8_000, 100)
    world.tell(0, slow=HOT)
    world.looks(60_000)
    assert [str(device) for _, device in world.workers.loaded_on] == ["cuda:0", "cuda:1"]
    assert (world.device_of("m0"), world.reason_of("m0")) == ("cuda:0", ("READY", ""))
    assert sum(world.answers.values()) == 100
    world.settle()


def test_a_version_that_another_is_tried_beside_stays_until_that_is_over() -> None:
    world = DeviceWorld(10, [(0, 1)], (ROOMY, ROOMY))
    world.start()
    (served,) = world.engine._rollouts.on_devices()
    served.trial.split = object()  # type: ignore[assignment]
    world.tell(0, slow=HOT)
    world.engine._cache.devices_told(world.states.values(), world.world.now)
    assert not world.engine._rollouts.moving
    served.trial.split = None
    world.looks(3_000)
    assert world.device_of("m0") == "cuda:1"
    world.settle()


def test_a_copy_that_finds_no_room_any_more_waits_and_is_not_loaded_beside_itself() -> None:
    world = DeviceWorld(11, [(0, 1)], (ROOMY, 0))
    world.start()
    (served,) = world.engine._rollouts.on_devices()
    world.tell(0, slow=HOT)
    world.looks(1_000)
    assert world.engine._rollouts.move(served, world.world.now), "as if there had been room just now"
    world.looks(5_000)
    assert [str(device) for _, device in world.workers.loaded_on] == ["cuda:0"]
    world.tell(1, budget_bytes=ROOMY)
    world.looks(5_000)
    assert [str(device) for _, device in world.workers.loaded_on] == ["cuda:0", "cuda:1"]
    assert world.device_of("m0") == "cuda:1"
    world.settle()


def test_what_is_out_of_memory_comes_back_to_a_device_that_is_not_slowed() -> None:
    world = DeviceWorld(9, [()] * 3, (25 * MB, 0), file_bytes=10 * MB)
    world.start()
    (out,) = [each for each in world.engine._rollouts.on_devices() if each.memory.residency is Residency.COLD]
    loads = len(world.workers.loaded_on)
    world.tell(0, slow=HOT)
    world.tell(1, slow=HOT, budget_bytes=15 * MB)
    world.looks(2_000)
    world.tell(1)
    world.looks(2_000)
    assert world.device_of(out.model.name) == "cuda:1"
    assert len(world.workers.loaded_on) == loads, "nothing is loaded before it is asked for"
    for name in world.names:
        world.client(name)
    world.looks(3_000)
    assert sum(world.answers.values()) == 3
    assert [str(device) for _, device in world.workers.loaded_on[loads:]] == ["cuda:1"]
    world.settle()
