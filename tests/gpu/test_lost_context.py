"""A context that is really lost: a kernel that traps ends it for the process, which a session must notice."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.devices.cuda import Cuda, CudaFailed
from appliance.runtimes import onnx
from tests.devices.absent import absent

MODEL = Path(__file__).parents[2] / "models" / "digits" / "1" / "model.onnx"
PROGRAM = r"""
import ctypes, sys
import numpy as np
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.device import cuda
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.model import ModelVersion
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings
from appliance.tools.conformance.memory import Memory

PTX = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry boom() { trap; }
\0'''
version = ModelVersion(
    name="digits", version=1, platform="", backend="", runtime="onnx", path=sys.argv[1], file_bytes=1,
    inputs=(TensorSpec(name="image", datatype=Datatype.FP32, shape=(8, 8)),),
    outputs=(TensorSpec(name="probabilities", datatype=Datatype.FP32, shape=(10,)),), max_batch_size=8, device=ON_CUDA,
)
session = OnnxRuntime().load(version, RuntimeSettings(device=cuda(0)))
memory = Memory(np.ones((1, 8, 8), np.float32))
for _ in range(5):
    memory.run(session, (0,))
print("answered", flush=True)
driver = ctypes.CDLL("libcuda.so.1")
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), PTX) == 0
assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"boom") == 0
one = [ctypes.c_uint(1)] * 6
assert driver.cuLaunchKernel(kernel, *one, ctypes.c_uint(0), None, None, None) == 0
for _ in range(3):
    try:
        memory.run(session, (0,))
    except Exception as problem:
        print("failed", problem, flush=True)
print("still there", flush=True)
"""


@pytest.fixture
def cuda() -> Cuda:
    """A device."""
    onnx.bring_libraries()
    try:
        return Cuda(0)
    except CudaFailed as problem:
        absent(f"no CUDA: {problem}")


def test_a_kernel_that_traps_ends_the_process_and_is_told(cuda: Cuda) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(MODEL)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGABRT, done.stdout + done.stderr
    assert done.stdout == "answered\n"
    assert "CUDA is lost to this process" in done.stderr
