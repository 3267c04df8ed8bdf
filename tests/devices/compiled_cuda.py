"""The real module for CUDA over a simulated CUDA runtime library, which is compiled here from ``libcudart.cpp``."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from appliance.devices import cuda

SOURCE = Path(__file__).with_name("libcudart.cpp")
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-x", "c++")


def compile_library(source: Path | str, name: str, folder: Path) -> Path:
    """A library from one file of C++; skips the test where there is no compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to compile what is simulated")
    library = folder / name
    command = [compiler, *FLAGS, f"-Wl,-soname,{name}", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return library


@cache
def compiled_cuda() -> CompiledCuda:
    """The only one of this process: a library that computes looks for its functions among all that are loaded."""
    with tempfile.TemporaryDirectory() as folder:
        return CompiledCuda(Path(folder))


class CompiledCuda:
    """``library`` has what ``libcudart.cpp`` has for tests alone."""

    def __init__(self, folder: Path) -> None:
        path = compile_library(SOURCE, "libsimulatedcudart.so", folder)
        self.library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.device = self._device(str(path))

    def _device(self, path: str) -> cuda.Cuda:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda, "LIBRARIES", (path,))
            return cuda.Cuda(0)

    @property
    def held(self) -> int:
        """How much was not given back: memory of the device, streams and graphs."""
        return int(self.library.simulatedHeld())

    @property
    def strays(self) -> int:
        """How often something was asked by a thread that had said no device."""
        return int(self.library.simulatedStrays())
