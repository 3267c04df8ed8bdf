"""A runtime that is installed as two distributions at once is found at the start, and explained."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from appliance.runtimes import distributions
from appliance.runtimes.distributions import clash, cuda_problem, installed
from tests.appliance_process import ApplianceProcess

HERE = version("onnxruntime")


@pytest.fixture(name="beside")
def _beside(tmp_path: Path) -> Path:
    """A folder with what installing onnxruntime-gpu leaves for Python to see."""
    folder = tmp_path / "beside"
    (place := folder / "onnxruntime_gpu-1.2.3.dist-info").mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.2.3\n")
    return folder


def test_one_is_as_it_should_be() -> None:
    assert installed("onnx") == {"onnxruntime": HERE}
    assert clash("onnx") == ""
    assert installed("of-nobody") == {}


def test_two_are_named_with_what_to_do(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(beside))
    said = clash("onnx")
    assert f"onnxruntime {HERE} and onnxruntime-gpu 1.2.3 are both installed" in said
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in said


def test_cuda_needs_the_one_for_gpus_alone(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_problem() == "onnxruntime-gpu is not installed"
    monkeypatch.syspath_prepend(str(beside))
    assert cuda_problem() == clash("onnx")
    monkeypatch.setattr(distributions, "DISTRIBUTIONS", {"onnx": ("onnxruntime-gpu",)})
    assert cuda_problem() == ""


@pytest.mark.parametrize("both", [True, False])
def test_a_daemon_tells_it_when_it_starts(beside: Path, tmp_path: Path, both: bool) -> None:
    (models := tmp_path / "models").mkdir()
    path = f"{beside}:{os.environ.get('PYTHONPATH', '')}" if both else os.environ.get("PYTHONPATH", "")
    with ApplianceProcess(models, environment={"PYTHONPATH": path}) as daemon:
        daemon.wait_ready()
        assert ("a runtime is installed twice" in daemon.log()) == both
