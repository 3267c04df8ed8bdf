"""The simulated CUDA device conforms, and the real module does over a simulated CUDA library; without one it says what
is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from appliance.devices.cuda import Cuda, CudaFailed
from tests.devices.compiled_cuda import CompiledCuda, compiled_cuda
from tests.devices.cuda_conformance import CudaConformance
from tests.devices.simulated_cuda import SimulatedCuda


class TestSimulatedCuda(CudaConformance):
    """Simulated."""

    @pytest.fixture
    def cuda(self) -> SimulatedCuda:
        """A device of memory of this process."""
        return SimulatedCuda()


@pytest.fixture(scope="module")
def compiled() -> CompiledCuda:
    """The real module over a library that is simulated."""
    return compiled_cuda()


class TestCudaOverSimulatedLibrary(CudaConformance):
    """The real module; CUDA itself is simulated."""

    @pytest.fixture
    def cuda(self, compiled: CompiledCuda) -> Iterator[Cuda]:
        """A device of the module, which is given everything back."""
        held = compiled.held
        yield compiled.device
        assert compiled.held == held

    def test_nothing_is_left_of_a_capture_that_cuda_ended(self, cuda: Cuda, compiled: CompiledCuda) -> None:
        stream = cuda.stream()
        with pytest.raises(CudaFailed, match="stream is capturing"):
            cuda.capture(stream, lambda: cuda.finish(stream))
        assert compiled.library.cudaGetLastError() == 0, "or who asks next is told of this one"
        with pytest.raises(CudaFailed, match=r"invalid argument .* in cudaGraphLaunch"):
            cuda.launch(4711, stream)
        cuda.end_stream(stream)


def test_without_cuda_it_says_what_is_missing() -> None:
    code = (
        "from appliance.devices import cuda\n"
        "cuda.LIBRARIES = ('libcudart.so.none',)\n"
        "try: cuda.Cuda(0)\n"
        "except cuda.CudaFailed as problem: print(problem)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "none of libcudart.so.none is installed\n"
