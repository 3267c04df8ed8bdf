"""``python -m benchmarks.shared_memory``: what a client on the same machine gains by leaving tensors in shared memory.

One request at a time of an identity, the ways interleaved request by request, with an unmodified tritonclient that
brings its tensor along and looks at the answer's. Prints a line of JSON for each size: the median of each way, and its
ratio to that of bytes over the loopback.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm

from models.generate import write_model
from tests.appliance_process import ApplianceProcess

MODEL = "identity_fp32"
SIZES = {"4 KiB": 1 << 12, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "16 MiB": 1 << 24}
REQUESTS = 200
WARM_UP = 20
KEY = "/appliance-benchmark"


def main() -> None:
    """Print the results."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    for name, nbytes in SIZES.items():
        with _ways(nbytes) as ways:
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(WARM_UP + count):
                for way, ask in ways.items():
                    begun = time.perf_counter()
                    ask()
                    if number >= WARM_UP:
                        taken[way].append(time.perf_counter() - begun)
        medians = {way: statistics.median(times) for way, times in taken.items()}
        base = medians["bytes, loopback"]
        shown = {way: [round(1e6 * median), round(median / base, 2)] for way, median in medians.items()}
        print(json.dumps({"size": name, "us and ratio": shown}), flush=True)


@contextmanager
def _ways(nbytes: int) -> Iterator[Mapping[str, Callable[[], None]]]:
    """What asks once, by the way that the tensor of ``nbytes`` takes."""
    data = np.arange(nbytes // 4, dtype=np.float32).reshape(1, -1)
    with tempfile.TemporaryDirectory() as name:
        write_model(MODEL, Path(name) / "models")
        sections = {
            "grpc": {"addresses": ["127.0.0.1:0", f"unix:{name}/grpc"]},
            "shared_memory": {"users": [str(os.getuid())]},
        }
        region = shm.create_shared_memory_region("r", KEY, 2 * data.nbytes)
        with ApplianceProcess(Path(name) / "models", sections) as process:
            process.wait_ready()
            loopback = triton.InferenceServerClient(process.grpc)
            local = triton.InferenceServerClient(f"unix:{name}/grpc")
            local.register_system_shared_memory("r", KEY, 2 * data.nbytes)
            yield {
                "bytes, loopback": lambda: _in_message(loopback, data),
                "bytes, Unix socket": lambda: _in_message(local, data),
                "shared memory": lambda: _in_region(local, region, data),
            }
            loopback.close()
            local.close()
        shm.destroy_shared_memory_region(region)


def _in_message(client: Any, data: np.ndarray[Any, Any]) -> None:
    tensor = triton.InferInput("x", list(data.shape), "FP32")
    tensor.set_data_from_numpy(data)
    _check(client.infer(MODEL, [tensor]).as_numpy("y"), data)


def _in_region(client: Any, region: Any, data: np.ndarray[Any, Any]) -> None:
    shm.set_shared_memory_region(region, [data])
    tensor, output = triton.InferInput("x", list(data.shape), "FP32"), triton.InferRequestedOutput("y")
    tensor.set_shared_memory("r", data.nbytes)
    output.set_shared_memory("r", data.nbytes, data.nbytes)
    client.infer(MODEL, [tensor], outputs=[output])
    _check(shm.get_contents_as_numpy(region, np.float32, list(data.shape), data.nbytes), data)


def _check(answer: np.ndarray[Any, Any], data: np.ndarray[Any, Any]) -> None:
    assert answer.shape == data.shape
    assert answer[-1, -1] == data[-1, -1]


if __name__ == "__main__":
    main()
