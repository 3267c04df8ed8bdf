"""What NVML tells of devices: one suite for the real driver, where there is one, and a simulated one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pynvml
import pytest

from appliance.devices.nvml import Nvml
from appliance.domain.device_reading import Reading, troubles
from tests.devices.absent import absent
from tests.devices.simulated_nvml import Board, SimulatedNvml


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    """A simulated driver's."""
    board = Board()
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(board))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return board


@pytest.fixture(params=["simulated", "real"])
def nvml(request: pytest.FixtureRequest) -> Iterator[Nvml]:
    """Either of them."""
    if request.param == "simulated":
        request.getfixturevalue("board")
    try:
        nvml = Nvml()
    except OSError as problem:
        absent(f"no GPU: {problem}")
    yield nvml
    nvml.close()


def test_each_device_says_what_it_is(nvml: Nvml) -> None:
    assert nvml.devices
    assert [each.index for each in nvml.devices] == list(range(len(nvml.devices)))
    assert len({each.uuid for each in nvml.devices}) == len(nvml.devices)
    for device in nvml.devices:
        assert device.uuid.startswith(("GPU-", "MIG-"))
        assert device.name
        assert device.memory_bytes is None or device.memory_bytes > 1 << 30


def test_a_reading_is_within_what_can_be(nvml: Nvml) -> None:
    for device in nvml.devices:
        reading = nvml.read(device)
        assert not reading.lost
        assert any(getattr(reading, each.name) is not None for each in fields(reading) if each.name != "lost")
        assert reading.power_w is None or 1 < reading.power_w < 2_000
        assert reading.temperature_c is None or 0 < reading.temperature_c < 120
        assert reading.utilization is None or 0 <= reading.utilization <= 1
        if reading.memory_used_bytes is not None and device.memory_bytes is not None:
            assert reading.memory_used_bytes + (reading.memory_free_bytes or 0) <= device.memory_bytes


def test_the_counter_of_energy_never_goes_back(nvml: Nvml) -> None:
    for device in nvml.devices:
        seen = [each for _ in range(50) if (each := nvml.read(device).energy_j) is not None]
        assert seen == sorted(seen)


def test_it_can_be_opened_again(nvml: Nvml) -> None:
    again = Nvml()
    assert again.devices == nvml.devices
    again.close()
    assert not nvml.read(nvml.devices[0]).lost


OF = {
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j",
    "nvmlDeviceGetTemperatureV": "temperature_c",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttle",
    "nvmlDeviceGetTotalEccErrors": "ecc_uncorrected",
    "nvmlDeviceGetRemappedRows": "remapped_rows",
    "nvmlDeviceGetMemoryInfo_v2": "memory_used_bytes",
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetUtilizationRates": "utilization",
}


BEFORE = {
    "nvmlDeviceGetTemperatureV": "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
}
"""What older drivers know a question by."""


@pytest.mark.parametrize("function", BEFORE)
def test_an_older_driver_is_asked_by_the_name_that_it_knows(board: Board, function: str) -> None:
    board.errors[function] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    nvml = Nvml()
    reading = nvml.read(nvml.devices[0])
    assert (reading.temperature_c, reading.throttle) == (38, ("software power cap",))


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
@pytest.mark.parametrize("function", OF)
def test_what_a_driver_lacks_is_absent_and_all_else_is_there(board: Board, function: str, error: int) -> None:
    board.errors[function] = board.errors[BEFORE.get(function, function)] = error
    nvml = Nvml()
    reading, whole = nvml.read(nvml.devices[0]), Reading()
    assert getattr(reading, OF[function]) is None
    assert all(getattr(reading, each) is not None for each in OF.values() if each != OF[function])
    assert whole.power_w is None


def test_a_reading_is_what_the_driver_told(board: Board) -> None:
    board.xids += [31, 79]
    nvml = Nvml()
    reading = nvml.read(nvml.devices[0])
    assert (reading.power_w, reading.energy_j, reading.throttle) == (80.628, 2524.93, ("software power cap",))
    assert reading.processes == {4711: 512 << 20}
    assert reading.xids == (31, 79)
    assert nvml.read(nvml.devices[0]).xids == ()
    assert list(troubles(reading)) == [
        "reported Xid 79; reset it, and replace it when that comes back",
    ]


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_a_lost_device_says_so_and_its_figures_are_absent(board: Board, error: int) -> None:
    nvml = Nvml()
    board.errors["nvmlDeviceGetPowerUsage"] = error
    pynvml._nvmlGetFunctionPointer_cache.clear()
    reading = nvml.read(nvml.devices[0])
    assert reading == Reading(lost=True)
    assert len(list(troubles(reading))) == 1


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_device_that_is_lost_at_the_start_is_in_the_list_and_says_so(board: Board, function: str) -> None:
    board.errors[function] = pynvml.NVML_ERROR_GPU_IS_LOST
    nvml = Nvml()
    (device,) = nvml.devices
    assert (device.index, device.uuid) == (0, "cuda:0")
    assert nvml.read(device) == Reading(lost=True)
    nvml.close()


@pytest.mark.parametrize(
    ("reading", "word"),
    [
        (Reading(ecc_uncorrected=3), "3 uncorrected"),
        (Reading(remap_failed=True), "replace it"),
        (Reading(remap_pending=True), "next reset"),
        (Reading(throttle=("power brake",)), "power brake"),
    ],
)
def test_troubles_are_named(reading: Reading, word: str) -> None:
    (trouble,) = troubles(reading)
    assert word in trouble


def test_everyday_states_are_no_trouble() -> None:
    assert not list(troubles(Reading(ecc_uncorrected=0, throttle=("software power cap",), xids=(13, 31))))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "NVML: Driver Not Loaded"),
    ],
)
def test_why_it_cannot_be_had_names_it_once(monkeypatch: pytest.MonkeyPatch, error: int, said: str) -> None:
    def init() -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    with pytest.raises(OSError, match=rf"^{said}$"):
        Nvml()
