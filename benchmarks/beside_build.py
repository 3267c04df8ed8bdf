"""What a model that serves feels of an engine that is built beside it, on the same processors: p99 over p99 without;
`python -m benchmarks.beside_build --generator FILE`, after `make tensorrt-test`, which fetches TensorRT-RTX.

The builder is real, and builds engines of a transformer without a device, one after the other, in a process in the
lowest class, as workers that build are. What building does to a GPU that serves meanwhile cannot be seen so: it times
kernels on it. The generator is the ``load`` of ``benchmarks/native``; with and without take turns, round by round.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from appliance.frontend.grpc.wire_pb import inference_pb2
from appliance.process.priority import yield_disk, yield_processor
from appliance.runtimes.tensorrt.profiles import profiles_of
from appliance.runtimes.tensorrt.vendor import Library
from benchmarks.clients import Offer, run_load
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.fronts import NATIVE, with_front_end
from tests.workers.transformers import write_version

PACKAGES = Path(__file__).parents[1] / ".venv-tensorrt"
READY = "building"


def build_on(folder: Path) -> None:
    """Build engines until the process is ended; says so once the first is there."""
    sys.path.append(str(PACKAGES))
    library = Library(importlib.import_module("tensorrt_rtx_bindings"))
    version = write_version(folder)
    yield_processor()
    yield_disk()
    while True:
        library.build(
            Path(version.path).read_bytes(),
            version.path,
            profiles_of(version),
            workspace_bytes=1 << 28,
            cache=b"",
            streams=False,
            refits=False,
            progress=lambda done, total: None,
        )
        print(READY, flush=True)


def measure(generator: Path, rate: float, rounds: int, seconds: float) -> dict[str, Any]:
    """Medians of all rounds, and the ratio of each."""
    alone: list[float] = []
    beside: list[float] = []
    built = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model("mlp", folder / "models")
        request = inference_pb2.ModelInferRequest(model_name="mlp")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 64])
        request.raw_input_contents.append(bytes(256))
        payload, offer = request.SerializeToString(), Offer(seconds=seconds, rate=rate, channels=2)
        with ApplianceProcess(folder / "models", with_front_end(NATIVE, {})) as server:
            server.wait_ready()
            for number in range(rounds):
                alone.append(run_load(server.grpc, payload, offer, generator=generator).ok["p99"])
                own = folder / str(number)
                own.mkdir()
                builder = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.beside_build", "--build", str(own)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                assert builder.stdout is not None
                if READY not in builder.stdout.readline():
                    raise SystemExit(
                        "no engine is built: run `make tensorrt-test`, which fetches TensorRT-RTX"
                    )
                beside.append(run_load(server.grpc, payload, offer, generator=generator).ok["p99"])
                builder.kill()
                built += builder.communicate()[0].count(READY)
    ratios = [with_it / without for with_it, without in zip(beside, alone, strict=True)]
    return {
        "p99_us alone": statistics.median(alone),
        "p99_us beside a build": statistics.median(beside),
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
        "engines built meanwhile": built,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generator", type=Path)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.build is not None:
        build_on(asked.build)
    elif asked.generator is None:
        parser.error("--generator is missing")
    else:
        print(json.dumps(measure(asked.generator, asked.rate, asked.rounds, asked.seconds), indent=1))


if __name__ == "__main__":
    main()
