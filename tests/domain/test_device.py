"""The words for devices: printed, parsed, asked for."""

from __future__ import annotations

import pytest

from appliance.domain.device import CPU, Device, DeviceKind, DeviceName, cuda, parse_device
from appliance.domain.device_wish import (
    ON_CPU,
    ON_CUDA,
    UUIDS_MAX,
    DeviceWish,
    gpu_wish,
    parse_wish,
    wish_problem,
)


@pytest.mark.parametrize(("device", "text"), [(CPU, "cpu"), (cuda(0), "cuda:0"), (cuda(17), "cuda:17")])
def test_a_name_is_read_as_it_is_printed(device: DeviceName, text: str) -> None:
    assert str(device) == text
    assert parse_device(text) == device


def test_the_kind_alone_is_the_first_one() -> None:
    assert parse_device("cuda") == cuda(0)


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:²", "cpu:0", "cuda:99999999999", "CPU"]
)
def test_what_names_no_device_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no device; expected one of cpu, cuda"):
        parse_device(text)
    with pytest.raises(ValueError, match="is no device; expected one of cpu, cuda"):
        parse_wish(text)


@pytest.mark.parametrize(
    ("text", "wish"),
    [("cpu", ON_CPU), ("cuda", ON_CUDA), ("cuda:0", DeviceWish(DeviceKind.CUDA, (0,)))],
)
def test_a_wish_of_one_word_is_read_as_it_is_printed(text: str, wish: DeviceWish) -> None:
    assert parse_wish(text) == wish
    assert str(wish) == text


def test_there_is_one_processor() -> None:
    with pytest.raises(AssertionError):
        DeviceName(DeviceKind.CPU, 1)


@pytest.mark.parametrize(
    ("wish", "allowed", "first", "text"),
    [
        (ON_CPU, {CPU}, CPU, "cpu"),
        (ON_CUDA, {cuda(0), cuda(1), cuda(2)}, cuda(0), "cuda"),
        (DeviceWish(DeviceKind.CUDA, (1, 2)), {cuda(1), cuda(2)}, cuda(1), "cuda:1,2"),
    ],
)
def test_a_wish_allows_those_of_its_kind_that_it_names(
    wish: DeviceWish, allowed: set[DeviceName], first: DeviceName, text: str
) -> None:
    devices = [
        Device(kind=each.kind, index=each.index, uuid="", name="", driver="")
        for each in (CPU, cuda(0), cuda(1), cuda(2))
    ]
    assert {each.called for each in devices if wish.allows(each)} == allowed
    assert (wish.first, str(wish)) == (first, text)


WHOLE = "GPU-1a2b3c4d-0000-1111-2222-333344445555"


@pytest.mark.parametrize(
    ("said", "capability"), [("8.9", (8, 9)), ("9.0", (9, 0)), ("12.1", (12, 1)), ("99.9", (99, 9))]
)
def test_a_capability_is_asked_for_as_nvidia_writes_it(said: str, capability: tuple[int, int]) -> None:
    assert not wish_problem("min_compute_capability", said)
    assert gpu_wish({"min_compute_capability": said}) == DeviceWish(DeviceKind.CUDA, capability=capability)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "89",
        "20",
        "9.",
        ".9",
        "0.1",
        "08.9",
        "8.90",
        "100.0",
        "8,9",
        "sm_89",
        " 8.9",
        "8.9\n",
        "8.\u0669",
        "-8.9",
    ],
)
def test_what_is_no_capability_is_a_problem(said: str) -> None:
    found = wish_problem("min_compute_capability", said)
    assert found == f"min_compute_capability must be a compute capability such as 8.9, not '{said}'"


@pytest.mark.parametrize(
    ("said", "uuids"),
    [
        (WHOLE, (WHOLE,)),
        ("GPU-1", ("GPU-1",)),
        ("MIG-0f-1,GPU-2,MIG-0f-1", ("MIG-0f-1", "GPU-2")),
        (" GPU-5c3f , MIG-0f81 ", ("GPU-5c3f", "MIG-0f81")),
        (
            ",".join(f"GPU-{index:x}" for index in range(UUIDS_MAX)),
            tuple(f"GPU-{n:x}" for n in range(UUIDS_MAX)),
        ),
    ],
    ids=["whole", "its beginning", "several, one twice", "with spaces", "as many as there may be"],
)
def test_devices_are_asked_for_by_uuid(said: str, uuids: tuple[str, ...]) -> None:
    assert not wish_problem("gpu_uuids", said)
    assert gpu_wish({"gpu_uuids": said}) == DeviceWish(DeviceKind.CUDA, uuids=uuids)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("", ""),
        ("GPU-", "GPU-"),
        ("GPU", "GPU"),
        ("gpu-1", "gpu-1"),
        ("0", "0"),
        ("1a2b3c4d", "1a2b3c4d"),
        ("GPU-1A", "GPU-1A"),
        ("GPU-1 GPU-2", "GPU-1 GPU-2"),
        ("GPU-1,\tGPU-2", "\tGPU-2"),
        ("GPU-1,", ""),
        ("GPU-1\n", "GPU-1\n"),
        (f"{WHOLE}0", f"{WHOLE}0"[:40]),
        ("GPU-" + "1" * 60_000, "GPU-" + "1" * 36),
        (",".join(["GPU-1"] * (UUIDS_MAX + 1)), "GPU-1,GPU-1"),
        ("," * 60_000, ""),
    ],
)
def test_what_names_no_uuid_is_a_problem(said: str, wrong: str) -> None:
    found = wish_problem("gpu_uuids", said)
    assert found.startswith("gpu_uuids must be UUIDs of GPUs (GPU-...) or of instances (MIG-...)")
    assert found.endswith(f", not '{wrong}'")


def test_numbers_of_gpus_have_a_place_of_their_own() -> None:
    hint = "(numbers are for gpus: [ 0 ] in instance_group)"
    assert hint in wish_problem("gpu_uuids", "0,1")
    assert hint not in wish_problem("gpu_uuids", "GPU-1,nonsense")


def test_who_says_nothing_of_a_gpu_asks_for_any() -> None:
    assert gpu_wish({"own_worker": "true"}) == ON_CUDA
    assert gpu_wish({"gpu_uuids": "GPU-1,nonsense", "min_compute_capability": "much"}) == ON_CUDA
