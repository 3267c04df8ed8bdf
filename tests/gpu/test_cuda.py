"""A real CUDA device conforms."""

from __future__ import annotations

import pytest

from appliance.devices.cuda import Cuda, CudaFailed
from appliance.runtimes import onnx
from tests.devices.absent import absent
from tests.devices.cuda_conformance import CudaConformance


class TestCuda(CudaConformance):
    """On the first device."""

    @pytest.fixture
    def cuda(self) -> Cuda:
        """The device."""
        onnx.bring_libraries()
        try:
            return Cuda(0)
        except CudaFailed as problem:
            absent(f"no CUDA: {problem}")
