"""What a GPU does for the models of ONNX Runtime's CUDA, as ratios of one run; `python -m benchmarks.gpu`.

Sessions as ``appliance/runtimes/onnx.py`` makes them, without the daemon around: batches, CUDA graphs, and the counter
of energy beside the integral of power. Prints a table and, with ``--json``, an object.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from appliance.devices.nvml import Nvml

DIGITS = Path(__file__).parents[1] / "models" / "digits" / "1" / "model.onnx"
WARM = 50


def session(model: str | bytes, **options: str) -> Any:
    """One that may not fall back to the processor."""
    asked = onnxruntime.SessionOptions()
    asked.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return onnxruntime.InferenceSession(model, asked, providers=[("CUDAExecutionProvider", options)])


def percentiles(run: Callable[[], object], seconds: float = 2.0) -> tuple[float, float, float]:
    """Microseconds of p50 and p99, and runs each second."""
    for _ in range(WARM):
        run()
    took, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        run()
        took.append(time.perf_counter() - start)
    took.sort()
    return took[len(took) // 2] * 1e6, took[len(took) * 99 // 100] * 1e6, len(took) / sum(took)


def convolutions(width: int = 64, blocks: int = 12) -> bytes:
    """A stack of 3x3 convolutions over 28x28 pictures, its weights random: somewhat more work than ResNet-50."""
    from onnx import TensorProto, helper, numpy_helper

    generator, nodes, weights, name = np.random.default_rng(1), [], [], "x"
    for block in range(blocks):
        kernel = (generator.standard_normal((width * 4, width * 4, 3, 3)) / 48).astype("f4")
        weights.append(numpy_helper.from_array(kernel, f"w{block}"))
        nodes.append(helper.make_node("Conv", [name, f"w{block}"], [f"c{block}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{block}"], [name := f"r{block}"]))
    shape: list[str | int | None] = ["n", width * 4, 28, 28]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        weights,
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return made


def bound(made: Any, batch: int) -> Any:
    """A binding with its tensors on the device."""
    binding, generator = made.io_binding(), np.random.default_rng(2)
    for port in made.get_inputs():
        data = generator.random((batch, *port.shape[1:]), np.float32)
        binding.bind_ortvalue_input(port.name, onnxruntime.OrtValue.ortvalue_from_numpy(data, "cuda", 0))
    for port in made.get_outputs():
        shape = [batch, *port.shape[1:]]
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, "cuda", 0)
        binding.bind_ortvalue_output(port.name, value)
    return binding


def energy(nvml: Nvml, run: Callable[[], object], seconds: float = 12.0) -> dict[str, float]:
    """The counter of energy and the integral of power over the same window, beside each other."""
    device, spent, last = nvml.devices[0], 0.0, None
    start = nvml.read(device)
    begun = time.perf_counter()
    rows = 0
    while (now := time.perf_counter()) < begun + seconds:
        reading = nvml.read(device)
        if last is not None and reading.power_w is not None:
            spent += reading.power_w * (now - last)
        last = now
        for _ in range(4):
            run()
            rows += 1
    end = nvml.read(device)
    if start.energy_j is None or end.energy_j is None:
        raise SystemExit("the driver has no counter of energy")
    return {"counter_j": end.energy_j - start.energy_j, "integral_j": spent, "runs": rows, "seconds": seconds}


def measure(nvml: Nvml) -> dict[str, Any]:
    """Everything."""
    digits, stack = str(DIGITS), convolutions()
    result: dict[str, Any] = {}
    for name, model in (("digits", digits), ("convolutions", stack)):
        made = session(model)
        for batch in (1, 16):
            binding = bound(made, batch)
            p50, p99, rate = percentiles(lambda: made.run_with_iobinding(binding))  # noqa: B023
            result[f"{name} batch {batch}"] = {"p50_us": p50, "p99_us": p99, "rows_per_s": rate * batch}
        many, one = result[f"{name} batch 16"], result[f"{name} batch 1"]
        result[f"{name}: throughput of batch 16 over 1"] = many["rows_per_s"] / one["rows_per_s"]
    graph = session(digits, enable_cuda_graph="1")
    binding = bound(graph, 1)
    p50, p99, _ = percentiles(lambda: graph.run_with_iobinding(binding))
    result["digits batch 1, CUDA graph"] = {"p50_us": p50, "p99_us": p99}
    result["digits: p50 with a CUDA graph over without"] = p50 / result["digits batch 1"]["p50_us"]
    result["quiet"] = energy(nvml, lambda: time.sleep(0.02))
    made = session(stack)
    binding = bound(made, 16)
    busy = energy(nvml, lambda: made.run_with_iobinding(binding))
    result["busy"] = busy
    result["energy counter over integral of power, busy"] = busy["counter_j"] / busy["integral_j"]
    idle_w = result["quiet"]["counter_j"] / result["quiet"]["seconds"]
    above = busy["counter_j"] - idle_w * busy["seconds"]
    result["convolutions: joules per row above idle"] = above / (busy["runs"] * 16)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        nvml = Nvml()
    except OSError as problem:
        raise SystemExit(f"no GPU to measure: {problem}") from problem
    device = nvml.devices[0]
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": device.name,
        "driver": device.driver,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        **measure(nvml),
    }
    if asked.json:
        print(json.dumps(result, indent=1))
    else:
        for name, value in result.items():
            print(f"{name:52} {value}")


if __name__ == "__main__":
    main()
