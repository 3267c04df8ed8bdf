"""A ResNet-50 served from a GPU over gRPC: throughput against a bare loop over the same session with the same batches,
and latency at 80 % of that; `python -m benchmarks.gpu_serving --generator FILE`.

The generator is the ``load`` of ``benchmarks/native``. Then how long each model is away when the worker that both are
in is killed: its files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from appliance.frontend.grpc.wire_pb import inference_pb2
from appliance.runtimes import onnx
from appliance.runtimes.runtime import RuntimeSettings
from benchmarks.gpu import DIGITS, percentiles, requests, version_of
from benchmarks.gpu_models import PICTURE, resnet50
from tests.appliance_process import ApplianceProcess

CONFIG = """\
name: "resnet50"
backend: "onnxruntime"
max_batch_size: 16
input [ { name: "image" data_type: TYPE_UINT8 dims: [ 3, 224, 224 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 1000 ] } ]
instance_group [ { kind: KIND_GPU } ]
dynamic_batching { }
"""
DEPTHS = (1, 8, 32, 64)


def payload() -> bytes:
    """One picture as a request."""
    request = inference_pb2.ModelInferRequest(model_name="resnet50")
    request.inputs.add(name="image", datatype="UINT8", shape=[1, *PICTURE])
    request.raw_input_contents.append(
        np.random.default_rng(7).integers(0, 255, PICTURE).astype("u1").tobytes()
    )
    serialised: bytes = request.SerializeToString()
    return serialised


def offer(generator: Path, target: str, file: Path, *arguments: str, seconds: float = 4.0) -> dict[str, Any]:
    """What the load generator says."""
    done = subprocess.run(
        [
            str(generator), "--target", target, "--payload", str(file), "--seconds", str(seconds), "--warm-up-s", "2",
            "--deadline-ms", "0", "--bound-ms", "10", "--seed", "1", "--channels", "8", *arguments,
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr[-500:])
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def models_of(folder: Path) -> Path:
    """The ResNet and the digits, both on the device."""
    models = folder / "models"
    (models / "resnet50" / "1").mkdir(parents=True)
    (models / "resnet50" / "config.pbtxt").write_text(CONFIG)
    (models / "resnet50" / "1" / "model.onnx").write_bytes(resnet50())
    shutil.copytree(DIGITS.parents[1], models / "digits")
    shutil.rmtree(models / "digits" / "2", ignore_errors=True)
    config = models / "digits" / "config.pbtxt"
    text = config.read_text().replace("all { }", "latest { num_versions: 1 }")
    config.write_text(f"{text}\ninstance_group [ {{ kind: KIND_GPU }} ]\n")
    return models


def batches(server: ApplianceProcess) -> dict[int, tuple[int, int]]:
    """Batches of the ResNet so far and the nanoseconds that they ran, by their rows."""
    told = json.loads(server.get("/v2/models/resnet50/stats"))["model_stats"][0]["batch_stats"]
    return {
        int(each["batch_size"]): (int(each["compute_infer"]["count"]), int(each["compute_infer"]["ns"]))
        for each in told
    }


def between(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> dict[str, Any]:
    """What ran meanwhile: batches by rows with the mean milliseconds of each, and the mean rows."""
    ran = {
        rows: (count - before.get(rows, (0, 0))[0], ns - before.get(rows, (0, 0))[1])
        for rows, (count, ns) in sorted(after.items())
    }
    ran = {rows: each for rows, each in ran.items() if each[0]}
    count = sum(each[0] for each in ran.values())
    return {
        "mean_rows": sum(rows * each[0] for rows, each in ran.items()) / max(count, 1),
        "batches": {rows: f"{each[0]} of {each[1] / each[0] / 1e6:.2f} ms" for rows, each in ran.items()},
    }


def measure(generator: Path, folder: Path) -> dict[str, Any]:
    """Everything."""
    result: dict[str, Any] = {}
    version = version_of("resnet50", folder)
    made = onnx.OnnxRuntime().load(version, RuntimeSettings())
    rates = {}
    for batch in (1, 2, 4, 8, 16):
        p50, p99, rate = percentiles(requests(made, version, batch), 1.0)
        rates[batch] = rate * batch
        result[f"bare loop, batch {batch}"] = {"p50_us": p50, "p99_us": p99, "rows_per_s": rate * batch}
    made.close()
    file = folder / "payload"
    file.write_bytes(payload())
    with ApplianceProcess(models_of(folder)) as server:
        server.wait_ready()
        for depth in DEPTHS:
            before = batches(server)
            said = offer(generator, server.grpc, file, "--concurrency", str(depth))
            result[f"served, {depth} at once"] = {
                "rows_per_s": said["throughput"], "p50_us": said["ok"]["p50"], "p99_us": said["ok"]["p99"],
                **between(before, batches(server)),
            }  # fmt: skip
        best = max(DEPTHS, key=lambda depth: result[f"served, {depth} at once"]["rows_per_s"])
        most = result[f"served, {best} at once"]["rows_per_s"]
        mean = result[f"served, {best} at once"]["mean_rows"]
        sizes = sorted(rates)
        result["throughput served over a bare loop of that mean batch"] = most / float(
            np.interp(mean, sizes, [rates[each] for each in sizes])
        )
        before = batches(server)
        said = offer(generator, server.grpc, file, "--rate", str(most * 0.8), seconds=8.0)
        result["at 80 % of it"] = {each: said["ok"][each] for each in ("p50", "p99")} | {
            "rate": most * 0.8, "unanswered": said["unanswered"], "failed": said["failed"],
            **between(before, batches(server)),
        }  # fmt: skip
        result["away after SIGKILL of the worker"] = away(server)
        result["workers"] = server.status()["workers"]
        result["log"] = [line for line in server.log().splitlines() if "graph" in line.lower()][:6]
    return result


def away(server: ApplianceProcess) -> dict[str, float]:
    """Seconds until each model answers again."""
    (pid,) = [each["pid"] for each in server.status()["workers"]]
    os.kill(pid, signal.SIGKILL)
    began, back = time.perf_counter(), dict[str, float]()
    while len(back) < 2 and time.perf_counter() < began + 60:
        for name, tensor, shape, datatype in (
            ("digits", "image", [1, 8, 8], "FP32"), ("resnet50", "image", [1, *PICTURE], "UINT8"),
        ):  # fmt: skip
            if name not in back and answers(server, name, tensor, shape, datatype):
                back[name] = time.perf_counter() - began
    return back


def answers(server: ApplianceProcess, model: str, tensor: str, shape: list[int], datatype: str) -> bool:
    """Whether the model answers zeros now."""
    size = int(np.prod(shape)) * (4 if datatype == "FP32" else 1)
    said = {"name": tensor, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [said]}).encode()
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/{model}/infer", head + bytes(size),
        {"Inference-Header-Content-Length": str(len(head))},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=10):
            return True
    except OSError:
        return False


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generator", type=Path, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(asked.generator, Path(folder)), indent=1))


if __name__ == "__main__":
    main()
