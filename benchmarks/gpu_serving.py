"""A ResNet-50 served from a GPU over gRPC: throughput against a bare loop over the same session with the same batches,
and latency at 80 % of that; `python -m benchmarks.gpu_serving --generator FILE`.

The generator is the ``load`` of ``benchmarks/native``. Then the same for a request that is repeated while another model
is loaded again and again beside it, and how long models are away when the worker is killed.
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


def batches(server: ApplianceProcess) -> tuple[float, float]:
    """Rows and batches of the ResNet so far."""
    text = server.get("/metrics").decode()
    rows = count = 0.0
    for line in text.splitlines():
        if (
            line.startswith(("nv_inference_count{", "nv_inference_exec_count{"))
            and 'model="resnet50"' in line
        ):
            value = float(line.rsplit(" ", 1)[1])
            if line.startswith("nv_inference_count"):
                rows += value
            else:
                count += value
    return rows, count


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
            rows, count = (now - then for now, then in zip(batches(server), before, strict=True))
            result[f"served, {depth} at once"] = {
                "rows_per_s": said["throughput"], "p50_us": said["ok"]["p50"], "p99_us": said["ok"]["p99"],
                "mean_batch": rows / count if count else None,
            }  # fmt: skip
        best = max(DEPTHS, key=lambda depth: result[f"served, {depth} at once"]["rows_per_s"])
        most = result[f"served, {best} at once"]["rows_per_s"]
        mean = result[f"served, {best} at once"]["mean_batch"] or 16
        sizes = sorted(rates)
        result["throughput served over a bare loop of that mean batch"] = most / float(
            np.interp(mean, sizes, [rates[each] for each in sizes])
        )
        said = offer(generator, server.grpc, file, "--rate", str(most * 0.8), seconds=8.0)
        result["at 80 % of it"] = {each: said["ok"][each] for each in ("p50", "p99")} | {
            "rate": most * 0.8, "unanswered": said["unanswered"], "failed": said["failed"],
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
    deadline = began + 60
    while len(back) < 2 and time.perf_counter() < deadline:
        told = server.status()
        if [each["pid"] for each in told["workers"]] in ([pid], [0]):
            continue
        for each in told["models"]:
            if each["state"] == "READY":
                back.setdefault(each["name"], time.perf_counter() - began)
    return back


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generator", type=Path, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(asked.generator, Path(folder)), indent=1))


if __name__ == "__main__":
    main()
