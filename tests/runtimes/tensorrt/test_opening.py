"""How the runtime opens its device, and an engine whose weights are not all there: with what a process has that no
session of ONNX Runtime was made in before. Everything of NVIDIA's is simulated."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.digest import digest_of
from appliance.domain.session_options import ENGINE_WEIGHTS_MAX
from appliance.runtimes.device_graphs import CAPTURE_AFTER
from appliance.runtimes.runtime import ENGINE_FILE, RuntimeSettings
from appliance.runtimes.tensorrt.session import EngineSession
from appliance.tools.conformance.memory import Memory, any_floats
from appliance.workers.daemon.forms_on_disk import for_worker
from tests.devices.compiled_cuda import SOURCE, compile_library
from tests.runtimes.tensorrt.test_runtime import Box

ALONE = """
import ctypes, sys
import onnxruntime
onnxruntime.preload_dlls = lambda: ctypes.CDLL(sys.argv[1])
from appliance.devices import cuda
cuda.LIBRARIES = ("libonlybrought.so.13",)
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime
from tests.runtimes.tensorrt.simulated import DRIVER
runtime = TensorrtRuntime(lambda: None, lambda: DRIVER)
print(runtime._device(0).memory()[1])
"""


def test_a_process_that_begins_with_an_engine_finds_cuda_where_packages_put_it(tmp_path: Path) -> None:
    """The loader does not look into packages: what is loaded from there by its path is found by its name."""
    library = compile_library(SOURCE, "libonlybrought.so.13", tmp_path)
    command = [sys.executable, "-c", ALONE, str(library)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"{1 << 30}\n"), ran.stderr


def test_an_engine_with_weights_elsewhere_is_never_captured_and_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.workers.child.comparison.PAIRS_MIN", 3)
    monkeypatch.setattr("appliance.workers.child.comparison.SIZE_BUDGET_NS", 1)
    box = Box(tmp_path / "serve")
    box.version = replace(box.version, parameters={ENGINE_WEIGHTS_MAX: "1000"})
    engine = box.build() / ENGINE_FILE
    capfd.readouterr()
    version = replace(
        for_worker(box.version), path=str(engine), digests={str(engine): digest_of(engine.read_bytes())}
    )
    session = box.runtime.load(version, RuntimeSettings(packed=True))
    assert isinstance(session, EngineSession)
    memory = Memory(any_floats(2, 8, 1).repeat(8, axis=1).reshape(2, 8, 8))
    for _ in range(CAPTURE_AFTER + 2):
        memory.run(session, (0,))
    assert not box.device.graphs
    said = capfd.readouterr().err
    assert said.count("runs without CUDA graphs") == 1
    assert "TensorRT has none of runs to which weights come from elsewhere than the device" in said
    session.close()
