"""What is said of a version for which there is no device: what it asks for, and what there is, so far as is known."""

from __future__ import annotations

import pytest

from appliance.domain.device import Device, DeviceKind
from appliance.domain.device_wish import DeviceWish, absence


def gpu(index: int, capability: tuple[int, int] | None = (7, 5)) -> Device:
    return Device(
        kind=DeviceKind.CUDA, index=index, uuid=f"GPU-{index}", name="T4", driver="1", capability=capability
    )


ASKS_89 = DeviceWish(DeviceKind.CUDA, capability=(8, 9))
BOX = (gpu(0), gpu(1, None))
THERE = "cuda:0 (compute capability 7.5), cuda:1 (compute capability unknown)"
ADVICE = "ask for one of those, or for any"


@pytest.mark.parametrize(
    ("wish", "asked"),
    [
        (DeviceWish(DeviceKind.CUDA, (1, 3, 5)), "cuda:3, cuda:5 (instance_group.gpus)"),
        (ASKS_89, "compute capability 8.9 or more (min_compute_capability)"),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-7", "MIG-8")), "UUID GPU-7, MIG-8 (gpu_uuids)"),
        (
            DeviceWish(DeviceKind.CUDA, (0, 1), (12, 1)),
            "cuda:0, cuda:1 (instance_group.gpus), compute capability 12.1 or more (min_compute_capability)",
        ),
    ],
)
def test_what_is_asked_for_is_said_with_what_there_is(wish: DeviceWish, asked: str) -> None:
    found = absence(wish, BOX)
    assert found == f"asks for {asked}, and the driver tells of {THERE}; {ADVICE}"


def test_where_several_begin_so_it_says_which_beginning() -> None:
    wish = DeviceWish(DeviceKind.CUDA, uuids=("GPU-0", "GPU-1"))
    there = (gpu(0), gpu(1), gpu(10), gpu(11))
    assert absence(wish, there).endswith("; several begin with GPU-1: give more of it")


def test_of_many_the_first_are_told() -> None:
    wish = DeviceWish(DeviceKind.CUDA, uuids=tuple(f"MIG-{index}" for index in range(64)))
    found = absence(wish, tuple(map(gpu, range(56))))
    assert "MIG-7, and 56 more (gpu_uuids)" in found
    assert "cuda:7 (compute capability 7.5), and 48 more; " in found
    assert len(found) < 1_000


def test_where_nobody_tells_of_any_it_says_so() -> None:
    found = absence(ASKS_89, ())
    assert found == (
        "asks for compute capability 8.9 or more (min_compute_capability), and NVML tells of no GPU here; 'notices' of "
        "'appliance status' say why"
    )
