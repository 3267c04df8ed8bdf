"""Engines of TensorRT beside the CUDA sessions of the same models, and what a neighbour on the GPU feels of building
one; the part ``engines`` of `python -m benchmarks.gpu`.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from appliance.domain.digest import digest_of
from appliance.domain.model import ModelVersion
from appliance.process.priority import yield_disk, yield_processor
from appliance.runtimes.runtime import ENGINE_FILE, RuntimeSettings
from appliance.runtimes.tensorrt.runtime import TensorrtRuntime
from appliance.tools.variants.conversion import make_variant
from benchmarks.gpu_models import PICTURE

CALIBRATION = 4
"""Random pictures: speed alone is looked at."""
NEIGHBOUR_S = 4.0
ROUNDS = 5
Percentiles = Callable[..., tuple[float, float, float]]
Requests = Callable[[Any, ModelVersion, int], Callable[[], object]]


def as_int8(version: ModelVersion) -> None:
    """Have the model of a version in INT8."""
    generator = np.random.default_rng(3)
    pictures = [{"image": generator.integers(0, 255, (1, *PICTURE)).astype("u1")} for _ in range(CALIBRATION)]
    whole = Path(version.path).with_name("whole.onnx")
    Path(version.path).rename(whole)
    make_variant(str(whole), "int8-static", version.path, pictures)
    whole.unlink()


def engine_of(runtime: TensorrtRuntime, version: ModelVersion, folder: Path) -> ModelVersion:
    """The version with its engine as its file, built now."""
    engine = folder / ENGINE_FILE
    runtime.pack(version, RuntimeSettings(), str(engine), "")
    return replace(version, path=str(engine), digests={str(engine): digest_of(engine.read_bytes())})


def build_again_and_again(version: ModelVersion, folder: Path, ready: Any) -> None:
    """Build until the process is ended, in the lowest class."""
    yield_processor()
    yield_disk()
    runtime = TensorrtRuntime()
    while True:
        engine_of(runtime, version, folder)
        ready.set()


def beside_a_build(
    run: Callable[[], object], version: ModelVersion, folder: Path, percentiles: Percentiles
) -> dict[str, Any]:
    """p99 of ``run`` while engines are built over without, round by round."""
    alone, beside = list[float](), list[float]()
    context = multiprocessing.get_context("spawn")
    for _ in range(ROUNDS):
        alone.append(percentiles(run, NEIGHBOUR_S)[1])
        ready = context.Event()
        builder = context.Process(target=build_again_and_again, args=(version, folder, ready))
        builder.start()
        while not ready.wait(1):
            if not builder.is_alive():
                raise SystemExit("the builder ended before there was an engine")
        beside.append(percentiles(run, NEIGHBOUR_S)[1])
        builder.kill()
        builder.join()
    ratios = sorted(one / other for one, other in zip(beside, alone, strict=True))
    return {
        "p99_us alone": statistics.median(alone),
        "p99_us beside": statistics.median(beside),
        "ratio": statistics.median(ratios),
        "least": ratios[0],
        "most": ratios[-1],
    }


def measure(
    runtime: TensorrtRuntime,
    versions: dict[str, ModelVersion],
    folder: Path,
    percentiles: Percentiles,
    requests: Requests,
) -> dict[str, Any]:
    """All of it. ``versions`` are called as in the table."""
    result, rows = dict[str, Any](), dict[str, float]()
    for name, version in versions.items():
        began = time.perf_counter()
        packed = engine_of(runtime, version, folder)
        built_s = time.perf_counter() - began
        for batch in (1, 16):
            p50 = {}
            for manner, asked, settings in (
                ("CUDA session", version, RuntimeSettings()),
                ("engine", packed, RuntimeSettings(packed=True)),
            ):
                made = runtime.load(asked, settings)
                p50[manner], _, rate = percentiles(requests(made, version, batch))
                rows[f"{name} {manner} {batch}"] = rate * batch
                made.close()
            result[f"engines: {name} batch {batch}"] = {
                "p50_us engine": p50["engine"], "p50_us CUDA session": p50["CUDA session"],
                "ratio": p50["engine"] / p50["CUDA session"], "rows_per_s": rows[f"{name} engine {batch}"],
                "built_s": built_s,
            }  # fmt: skip
    for less in ("fp16", "int8"):
        most = rows[f"resnet50-{less} engine 16"] / rows["resnet50 engine 16"]
        result[f"engines: resnet50 batch 16: rows a second of {less.upper()} over FP32"] = most
    neighbour = runtime.load(versions["digits"], RuntimeSettings())
    run = requests(neighbour, versions["digits"], 1)
    result["engines: a neighbour's p99 beside a build over without"] = beside_a_build(
        run, versions["resnet50"], folder, percentiles
    )
    neighbour.close()
    return result
