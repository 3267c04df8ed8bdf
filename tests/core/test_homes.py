"""Which device a version gets, as a table."""

from __future__ import annotations

import pytest

from appliance.core.memory.budget import AbsentDevice, WaitsForDevice
from appliance.core.memory.homes import CONTEXT_BYTES, GIB, Home, choose, gpu_budget
from appliance.domain.device import CPU, ON_CPU, ON_CUDA, DeviceKind, DeviceName, DeviceWish, cuda

SECOND_OR_THIRD = DeviceWish(DeviceKind.CUDA, (1, 2))


def home(index: int, free: int, budget: int = 100, fault: str = "", slow: str = "") -> Home:
    return Home(cuda(index), budget, free, fault, slow)


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
    assert found == AbsentDevice(asked=(2,), there=(cuda(0), cuda(1)))


def test_where_all_have_faults_each_is_told() -> None:
    homes = [home(0, 50), home(1, 50, fault="is lost"), home(2, 50, fault="had errors")]
    assert choose(SECOND_OR_THIRD, 10, homes) == WaitsForDevice(
        faults=((cuda(1), "is lost"), (cuda(2), "had errors"))
    )


def test_versions_may_take_what_others_and_the_context_leave() -> None:
    assert gpu_budget(80 * GIB, 0) == 80 * GIB - CONTEXT_BYTES
    assert gpu_budget(80 * GIB, 30 * GIB) == 50 * GIB - CONTEXT_BYTES
    assert gpu_budget(80 * GIB, 80 * GIB) == 0
