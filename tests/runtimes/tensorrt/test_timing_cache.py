"""TensorRT's timing caches: what an earlier build learned. The real code for TensorRT over a stub of its module, as
RTX, which is real, refuses none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.model import ModelVersion
from appliance.repository.model_directory import read_model_directory
from appliance.runtimes.runtime import KEPT_BYTES_MAX, KEPT_FILE, RuntimeSettings
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime, wrapped
from appliance.runtimes.tensorrt.vendor import Library
from tests.runtimes.tensorrt.simulated import DRIVER, HostDevice, SimulatedPlain
from tests.runtimes.tensorrt.stub_module import ENGINE, LEARNED, StubModule

MODELS = Path(__file__).parents[3] / "models"


@pytest.fixture
def version() -> ModelVersion:
    """The digits, for TensorRT."""
    reading = read_model_directory(str(MODELS), "digits", RepositoryConfig())
    assert reading is not None
    return replace(reading.servable[-1].model, runtime="tensorrt", device=ON_CUDA)


def over_stub(module: StubModule) -> TensorrtRuntime:
    """The runtime over a stub of TensorRT's module."""
    device = HostDevice()
    return TensorrtRuntime(
        lambda: Library(module), lambda: DRIVER, lambda index: device.as_cuda, SimulatedPlain()
    )


@pytest.mark.parametrize("how", ["makes none", "says no", "raises", "takes all"])
def test_a_timing_cache_that_tensorrt_refuses_is_left_alone_and_told_of(
    version: ModelVersion, tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    module = StubModule(how)
    runtime = over_stub(module)
    kept = wrapped(b"of another device", runtime._makers)
    runtime.pack(version, RuntimeSettings(kept=kept), str(tmp_path / "engine"), "")
    assert (tmp_path / "engine").read_bytes() == ENGINE, "it was built all the same"
    assert (tmp_path / KEPT_FILE).read_bytes() == wrapped(LEARNED, runtime._makers), "what it learned anew"
    (config,) = module.configs
    assert config.taken is not None
    said = "TensorRT does not take what was learned by an earlier build" in capfd.readouterr().err
    if how == "takes all":
        assert (config.taken.data, config.caches, said) == (
            b"of another device",
            [b"of another device"],
            False,
        )
    else:
        assert (config.taken.data, config.caches, said) == (b"", [b"of another device", b""], True)


def test_a_first_build_has_no_timing_cache_to_tell_of(
    version: ModelVersion, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = StubModule("makes none")
    runtime = over_stub(module)
    runtime.pack(version, RuntimeSettings(), str(tmp_path / "engine"), "")
    assert module.configs[0].caches == [b""]
    assert "earlier build" not in capfd.readouterr().err


@pytest.mark.parametrize("over", [0, 1])
def test_a_timing_cache_is_kept_whole_or_told_of(
    version: ModelVersion, tmp_path: Path, capfd: pytest.CaptureFixture[str], over: int
) -> None:
    """That of a model whose kernels are compiled for it has their code."""
    module = StubModule("takes all")
    runtime = over_stub(module)
    module.learned = bytes(KEPT_BYTES_MAX - len(wrapped(b"", runtime._makers)) + over)
    runtime.pack(version, RuntimeSettings(), str(tmp_path / "engine"), "")
    kept, said = tmp_path / KEPT_FILE, capfd.readouterr().err
    assert kept.exists() is not bool(over)
    assert not kept.exists() or kept.stat().st_size == KEPT_BYTES_MAX
    assert (f"what TensorRT learned has {KEPT_BYTES_MAX + over} bytes" in said) is bool(over)
