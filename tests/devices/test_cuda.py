"""The simulated CUDA device conforms; without a driver the real one says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.devices.cuda_conformance import CudaConformance
from tests.devices.simulated_cuda import SimulatedCuda


class TestSimulatedCuda(CudaConformance):
    """Simulated."""

    @pytest.fixture
    def cuda(self) -> SimulatedCuda:
        """A device of memory of this process."""
        return SimulatedCuda()


def test_without_cuda_it_says_what_is_missing() -> None:
    code = (
        "from appliance.devices import cuda\n"
        "cuda.LIBRARIES = ('libcudart.so.none',)\n"
        "try: cuda.Cuda(0)\n"
        "except cuda.CudaFailed as problem: print(problem)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "none of libcudart.so.none is installed\n"
