"""What a GPU does for the models of ONNX Runtime's CUDA, as ratios of one run; `python -m benchmarks.gpu`.

Sessions of ONNX Runtime alone, and as workers have them, without the daemon around: batches, CUDA graphs, FP16,
weights, memory, and the counter of energy beside the integral of power; engines, where TensorRT is installed. Prints a
table or, with ``--json``, an object.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from appliance.devices.nvml import Nvml
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.model import Batching, ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.runtimes import onnx
from appliance.runtimes.runtime import Feed, Place, RuntimeSettings, region_maker
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime
from appliance.workers.child.tensors import Scratch
from benchmarks import gpu_engines
from benchmarks.gpu_models import PICTURE, large, resnet50

DIGITS = Path(__file__).parents[1] / "models" / "digits" / "1" / "model.onnx"
WARM = 50
SWAPS = 1000
SWAPS_S = 60.0
Result = dict[str, Any]


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
        if port.type == "tensor(uint8)":
            data = (data * 255).astype(np.uint8)
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


def bare(result: Result) -> None:
    """Sessions of ONNX Runtime with tensors on the device: batches and CUDA graphs."""
    digits, stack = str(DIGITS), convolutions()
    for name, model in (("digits", digits), ("convolutions", stack)):
        made = session(model)
        for batch in (1, 16):
            binding = bound(made, batch)
            p50, p99, rate = percentiles(lambda: made.run_with_iobinding(binding))  # noqa: B023
            result[f"{name} batch {batch}"] = {"p50_us": p50, "p99_us": p99, "rows_per_s": rate * batch}
        many, one = result[f"{name} batch 16"], result[f"{name} batch 1"]
        result[f"{name}: throughput of batch 16 over 1"] = many["rows_per_s"] / one["rows_per_s"]
    for name, dtype in (("FP32", np.float32), ("FP16", np.float16)):
        for layout in ("0", "1"):
            made = session(resnet50(dtype), prefer_nhwc=layout, cudnn_conv_algo_search="HEURISTIC")
            binding = bound(made, 16)
            _, _, rate = percentiles(lambda: made.run_with_iobinding(binding))  # noqa: B023
            result[f"resnet50 {name} batch 16, prefer_nhwc={layout}: rows a second"] = rate * 16
    graph = session(digits, enable_cuda_graph="1")
    binding = bound(graph, 1)
    p50, p99, _ = percentiles(lambda: graph.run_with_iobinding(binding))
    result["digits batch 1, CUDA graph"] = {"p50_us": p50, "p99_us": p99}
    result["digits: p50 with a CUDA graph over without"] = p50 / result["digits batch 1"]["p50_us"]


def port(result: Result) -> None:
    """Sessions as workers have them, tensors in memory of the process: without graphs and with them; and FP16 against
    FP32."""
    with tempfile.TemporaryDirectory() as folder:
        for name, batch in (
            ("digits", 1),
            ("digits", 16),
            ("resnet50", 1),
            ("resnet50", 16),
            ("resnet50-fp16", 16),
        ):
            version = version_of(name, Path(folder))
            for manner in ("kept", "graph"):
                made = onnx.OnnxRuntime().load(version, RuntimeSettings())
                made._graphs.on = manner == "graph"  # type: ignore[attr-defined]
                run = requests(made, version, batch)
                p50, p99, rate = percentiles(run)
                made.close()
                result[f"port: {name} batch {batch}, {manner}"] = {
                    "p50_us": p50, "p99_us": p99, "rows_per_s": rate * batch,
                }  # fmt: skip
            kept, graph = (
                result[f"port: {name} batch {batch}, {each}"]["p50_us"] for each in ("kept", "graph")
            )
            result[f"port: {name} batch {batch}: p50 graph over kept"] = graph / kept
    full, half = (
        result[f"port: {each} batch 16, graph"]["rows_per_s"] for each in ("resnet50", "resnet50-fp16")
    )
    result["port: resnet50 batch 16: rows a second of FP16 over FP32"] = half / full


def requests(made: Any, version: ModelVersion, batch: int) -> Callable[[], object]:
    """A run of a batch, in memory that a worker would gather it in."""
    (given,) = version.inputs
    generator = np.random.default_rng(2)
    values = generator.integers(0, 200, (batch, *given.shape)).astype(
        "u1" if given.datatype is Datatype.UINT8 else "f4"
    )
    make = region_maker(made)
    source, spread = (Scratch().at_least(size, make) for size in (values.nbytes, batch * 4096))
    source.view[: values.nbytes] = values.tobytes()
    feeds = (Feed(values.shape, 0, values.nbytes),)
    place = Place(spread, 0, len(spread.view))
    return lambda: made.run(source, feeds, (0,), place)


def version_of(name: str, folder: Path) -> ModelVersion:
    """A version on the device: the digits or a ResNet-50."""
    digits = name == "digits"
    path = folder / name / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    if digits:
        path.write_bytes(DIGITS.read_bytes())
    else:
        path.write_bytes(resnet50(np.float16 if name.endswith("fp16") else np.float32))
    given = TensorSpec(
        name="image",
        datatype=Datatype.FP32 if digits else Datatype.UINT8,
        shape=(8, 8) if digits else PICTURE,
    )
    taken = TensorSpec(
        name="probabilities" if digits else "scores", datatype=Datatype.FP32, shape=(10 if digits else 1000,)
    )
    return ModelVersion(
        name=name, version=1, platform="", backend="", runtime="onnx", path=str(path), file_bytes=path.stat().st_size,
        inputs=(given,), outputs=(taken,), max_batch_size=16, batching=Batching(), device=ON_CUDA,
    )  # fmt: skip


def joules(result: Result) -> None:
    """The counter of energy beside the integral of power, and what a row takes."""
    nvml = Nvml()
    result["quiet"] = energy(nvml, lambda: time.sleep(0.02))
    made = session(convolutions())
    binding = bound(made, 16)
    busy = energy(nvml, lambda: made.run_with_iobinding(binding))
    result["busy"] = busy
    result["energy counter over integral of power, busy"] = busy["counter_j"] / busy["integral_j"]
    idle_w = result["quiet"]["counter_j"] / result["quiet"]["seconds"]
    above = busy["counter_j"] - idle_w * busy["seconds"]
    result["convolutions: joules per row above idle"] = above / (busy["runs"] * 16)


def weights(result: Result) -> None:
    """How fast 500 MB of weights come to the device, against the slower of the disk and the bus."""
    size = 500 << 20
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "large" / "1"
        home.mkdir(parents=True)
        graph, weight = large(size)
        (home / "model.onnx").write_bytes(graph)
        (home / "weights.bin").write_bytes(weight.tobytes())
        cuda, stream = onnx._cuda(0), 0
        stream = cuda.stream()
        address, pinned = cuda.allocate(size), cuda.pin(size)
        began = time.perf_counter()
        for _ in range(5):
            cuda.copy_in(address, pinned.address, size, stream)
        cuda.finish(stream)
        bus = 5 * size / (time.perf_counter() - began)
        cuda.free(address)
        began = time.perf_counter()
        with (home / "weights.bin").open("rb", buffering=0) as file:
            file.readinto(pinned.view)
        disk = size / (time.perf_counter() - began)
        rows, columns = weight.shape
        version = ModelVersion(
            name="large", version=1, platform="", backend="", runtime="onnx", path=str(home / "model.onnx"),
            file_bytes=size, inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(rows,)),),
            outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(columns,)),), max_batch_size=4, device=ON_CUDA,
        )  # fmt: skip
        took = []
        for _ in range(4):
            began = time.perf_counter()
            made = onnx.OnnxRuntime().load(version, RuntimeSettings())
            took.append(time.perf_counter() - began)
            made.close()
        rate = size / sorted(took)[1]
        result["weights of 500 MB"] = {
            "bus_MB_per_s": bus / 1e6, "page_cache_MB_per_s": disk / 1e6, "session_MB_per_s": rate / 1e6,
            "took_s": took,
        }  # fmt: skip
        result["weights: rate of a session over the slower of both"] = rate / min(bus, disk)


def swaps(result: Result) -> None:
    """Whether the device has as much memory as before after many sessions came and went."""
    with tempfile.TemporaryDirectory() as folder:
        version = version_of("digits", Path(folder))
        used, began = list[int](), time.perf_counter()
        for number in range(SWAPS):
            made = onnx.OnnxRuntime().load(version, RuntimeSettings())
            run = requests(made, version, 1)
            for _ in range(6):
                run()
            made.close()
            if number % 10 == 9:
                free, total = onnx._cuda(0).memory()
                used.append(total - free)
            if time.perf_counter() - began > SWAPS_S:
                break
        result["swaps"] = {
            "sessions": number + 1, "seconds": time.perf_counter() - began, "used_MiB_after_10": used[0] >> 20,
            "used_MiB_after_all": used[-1] >> 20, "used_MiB_most": max(used) >> 20,
        }  # fmt: skip


def engines(result: Result) -> None:
    """Engines of TensorRT; see ``gpu_engines``."""
    try:
        runtime = TensorrtRuntime()
    except ImportError as problem:
        result["engines"] = f"left out: {problem}"
        return
    with tempfile.TemporaryDirectory() as folder:
        names = ("digits", "resnet50", "resnet50-fp16", "resnet50-int8")
        versions = {name: version_of(name, Path(folder)) for name in names}
        gpu_engines.as_int8(versions["resnet50-int8"])
        result |= gpu_engines.measure(runtime, versions, Path(folder), percentiles, requests)


PARTS: dict[str, Callable[[Result], None]] = {
    "bare": bare, "port": port, "joules": joules, "weights": weights, "swaps": swaps, "engines": engines,
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print an object, not a table")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them")
    asked = parser.parse_args()
    if unknown := [each for each in asked.parts if each not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    try:
        device = Nvml().devices[0]
    except OSError as problem:
        raise SystemExit(f"no GPU to measure: {problem}") from problem
    onnx.bring_libraries()  # bare sessions find them in NVIDIA's packages no more than the loader does
    result: Result = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": device.name,
        "driver": device.driver,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
    }
    for name in asked.parts or PARTS:
        began, before = time.perf_counter(), set(result)
        PARTS[name](result)
        took = time.perf_counter() - began
        print(f"{name} took {took:.1f} s", file=sys.stderr, flush=True)
        if not asked.json:
            for key in result:
                if key not in before:
                    print(f"{key:62} {_text(result[key])}", flush=True)
    if asked.json:
        print(json.dumps(result, indent=1))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
