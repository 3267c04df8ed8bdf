"""The simulated CUDA device conforms, and the real module does over a simulated CUDA library; without one it says what
is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from appliance.devices.cuda import Cuda, CudaFailed
from tests.devices.compiled_cuda import SOURCE, CompiledCuda, compile_library, compiled_cuda
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
        held, strays = compiled.held, compiled.strays
        yield compiled.device
        assert compiled.held == held
        assert compiled.strays == strays, "a thread used the first device, whichever this is"

    def test_nothing_is_left_of_a_capture_that_cuda_ended(self, cuda: Cuda, compiled: CompiledCuda) -> None:
        stream = cuda.stream()
        with pytest.raises(CudaFailed, match="stream is capturing"):
            cuda.capture(stream, lambda: cuda.finish(stream))
        assert compiled.library.cudaGetLastError() == 0, "or who asks next is told of this one"
        with pytest.raises(CudaFailed, match=r"invalid argument .* in cudaGraphLaunch"):
            cuda.launch(4711, stream)
        cuda.end_stream(stream)

    def test_a_capture_that_others_left_is_ended(self, cuda: Cuda, compiled: CompiledCuda) -> None:
        stream = cuda.stream()
        for begin in (partial(cuda.call, "cudaStreamBeginCapture", stream, 0), bool):
            begin()
            cuda.end_capture(stream)
            assert compiled.library.cudaGetLastError() == 0, "or who asks next is told of this one"
            cuda.finish(stream)
        cuda.end_stream(stream)

    def test_a_context_is_not_lost_because_something_is_captured(
        self, cuda: Cuda, compiled: CompiledCuda
    ) -> None:
        stream, alive = cuda.stream(), list[bool]()
        graph = cuda.capture(stream, lambda: alive.append(cuda.alive()))
        assert alive == [True], "or its process would be ended"
        assert compiled.library.cudaGetLastError() == 0
        cuda.end_graph(graph)
        cuda.end_stream(stream)

    @pytest.mark.parametrize(
        "use",
        [
            lambda cuda: cuda.end_event(cuda.event()),
            lambda cuda: cuda.end_stream(cuda.stream()),
            lambda cuda: cuda.free(cuda.allocate(64)),
            lambda cuda: cuda.pin(64),
            lambda cuda: cuda.memory(),
            lambda cuda: cuda.alive(),
        ],
    )
    def test_a_thread_that_never_entered_is_on_its_device(
        self, cuda: Cuda, use: Callable[[Cuda], object]
    ) -> None:
        thread = threading.Thread(target=use, args=(cuda,))
        thread.start()
        thread.join()

    def test_what_another_thread_gives_back_makes_no_context_elsewhere(
        self, cuda: Cuda, compiled: CompiledCuda
    ) -> None:
        held, stream, event = compiled.held, cuda.stream(), cuda.event()
        address, pinned = cuda.allocate(64), [cuda.pin(64)]
        gives = (
            lambda: cuda.happened(event),
            lambda: cuda.end_event(event),
            lambda: cuda.end_stream(stream),
            lambda: cuda.free(address),
            pinned.clear,
        )
        for give in gives:
            thread = threading.Thread(target=give)
            thread.start()
            thread.join()
        assert compiled.held == held


def test_without_cuda_it_says_what_is_missing() -> None:
    code = (
        "from appliance.devices import cuda\n"
        "cuda.LIBRARIES = ('libcudart.so.none',)\n"
        "try: cuda.Cuda(0)\n"
        "except cuda.CudaFailed as problem: print(problem)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "none of libcudart.so.none is installed\n"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("35:0", "there is no NVIDIA driver here"),
        ("35:12040", "the driver is of CUDA 12.4, older than the installed runtime needs"),
        ("100:13000", "the driver has no device"),
        ("0:13000", "there is no device 1: the driver has 1"),
    ],
)
def test_why_there_is_no_device_is_said_in_plain_words(tmp_path: Path, status: str, said: str) -> None:
    library = compile_library(SOURCE, "libsimulated.so", tmp_path)
    code = (
        "from appliance.devices import cuda\n"
        f"cuda.LIBRARIES = ({str(library)!r},)\n"
        "try: cuda.Cuda(1)\n"
        "except cuda.NoDevice as problem: print(problem)\n"
    )
    environment = {**os.environ, "SIMULATED_COUNT": status}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{said}\n"


def test_the_library_that_is_loaded_goes_before_a_newer_one_that_the_loader_finds(tmp_path: Path) -> None:
    """As that of ONNX Runtime for CUDA 12 does before a toolkit of CUDA 13, which the driver may be too old for."""
    newer, loaded = (compile_library(SOURCE, f"libsimulated{name}.so", tmp_path) for name in ("13", "12"))
    code = (
        "import ctypes\n"
        "from appliance.devices import cuda\n"
        f"cuda.LIBRARIES = {(str(newer), str(loaded))}\n"
        "{0}"
        "cuda.Cuda(0)\n"
        "maps = open('/proc/self/maps').read()\n"
        f"print([{str(newer)!r} in maps, {str(loaded)!r} in maps])\n"
    )
    for before, found in ((f"ctypes.CDLL({str(loaded)!r})\n", "[False, True]"), ("", "[True, False]")):
        ran = subprocess.run(
            [sys.executable, "-c", code.format(before)], capture_output=True, text=True, check=True
        )
        assert ran.stdout == f"{found}\n"
