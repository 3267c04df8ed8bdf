"""Which GPU a job of evaluation gets, as a *simulated* driver under NVIDIA's own module tells of them."""

from __future__ import annotations

import os
from dataclasses import replace

import pynvml
import pytest

from appliance.domain.device import CPU, DeviceKind, DeviceName, cuda
from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish, parse_wish
from appliance.domain.errors import ArtefactError
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.tools.evaluation.gpu import VISIBLE, take_device
from appliance.tools.evaluation.runner import Runner
from tests.devices.simulated_nvml import Board, SimulatedNvml
from tests.runtimes.fake import FakeRuntime
from tests.workers.bench import spec, version_of

HIDDEN = "7"
"""What CUDA is shown before."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, HIDDEN)


def driver_of(monkeypatch: pytest.MonkeyPatch, *boards: Board) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(*boards))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


def test_the_one_that_is_named_is_the_only_one_that_cuda_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_of(monkeypatch, Board(uuid="GPU-a"), Board(uuid="GPU-b"), Board(uuid="GPU-c"))
    assert take_device(parse_wish("cuda:1")) == cuda(0)
    assert os.environ[VISIBLE] == "GPU-b"
    assert take_device(DeviceWish(DeviceKind.CUDA, (2, 7))) == cuda(0), "those of a configuration"
    assert os.environ[VISIBLE] == "GPU-c"


def test_what_a_model_asks_for_besides_a_number_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_of(monkeypatch, Board(uuid="GPU-a", capability=(7, 5)), Board(uuid="GPU-b", capability=(8, 9)))
    assert take_device(DeviceWish(DeviceKind.CUDA, capability=(8, 0))) == cuda(0)
    assert os.environ[VISIBLE] == "GPU-b"
    assert take_device(DeviceWish(DeviceKind.CUDA, uuids=("GPU-a",))) == cuda(0)
    assert os.environ[VISIBLE] == "GPU-a"
    with pytest.raises(ArtefactError, match=r"asks for cuda:0, cuda:1 .* 9\.0 or more .* cuda:1 \(compute"):
        take_device(DeviceWish(DeviceKind.CUDA, (0, 1), (9, 0)))
    driver_of(monkeypatch, Board(errors={"*": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}))
    with pytest.raises(ArtefactError, match=r"asks for UUID GPU-a .*, and NVML tells of no GPU here"):
        take_device(DeviceWish(DeviceKind.CUDA, uuids=("GPU-a",)))


def test_instances_are_counted_in_the_place_of_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = {0: Board(uuid="MIG-a"), 2: Board(uuid="MIG-b")}
    driver_of(monkeypatch, Board(uuid="GPU-a", mig=True, instances=instances), Board(uuid="GPU-b"))
    for number, uuid in enumerate(("MIG-a", "MIG-b", "GPU-b")):
        assert take_device(parse_wish(f"cuda:{number}")) == cuda(0)
        assert os.environ[VISIBLE] == uuid


def test_one_that_is_not_there_is_told_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_of(monkeypatch, Board(uuid="GPU-a"), Board(uuid="GPU-b"))
    with pytest.raises(
        ArtefactError, match="there is no device 'cuda:2' here; the driver tells of cuda:0, cuda:1"
    ):
        take_device(parse_wish("cuda:2"))
    assert os.environ[VISIBLE] == HIDDEN


def test_where_none_is_named_or_nobody_tells_cuda_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_of(monkeypatch, Board(uuid="GPU-a"), Board(uuid="GPU-b"))
    assert take_device(ON_CUDA) == cuda(0)
    assert take_device(ON_CPU) == CPU
    driver_of(monkeypatch, Board(errors={"*": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}))
    assert take_device(parse_wish("cuda:3")) == cuda(3)
    assert os.environ[VISIBLE] == HIDDEN


def test_the_runtime_is_told_what_cuda_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_of(monkeypatch, Board(uuid="GPU-a"), Board(uuid="GPU-b"))
    told: list[tuple[DeviceName, str]] = []

    class Told(FakeRuntime):
        def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
            told.append((settings.device, os.environ[VISIBLE]))
            return super().load(version, settings)

    port = spec("x", Datatype.FP32, 3)
    version = version_of("m", [port], [port])
    for device in ("cpu", "cuda", "cuda:1"):
        Runner(Told(), replace(version, device=parse_wish(device))).close()
    assert told == [(CPU, HIDDEN), (cuda(0), HIDDEN), (cuda(0), "GPU-b")]
