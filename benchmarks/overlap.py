"""What a device waits for between two batches: pictures over gRPC to a simulated device, whose batches are gathered and
begun while others run, beside the same with each run waited for; `python -m benchmarks.overlap --generator FILE`.

The device is simulated: a batch of any size takes it `--run-ms` without the processor, so that what it loses is what
the appliance costs between two batches. No GPU is that even. The generator is the ``load`` of ``benchmarks/native``;
the two ways take turns, round by round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.frontend.grpc.wire_pb import inference_pb2
from benchmarks.clients import LoadReport, Offer, run_load
from tests.appliance_process import ApplianceProcess
from tests.faults.leased import NATIVE_FAKES

WAYS: Final = {"overlapped": "true", "each waited for": "false"}
BATCH: Final = 16
CONFIG: Final = """\
backend: "fake"
max_batch_size: {batch}
input {{ name: "x" data_type: TYPE_UINT8 dims: [ {row_bytes} ] }}
output {{ name: "y" data_type: TYPE_UINT8 dims: [ 4 ] }}
dynamic_batching {{ }}
parameters {{ key: "mode" value {{ string_value: "device" }} }}
parameters {{ key: "run_ms" value {{ string_value: "{run_ms}" }} }}
parameters {{ key: "overlapped" value {{ string_value: "{overlapped}" }} }}
"""


class Asked(NamedTuple):
    """What is measured: bytes of a row, milliseconds of a batch, and how."""

    generator: Path
    row_bytes: int
    run_ms: float
    rounds: int
    seconds: float


def prepare(folder: Path, asked: Asked) -> dict[str, bytes]:
    """Write a model for each way; gives a request for each."""
    payloads = {}
    for number, (way, overlapped) in enumerate(WAYS.items()):
        name = f"device{number}"
        model = folder / "models" / name
        (model / "1").mkdir(parents=True)
        text = CONFIG.format(
            batch=BATCH, row_bytes=asked.row_bytes, run_ms=asked.run_ms, overlapped=overlapped
        )
        (model / "config.pbtxt").write_text(text)
        request = inference_pb2.ModelInferRequest(model_name=name)
        request.inputs.add(name="x", datatype="UINT8", shape=[1, asked.row_bytes])
        request.raw_input_contents.append(bytes(asked.row_bytes))
        payloads[way] = request.SerializeToString()
    return payloads


def measure(asked: Asked) -> dict[str, Any]:
    """Rows a second over what the device alone could do, and latencies at 80 % of that, medians of all rounds."""
    most = BATCH / asked.run_ms * 1000
    usual = Offer(seconds=asked.seconds, channels=4)
    loads = {f"{depth} at once": replace(usual, concurrency=depth) for depth in (8, 32, 64)}
    loads["80 % of all it could do"] = replace(usual, rate=most * 0.8)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        payloads = prepare(Path(name), asked)
        with ApplianceProcess(Path(name) / "models", NATIVE_FAKES) as server:
            server.wait_ready()
            for load, offer in loads.items():
                said: dict[str, list[LoadReport]] = {way: [] for way in WAYS}
                for _ in range(asked.rounds):
                    for way, payload in payloads.items():
                        said[way].append(run_load(server.grpc, payload, offer, generator=asked.generator))
                result[load] = {
                    way: {
                        "of_device": statistics.median(each.throughput for each in told) / most,
                        "p50_us": statistics.median(each.ok["p50"] for each in told),
                        "p99_us": statistics.median(each.ok["p99"] for each in told),
                    }
                    for way, told in said.items()
                }
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generator", type=Path, required=True)
    parser.add_argument("--row-bytes", type=int, default=150_528, help="a picture of 3x224x224 bytes: 150528")
    parser.add_argument("--run-ms", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    asked = parser.parse_args()
    print(json.dumps(measure(Asked(**vars(asked))), indent=1))


if __name__ == "__main__":
    main()
