"""Which device a version gets, as a table."""

from __future__ import annotations

import pytest

from appliance.core.memory.budget import AbsentDevice, WaitsForDevice
from appliance.core.memory.homes import CONTEXT_BYTES, GIB, Home, choose, gpu_budget
from appliance.domain.device import CPU, Device, DeviceKind, DeviceName, cuda
from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish

SECOND_OR_THIRD = DeviceWish(DeviceKind.CUDA, (1, 2))


ASKS_89 = DeviceWish(DeviceKind.CUDA, capability=(8, 9))
ASKS_MIG = DeviceWish(DeviceKind.CUDA, uuids=("MIG-1", "GPU-0"))


def gpu(index: int, capability: tuple[int, int] | None = None, uuid: str = "") -> Device:
    named = uuid or str(cuda(index))
    return Device(kind=DeviceKind.CUDA, index=index, uuid=named, name="L4", driver="1", capability=capability)


def home(index: int, free: int, budget: int = 100, fault: str = "", slow: str = "") -> Home:
    return Home(gpu(index), budget, free, fault, slow)


@pytest.mark.parametrize(
    ("wish", "homes", "chosen"),
    [
        (ON_CPU, [], CPU),
        (ON_CPU, [home(0, 50)], CPU),
        (ON_CUDA, [home(0, 50)], cuda(0)),
        (ON_CUDA, [home(0, 50), home(1, 60)], cuda(1)),
        (ON_CUDA, [home(0, 50), home(1, 50)], cuda(0)),
        (ON_CUDA, [home(0, -50), home(1, -40)], cuda(1)),
        (ON_CUDA, [home(0, 50), home(1, 60, fault="is lost")], cuda(0)),
        (ON_CUDA, [home(0, 5, budget=100), home(1, 9, budget=9)], cuda(0)),
        (ON_CUDA, [home(0, 5, budget=5), home(1, 9, budget=9)], cuda(1)),
        (SECOND_OR_THIRD, [home(0, 90), home(1, 10), home(2, 20)], cuda(2)),
        (SECOND_OR_THIRD, [home(0, 90), home(1, 10), home(2, 20, fault="is lost")], cuda(1)),
        (ON_CUDA, [home(0, 50), home(1, 60, slow="is slowed")], cuda(0)),
        (ON_CUDA, [home(0, 9), home(1, 60, slow="is slowed")], cuda(1)),
        (ON_CUDA, [home(0, 50, slow="is slowed"), home(1, 60, slow="is slowed")], cuda(1)),
        (ON_CUDA, [home(0, 9, slow="is slowed"), home(1, 60, fault="is lost")], cuda(0)),
        (DeviceWish(DeviceKind.CUDA, (1,)), [home(0, 90), home(1, 10, slow="is slowed")], cuda(1)),
        (ON_CUDA, [], cuda(0)),
        (SECOND_OR_THIRD, [], cuda(1)),
    ],
    ids=[
        "the processor, where nothing else is",
        "the processor, whatever else is",
        "the only one",
        "the emptier one",
        "the first of equals",
        "the one that is less beyond its budget",
        "one without a fault",
        "one in which it fits at all",
        "the emptiest, where it fits in none",
        "one of those that it names",
        "one of those that it names, without a fault",
        "one that is not slowed and has room",
        "a slowed one, where no other has room",
        "the emptier one, where all are slowed",
        "a slowed one before one with a fault",
        "a slowed one, where it may run on no other",
        "the first, where nothing is known of any",
        "the first that it names, where nothing is known of any",
    ],
)
def test_a_version_gets(wish: DeviceWish, homes: list[Home], chosen: DeviceName) -> None:
    assert choose(wish, 10, homes) == chosen


def test_devices_that_are_not_there_are_told_with_those_that_are() -> None:
    found = choose(SECOND_OR_THIRD, 10, [home(0, 50), home(1, 50)])
    assert found == AbsentDevice(wish=SECOND_OR_THIRD, there=(gpu(0), gpu(1)))


OLD, NEW, PART = gpu(0, (7, 5), "GPU-0a"), gpu(1, (8, 9), "GPU-0b"), gpu(2, (9, 0), "MIG-1")


@pytest.mark.parametrize(
    ("wish", "there", "chosen"),
    [
        (ASKS_89, [OLD, NEW], cuda(1)),
        (ASKS_89, [OLD, PART, gpu(1)], cuda(2)),
        (ASKS_MIG, [gpu(0), gpu(1), PART], cuda(2)),
        (ASKS_MIG, [OLD, gpu(1), PART], cuda(0)),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-0b", "GPU-77")), [OLD, NEW], cuda(1)),
        (DeviceWish(DeviceKind.CUDA, (0, 1), (8, 9), ("GPU-0a", "GPU-0b")), [OLD, NEW], cuda(1)),
        (DeviceWish(DeviceKind.CUDA, (0,), (8, 9)), [OLD, NEW], None),
        (DeviceWish(DeviceKind.CUDA, (1, 2), (8, 9)), [OLD, NEW], None),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-0",)), [OLD, NEW], None),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-0", "MIG-1")), [OLD, NEW, PART], None),
        (ASKS_89, [OLD, gpu(1)], None),
        (ASKS_89, [], None),
        (ASKS_MIG, [], None),
        (DeviceWish(DeviceKind.CUDA, (1,), (8, 9)), [], None),
    ],
    ids=[
        "one of the capability",
        "one of a higher one, not one of which nobody knows",
        "an instance by its UUID",
        "the emptier one of those that it names",
        "one of the UUIDs, of which another box may have the other",
        "what is all that it asks for",
        "none, where no one is all",
        "none, where one that it names is not there",
        "none, where several begin so",
        "none, although another one that it names is clear",
        "none, where it is not known of the only one that could be",
        "none, where nothing is known of any",
        "none, where nobody tells UUIDs",
        "none, though it names a number",
    ],
)
def test_who_asks_for_more_than_a_number_gets(
    wish: DeviceWish, there: list[Device], chosen: DeviceName | None
) -> None:
    expected = AbsentDevice(wish=wish, there=tuple(there)) if chosen is None else chosen
    assert choose(wish, 10, [Home(device, 100, 50 - device.index) for device in there]) == expected


def test_of_a_device_that_was_lost_before_it_told_what_it_is_it_may_be_what_is_asked_for() -> None:
    lost = Home(gpu(1), 100, 50, "is lost")
    waits = WaitsForDevice(faults=((cuda(1), "is lost"),))
    assert choose(ASKS_89, 10, [Home(OLD, 100, 50), lost]) == waits
    assert choose(ASKS_MIG, 10, [lost]) == waits
    by_number = DeviceWish(DeviceKind.CUDA, (0,), (8, 9))
    assert choose(by_number, 10, [Home(OLD, 100, 50), lost]) == AbsentDevice(
        wish=by_number, there=(OLD, gpu(1))
    )
    assert choose(ASKS_89, 10, [lost, Home(PART, 100, 50)]) == cuda(2)


def test_where_all_have_faults_each_is_told() -> None:
    homes = [home(0, 50), home(1, 50, fault="is lost"), home(2, 50, fault="had errors")]
    assert choose(SECOND_OR_THIRD, 10, homes) == WaitsForDevice(
        faults=((cuda(1), "is lost"), (cuda(2), "had errors"))
    )


def test_versions_may_take_what_others_and_the_context_leave() -> None:
    assert gpu_budget(80 * GIB, 0) == 80 * GIB - CONTEXT_BYTES
    assert gpu_budget(80 * GIB, 30 * GIB) == 50 * GIB - CONTEXT_BYTES
    assert gpu_budget(80 * GIB, 80 * GIB) == 0
