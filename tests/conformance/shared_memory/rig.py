"""What tests of shared memory need: a daemon that lets this user, tensors in regions, and other users."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.appliance_process import ApplianceProcess
from tests.faults.clients import FAKE_SECTIONS

VALUES = np.arange(12, dtype=np.float32).reshape(2, 6)
MODEL = "identity_fp32"
NEIGHBOUR = 2001
STRANGER = 2002
"""Users beside this one, of whom the first may use shared memory as well."""
RESERVED = "triton_python_backend_shm_region_"


OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
"""The library shares connections among clients of one address."""
Make = Callable[..., Any]


def started(sections: Mapping[str, Any], folder: Path, models: Path) -> ApplianceProcess:
    return ApplianceProcess(
        models,
        {
            **sections,
            **FAKE_SECTIONS,
            "grpc": {"addresses": ["127.0.0.1:0", f"unix:{folder}/grpc"], "unix_mode": "0666"},
            "http": {"addresses": ["127.0.0.1:0", f"unix:{folder}/http"], "unix_mode": "0666"},
            "shared_memory": {"users": [str(os.getuid()), str(NEIGHBOUR)]},
        },
    )


def path_of(handle: Any) -> str:
    return f"/dev/shm{handle._shm_key}"


def inside(region: str, nbytes: int, offset: int = 0) -> Any:
    tensor = triton.InferInput("x", list(VALUES.shape), "FP32")
    tensor.set_shared_memory(region, nbytes, offset)
    return tensor


def wanted(region: str, nbytes: int, offset: int = 0) -> Any:
    output = triton.InferRequestedOutput("y")
    output.set_shared_memory(region, nbytes, offset)
    return output


def refused(ask: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as failure:
        ask()
    return str(failure.value.status()).removeprefix("StatusCode."), str(failure.value.message())


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """Connections that are made meanwhile are this user's, as the kernel has it."""
    if os.getuid():
        pytest.skip("being another user takes root")
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
