"""Where models of KIND_AUTO run is decided once, by what is there: under NVIDIA's own Python module on a simulated
driver. No GPU is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from appliance.config.repository import RepositoryConfig
from appliance.devices.watch import DeviceWatch, find_devices
from appliance.domain.device import DeviceKind, cuda
from appliance.runtimes import auto_device
from appliance.runtimes.auto_device import AutoDevice, Found, decide, settled
from tests.conftest import Serve
from tests.devices.simulated_nvml import Board, SimulatedNvml
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.faults.test_workers import version_in

AUTO = RepositoryConfig()
LACKING = "onnxruntime-gpu is not installed"
GOOD, FAULTY = {cuda(0): ""}, {cuda(0): "is lost"}
PROCESS = """
from appliance.runtimes import distributions
distributions.installed = lambda runtime: {"onnxruntime-gpu": "1.2.3"} if runtime == "onnx" else {}
"""
DRIVER = """
import pynvml
from tests.devices.simulated_nvml import Board, SimulatedNvml
pynvml.nvmlLib = SimulatedNvml(Board())
"""


@pytest.mark.parametrize(
    ("found", "kind", "reason"),
    [
        (Found(devices=GOOD), DeviceKind.CUDA, "cuda:0 can be used"),
        (Found(devices={**FAULTY, cuda(1): ""}), DeviceKind.CUDA, "cuda:1 can be used"),
        (Found(devices=GOOD, lacking=LACKING), DeviceKind.CPU, LACKING),
        (Found(devices=FAULTY), DeviceKind.CPU, "cuda:0 is lost"),
        (Found(devices={}, problem="NVML: no driver"), DeviceKind.CPU, "NVML: no driver"),
        (Found(devices={}), DeviceKind.CPU, "the driver tells of no GPU"),
    ],
)
def test_a_gpu_that_can_be_used_is_what_auto_means(found: Found, kind: DeviceKind, reason: str) -> None:
    assert decide(found) == AutoDevice(kind=kind, reason=reason)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Board:
    """A simulated driver with one GPU, and a runtime for it."""
    board = Board()
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(board))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(auto_device, "cuda_problem", str)
    return board


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_gpu_that_is_found_counts(driver: Board, seen_before: bool) -> None:
    told: list[AutoDevice] = []
    watch = find_devices() if seen_before else None
    assert settled(AUTO, watch, told.append) == replace(AUTO, auto_device="cuda")
    assert [each.reason for each in told] == ["cuda:0 can be used"]


def test_a_gpu_with_mig_on_and_no_instance_does_not(driver: Board) -> None:
    driver.mig = True
    assert settled(AUTO).auto_device == "cpu"


def test_a_gpu_with_a_fault_does_not(driver: Board) -> None:
    driver.ecc = 2
    told: list[AutoDevice] = []
    assert settled(AUTO, tell=told.append).auto_device == "cpu"
    assert "cuda:0 had 2 uncorrected memory errors" in told[0].reason


@pytest.mark.usefixtures("driver")
def test_a_gpu_without_a_runtime_for_it_does_not_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = find_devices()
    monkeypatch.setattr(auto_device, "cuda_problem", lambda: LACKING)
    told: list[AutoDevice] = []
    assert settled(AUTO, watch, told.append).auto_device == "cpu"
    assert told == [AutoDevice(kind=DeviceKind.CPU, reason=LACKING)]


def test_where_nothing_of_a_gpu_is_no_driver_is_asked_and_nothing_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto_device, "cuda_problem", lambda: LACKING)
    monkeypatch.setattr(auto_device, "find_devices", lambda: pytest.fail("asked"))
    told: list[AutoDevice] = []
    assert settled(AUTO, tell=told.append).auto_device == "cpu"
    assert settled(AUTO, DeviceWatch(None, "no driver"), told.append).auto_device == "cpu"
    assert not told


@pytest.mark.usefixtures("driver")
def test_what_is_set_by_hand_stays() -> None:
    for said in ("cpu", "cuda"):
        repository = RepositoryConfig(auto_device=said)
        assert settled(repository) is repository


@pytest.mark.parametrize(
    ("before", "device"), [(DRIVER + PROCESS, "cuda:0"), (DRIVER, "cpu"), (PROCESS, "cpu")]
)
def test_a_daemon_decides_it_when_it_starts(serve: Serve, tmp_path: Path, before: str, device: str) -> None:
    write_fake(tmp_path, "auto", extra="instance_group { kind: KIND_AUTO }")
    write_fake(tmp_path, "unsaid", extra="instance_group { count: 1 }")
    write_fake(tmp_path, "plain")
    daemon = serve(tmp_path, FAKE_SECTIONS, before=before)
    status = daemon.status()
    for name, expected in (("auto", device), ("unsaid", device), ("plain", "cpu")):
        assert version_in(status, name)["device"] == expected
    assert "models of KIND_AUTO run" in daemon.log()
