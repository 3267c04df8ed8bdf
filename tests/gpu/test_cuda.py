"""A real CUDA device conforms."""

from __future__ import annotations

import pytest

from appliance.devices.cuda import Cuda, CudaFailed
from tests.devices.absent import absent
from tests.devices.cuda_conformance import CudaConformance


class TestCuda(CudaConformance):
    """On the first device."""

    @pytest.fixture(scope="class")
    def cuda(self) -> Cuda:
        """The device."""
        try:
            return Cuda(0)
        except CudaFailed as problem:
            absent(f"no CUDA: {problem}")
