"""Where models of KIND_AUTO run is decided once, by what is there: under NVIDIA's own Python module on a simulated
driver. No GPU is here."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pynvml
import pytest

from appliance.config.repository import RepositoryConfig, SettledRepository
from appliance.devices.watch import DeviceWatch, find_devices
from appliance.domain.device import Device, DeviceKind
from appliance.domain.device_wish import ON_CUDA, DeviceWish
from appliance.runtimes import auto_device
from appliance.runtimes.auto_device import AutoDevice, Found, decide, settled
from appliance.runtimes.distributions import cuda_remedy
from appliance.tools.evaluation.jobs import MeasureJob, from_plain, to_plain
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.devices.simulated_nvml import Board, SimulatedNvml
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.faults.test_workers import version_in

AUTO = RepositoryConfig()
AUTO_RUNS = '"models of KIND_AUTO run"'
LACKING = "onnxruntime-gpu is not installed"
FIRST, SECOND = (
    Device(kind=DeviceKind.CUDA, index=index, uuid=f"GPU-{index}", name="L4", driver="1", capability=(8, 9))
    for index in range(2)
)
GOOD, FAULTY = {FIRST: ""}, {FIRST: "is lost"}
PROCESS = """
from appliance.runtimes import distributions
distributions.installed = lambda runtime: {"onnxruntime-gpu": "1.2.3"} if runtime == "onnx" else {}
"""
DRIVER = """
import pynvml
from tests.devices.simulated_nvml import Board, SimulatedNvml
pynvml.nvmlLib = SimulatedNvml(Board(uuid="GPU-5f"))
"""


@pytest.mark.parametrize(
    ("found", "kind", "reason", "usable"),
    [
        (Found(devices=GOOD), DeviceKind.CUDA, "cuda:0 can be used", (FIRST,)),
        (Found(devices={**FAULTY, SECOND: ""}), DeviceKind.CUDA, "cuda:1 can be used", (SECOND,)),
        (Found(devices=GOOD, lacking=LACKING), DeviceKind.CPU, LACKING, ()),
        (Found(devices=FAULTY), DeviceKind.CPU, "cuda:0 is lost", ()),
        (Found(devices={}, problem="NVML: no driver"), DeviceKind.CPU, "NVML: no driver", ()),
        (Found(devices={}), DeviceKind.CPU, "the driver tells of no GPU", ()),
    ],
)
def test_a_gpu_that_can_be_used_is_what_auto_means(
    found: Found, kind: DeviceKind, reason: str, usable: tuple[Device, ...]
) -> None:
    troubled = not usable and found != Found(devices={})
    assert decide(found) == AutoDevice(kind=kind, reason=reason, usable=usable, troubled=troubled)


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
    found = settled(AUTO, watch, told.append)
    assert (found.auto_device, [each.uuid for each in found.gpus]) == ("cuda", ["GPU-simulated"])
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
    found = settled(AUTO, watch, told.append)
    assert (found.auto_device, found.unused) == ("cpu", f"{LACKING}; {cuda_remedy()}")
    assert told == [AutoDevice(kind=DeviceKind.CPU, reason=LACKING, troubled=True)]


def test_a_gpu_that_is_used_by_nobody_is_told_of_if_it_is_sound(
    driver: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not settled(AUTO).unused
    assert not settled(RepositoryConfig(auto_device="cpu")).unused
    driver.ecc = 2
    monkeypatch.setattr(auto_device, "cuda_problem", lambda: LACKING)
    assert not settled(AUTO, find_devices()).unused


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
        repository = RepositoryConfig(auto_device=said, default_max_batch_size=7)
        assert settled(repository) == SettledRepository(auto_device=said, default_max_batch_size=7)


@pytest.mark.parametrize(
    ("wish", "kind"),
    [
        (ON_CUDA, "cuda"),
        (DeviceWish(DeviceKind.CUDA, capability=(9, 0)), "cuda"),
        (DeviceWish(DeviceKind.CUDA, capability=(9, 1)), "cpu"),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-s", "GPU-1")), "cuda"),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-1",)), "cpu"),
        (DeviceWish(DeviceKind.CUDA, (0, 7)), "cpu"),
        (DeviceWish(DeviceKind.CUDA, (0,), (9, 0), ("GPU-s",)), "cuda"),
        (DeviceWish(DeviceKind.CUDA, (7,)), "cpu"),
        (DeviceWish(DeviceKind.CUDA, (7,), (9, 0), ("GPU-s",)), "cpu"),
    ],
)
@pytest.mark.usefixtures("driver")
def test_it_is_a_gpu_for_what_asks_for_such_a_one(wish: DeviceWish, kind: str) -> None:
    assert settled(AUTO).auto_kind(wish).value == kind
    for by_hand in ("cuda", "cpu"):
        assert settled(RepositoryConfig(auto_device=by_hand)).auto_kind(wish).value == by_hand


def test_a_gpu_of_which_the_driver_does_not_tell_what_it_is_is_not_what_is_asked_for(driver: Board) -> None:
    driver.errors["nvmlDeviceGetCudaComputeCapability"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert settled(AUTO).auto_kind(ON_CUDA) is DeviceKind.CUDA
    assert settled(AUTO).auto_kind(DeviceWish(DeviceKind.CUDA, capability=(5, 0))) is DeviceKind.CPU


def test_with_several_it_is_one_that_can_be_used_and_is_clearly_named() -> None:
    both = SettledRepository(auto_device="cuda", gpus=(FIRST, SECOND), usable=(SECOND,))
    for wish, kind in (
        (ON_CUDA, "cuda"),
        (DeviceWish(DeviceKind.CUDA, (0, 1)), "cuda"),
        (DeviceWish(DeviceKind.CUDA, (0,)), "cpu"),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-0",)), "cpu"),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-1",)), "cuda"),
        (DeviceWish(DeviceKind.CUDA, uuids=("GPU-",)), "cpu"),
    ):
        assert both.auto_kind(wish).value == kind


def test_a_job_of_another_process_is_told_what_was_decided(driver: Board) -> None:
    driver.mig, driver.instances = True, {0: Board(uuid="MIG-1"), 3: Board(uuid="MIG-2")}
    job = MeasureJob(source="m", repository=settled(AUTO))
    assert len(job.repository.gpus) == len(job.repository.usable) == 2
    assert from_plain(MeasureJob, json.loads(json.dumps(to_plain(job)))) == job


@pytest.mark.parametrize(
    ("before", "device", "level", "why"),
    [
        (DRIVER + PROCESS, "cuda:0", "info", {"on": "cuda", "why": "cuda:0 can be used"}),
        (DRIVER, "cpu", "warning", {"on": "cpu", "reason": LACKING}),
        (
            DRIVER.replace('Board(uuid="GPU-5f")', "Board(mig=True)") + PROCESS,
            "cpu",
            "warning",
            {"on": "cpu"},
        ),
        (PROCESS, "cpu", "warning", {"on": "cpu", "reason": "NVML Shared Library Not Found"}),
    ],
)
def test_a_daemon_decides_it_when_it_starts(
    serve: Serve, tmp_path: Path, before: str, device: str, level: str, why: dict[str, str]
) -> None:
    write_fake(tmp_path, "auto", extra="instance_group { kind: KIND_AUTO }")
    write_fake(tmp_path, "unsaid", extra="instance_group { count: 1 }")
    write_fake(tmp_path, "plain")
    group = "instance_group { kind: KIND_AUTO }"
    write_fake(tmp_path, "such", extra=group, min_compute_capability="9.0", gpu_uuids="GPU-5")
    write_fake(tmp_path, "none_such", extra=group, min_compute_capability="9.1")
    daemon = serve(tmp_path, FAKE_SECTIONS, before=before)
    status = daemon.status()
    expected = {"auto": device, "unsaid": device, "plain": "cpu", "such": device, "none_such": "cpu"}
    for name, kind in expected.items():
        assert (version_in(status, name)["device"], version_in(status, name)["state"]) == (kind, "READY")
    notes = version_in(status, "none_such")["notes"]
    noted = "KIND_AUTO is the processor here: no GPU that can be used is what the model asks for"
    assert any(noted in note for note in notes) is (device != "cpu")
    said = line_about_auto(daemon)
    assert {key: said.get(key) for key in ("level", *why)} == {"level": level, **why}
    told = [each for each in status["notices"] if "KIND_AUTO" in each]
    assert bool(told) is (before == DRIVER)
    assert all("as onnxruntime-gpu is not installed; install onnxruntime-gpu in its" in each for each in told)


def test_a_daemon_says_where_such_models_run_when_there_is_the_first(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "plain")
    write_fake(tmp_path, "named", extra="instance_group { kind: KIND_CPU }")
    daemon = serve(tmp_path, FAKE_SECTIONS, before=DRIVER)
    daemon.wait_log('"serving"')
    assert AUTO_RUNS not in daemon.log()
    for name in ("auto", "one_more"):
        write_fake(tmp_path, name, extra="instance_group { kind: KIND_AUTO }")
        daemon.signal(signal.SIGHUP)
        daemon.until(f"{name} served", lambda status, name=name: f"'{name}'" in str(status["models"]))
        assert line_about_auto(daemon)["level"] == "warning"


def line_about_auto(daemon: ApplianceProcess) -> dict[str, str]:
    """The only one."""
    daemon.wait_log(AUTO_RUNS)
    (line,) = [line for line in daemon.log().splitlines() if AUTO_RUNS in line]
    said: dict[str, str] = json.loads(line)
    return said
