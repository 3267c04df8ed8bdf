"""Joules and memory beside a trial: packages from files as the kernel has them, a *simulated* driver of a device."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from appliance.devices.nvml import Nvml
from appliance.devices.rapl import Rapl
from appliance.domain.device import Device, DeviceKind
from appliance.domain.device_reading import Reading
from appliance.domain.device_wish import ON_CPU, ON_CUDA, parse_wish
from appliance.tools.evaluation import meter
from appliance.tools.evaluation.meter import (
    DeviceMeter,
    NoMeter,
    ProcessorMeter,
    open_meter,
    row_joules,
)
from tests.devices.simulated_nvml import Board, SimulatedNvml


def package(root: Path, number: int, energy_uj: int) -> Path:
    zone = root / f"intel-rapl:{number}"
    zone.mkdir(exist_ok=True)
    for file, text in (("name", f"package-{number}"), ("max_energy_range_uj", "10000000")):
        (zone / file).write_text(f"{text}\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    return zone


def test_packages_are_added_up_and_may_begin_anew_between_two_looks(tmp_path: Path) -> None:
    package(tmp_path, 0, 1_000_000)
    package(tmp_path, 1, 9_000_000)
    found = ProcessorMeter(Rapl(tmp_path))
    assert (found.name, found.device, found.device_bytes()) == ("rapl", "", None)
    assert found.joules() == 0.0
    package(tmp_path, 0, 3_000_000)
    assert found.joules() == 2.0
    package(tmp_path, 1, 1_000_000)
    assert found.joules() == 4.0
    package(tmp_path, 1, 2_000_000)
    assert found.joules() == 5.0


def test_a_machine_without_counters_has_no_joules(tmp_path: Path) -> None:
    found = ProcessorMeter(Rapl(tmp_path))
    assert (found.name, found.joules()) == ("", None)
    zone = package(tmp_path, 0, 1)
    found = ProcessorMeter(Rapl(tmp_path))
    (zone / "energy_uj").unlink()
    assert found.joules() is None, "half of a sum is no sum"


def test_joules_of_a_row() -> None:
    assert row_joules(10.0, 16.0, 1.0, 12) == 0.5
    assert row_joules(None, 16.0, 1.0, 12) is None
    assert row_joules(10.0, None, 1.0, 12) is None
    assert row_joules(10.0, 16.0, meter.WINDOW_S_MIN / 2, 12) is None, "the counter is too coarse"
    assert row_joules(10.0, 10.0, 1.0, 12) is None, "a counter that stands still counts nothing"


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board()
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(board))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return board


def test_a_simulated_device_tells_of_its_energy_and_of_this_process(board: Board) -> None:
    found = open_meter(ON_CUDA)
    assert isinstance(found, DeviceMeter)
    assert (found.name, found.device) == ("nvml", "simulated")
    before = found.joules()
    board.energy_mj += 1_500
    after = found.joules()
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(1.5)
    board.processes = ((os.getpid(), 64 << 20), (1, 5))
    assert found.device_bytes() == 64 << 20


def test_the_device_that_is_named_is_the_one_that_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    boards = Board(), Board(uuid="GPU-2", name="the other", energy_mj=7_000)
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(*boards))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    found = open_meter(parse_wish("cuda:1"))
    assert (found.device, found.joules()) == ("the other", 7.0)
    assert open_meter(parse_wish("cuda:0")).device == open_meter(ON_CUDA).device == "simulated"
    assert isinstance(open_meter(parse_wish("cuda:2")), NoMeter)


def test_a_simulated_driver_without_such_metrics_has_none(board: Board) -> None:
    board.errors = dict.fromkeys(
        (
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetMemoryInfo_v2",
        ),
        int(pynvml.NVML_ERROR_NOT_SUPPORTED),
    )
    driver = Nvml()
    found = DeviceMeter(driver, driver.devices[0])
    assert (found.name, found.joules(), found.device_bytes()) == ("", None, None)


def test_where_processes_are_not_known_what_was_taken_since_counts() -> None:
    class Driver:
        """Of one device, as another container's process sees it."""

        devices = (Device(kind=DeviceKind.CUDA, index=0, uuid="u", name="d", driver="r"),)
        now = Reading(memory_used_bytes=1_000, processes={99: 5})

        def read(self, device: Device) -> Reading:
            assert device in self.devices
            return self.now

    driver = Driver()
    found = DeviceMeter(driver, driver.devices[0])
    driver.now = replace(driver.now, memory_used_bytes=1_750)
    assert found.device_bytes() == 750
    driver.now = replace(driver.now, memory_used_bytes=500)
    assert found.device_bytes() == 0


def test_without_a_driver_nothing_is_told_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Nvml:
        raise OSError("no driver")

    monkeypatch.setattr(meter, "Nvml", none)
    found = open_meter(ON_CUDA)
    assert isinstance(found, NoMeter)
    assert (found.name, found.device, found.joules(), found.device_bytes()) == ("", "", None, None)
    assert isinstance(open_meter(ON_CPU), ProcessorMeter)
