"""The whole way on a real GPU: a daemon that serves the digits on CUDA, swaps them, loses a worker, and leaks nothing.

Skipped where there is none; `make test-gpu` runs it and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from appliance.devices.nvml import Nvml
from tests.appliance_process import ApplianceProcess
from tests.devices.absent import absent

MODELS = Path(__file__).parents[2] / "models"
SWAPS = 20
SLACK_BYTES = 64 << 20
"""What the driver itself may take and give back meanwhile; a leaked session takes less, but there are SWAPS of them."""


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    """The real driver."""
    try:
        nvml = Nvml()
    except OSError as problem:
        absent(f"no GPU: {problem}")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        absent("the installed onnxruntime has no CUDA; put onnxruntime-gpu in its place")
    yield nvml
    nvml.close()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy with version 1 alone."""
    folder = tmp_path / "models"
    shutil.copytree(MODELS / "digits", folder / "digits")
    shutil.rmtree(folder / "digits" / "2")
    config = folder / "digits" / "config.pbtxt"
    text = config.read_text().replace("all { }", "latest { num_versions: 1 }")
    config.write_text(f"{text}\ninstance_group [ {{ kind: KIND_GPU }} ]\n")
    return folder


@pytest.fixture
def two(nvml: Nvml, models: Path) -> Path:
    """The digits twice, each on a GPU of its own."""
    if len(nvml.devices) < 2:
        pytest.skip("there is one GPU")
    config = models / "digits" / "config.pbtxt"
    text = config.read_text()
    shutil.copytree(models / "digits", models / "others")
    for name, index in (("digits", 0), ("others", 1)):
        named = text.replace('name: "digits"', f'name: "{name}"')
        placed = named.replace("KIND_GPU }", f"KIND_GPU gpus: [ {index} ] }}")
        (models / name / "config.pbtxt").write_text(placed)
    return models


def daemon(models: Path) -> ApplianceProcess:
    """One that serves them."""
    return ApplianceProcess(models)


def ready(server: ApplianceProcess) -> None:
    """Wait until version 1 is; fails with the log, which says why it is not."""
    server.wait_ready()
    assert served(server.status()) == [1], server.log()


def infer(server: ApplianceProcess, picture: Any, model: str = "digits") -> Any:
    """Probabilities of one request."""
    body = {
        "inputs": [
            {
                "name": "image",
                "shape": list(picture.shape),
                "datatype": "FP32",
                "data": picture.ravel().tolist(),
            }
        ]
    }
    url = f"http://{server.http}/v2/models/{model}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as reply:
        return np.array(json.loads(reply.read())["outputs"][0]["data"], "f4").reshape(-1, 10)


def reference(picture: Any, version: int) -> Any:
    """What the processor answers."""
    path = str(MODELS / "digits" / str(version) / "model.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": picture})[0]


def served(document: Any) -> list[int]:
    """Versions that are ready."""
    return [each["version"] for each in document["models"] if each["state"] == "READY"]


def test_the_digits_on_cuda_answer_as_on_the_processor(nvml: Nvml, models: Path) -> None:
    pictures = np.random.default_rng(7).random((8, 8, 8), np.float32) * 16
    before = nvml.read(nvml.devices[0]).memory_used_bytes
    with daemon(models) as server:
        ready(server)
        assert np.abs(infer(server, pictures) - reference(pictures, 1)).max() < 1e-4
        status = server.status()
        assert [each["device"] for each in status["models"]] == ["cuda:0"]
        assert [each["uuid"] for each in status["devices"]] == [each.uuid for each in nvml.devices]
        assert nvml.devices[0].uuid in server.get("/metrics").decode()
        now = nvml.read(nvml.devices[0]).memory_used_bytes
        assert before is None or now is None or now > before + (100 << 20), "the model is on the device"


def test_a_worker_that_is_killed_comes_back_on_the_device(nvml: Nvml, models: Path) -> None:
    picture = np.ones((1, 8, 8), np.float32)
    with daemon(models) as server:
        ready(server)
        first = infer(server, picture)
        (pid,) = [each["pid"] for each in server.status()["workers"]]
        os.kill(pid, signal.SIGKILL)
        server.until(
            "another worker",
            lambda told: (
                served(told) == [1] and [each["pid"] for each in told["workers"]] not in ([pid], [0])
            ),
        )
        assert (infer(server, picture) == first).all()


def test_a_worker_of_one_gpu_that_is_killed_costs_nothing_on_the_other(nvml: Nvml, two: Path) -> None:
    picture = np.ones((1, 8, 8), np.float32)
    with daemon(two) as server:
        server.wait_ready()
        status = server.status()
        assert {each["name"]: each["device"] for each in status["models"]} == {
            "digits": "cuda:0",
            "others": "cuda:1",
        }
        first = infer(server, picture)
        (worker,) = next(each["workers"] for each in status["models"] if each["name"] == "digits")
        (pid,) = [each["pid"] for each in status["workers"] if each["worker"] == worker]
        os.kill(pid, signal.SIGKILL)
        while served(told := server.status()) != [1, 1] or not {0, pid}.isdisjoint(
            each["pid"] for each in told["workers"]
        ):
            assert (infer(server, picture, "others") == first).all()
        assert (infer(server, picture) == first).all()


def test_a_worker_of_the_second_gpu_takes_nothing_of_the_first(nvml: Nvml, two: Path) -> None:
    """Also after a session was closed, in whatever thread: a context is half a gigabyte of what is not its own."""
    shutil.rmtree(two / "digits")
    with daemon(two) as server:
        server.wait_ready()
        shutil.copytree(two / "others" / "1", two.parent / "staged")
        (two.parent / "staged").rename(two / "others" / "2")
        server.until("version 2", lambda told: served(told) == [2])
        infer(server, np.ones((1, 8, 8), np.float32), "others")
        pids = {each["pid"] for each in server.status()["workers"]}
        first, second = (nvml.read(device).processes or {} for device in nvml.devices[:2])
        if pids.isdisjoint(second):
            pytest.skip("the driver names no processes as this system does")
        assert pids.isdisjoint(first)


def test_swaps_leave_the_memory_of_the_device_as_it_was(nvml: Nvml, models: Path) -> None:
    picture = np.ones((1, 8, 8), np.float32)
    used = list[int]()
    with daemon(models) as server:
        ready(server)
        for version in range(2, SWAPS + 2):
            source = MODELS / "digits" / str(1 + version % 2)
            shutil.copytree(source, models.parent / "staged")
            (models.parent / "staged").rename(models / "digits" / str(version))
            server.until(f"version {version}", lambda told, wanted=version: served(told) == [wanted])
            infer(server, picture)
            used.append(nvml.read(nvml.devices[0]).memory_used_bytes or 0)
            shutil.rmtree(models / "digits" / str(version - 1))
    assert all(used), "the driver does not tell how much memory is used"
    assert max(used) - used[2] < SLACK_BYTES, used
    print(f"device memory after swaps, MiB: {[each >> 20 for each in used]}")
