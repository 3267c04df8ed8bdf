"""The models under load: made by the repository's own generators, laid out as a model directory.

Models are calibrated to this machine when they are made, so they are kept in the cache and reused by later runs;
`--fresh-models` makes them anew.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cache import ROOT, cache_directory

GENERATOR = ROOT / "models" / "generate.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkModel:
    """A generated model, and what a server that batches may do with it."""

    source: str
    max_batch_size: int


BENCHMARK_MODELS = {
    "mlp": BenchmarkModel(source="mlp", max_batch_size=32),
    "burn_2ms": BenchmarkModel(source="burn_2ms", max_batch_size=8),
    "burn_2ms_of_4": BenchmarkModel(source="burn_2ms", max_batch_size=4),
    "burn_10ms": BenchmarkModel(source="burn_10ms", max_batch_size=8),
    "big_mean": BenchmarkModel(source="big_mean", max_batch_size=8),
    "detector_mean": BenchmarkModel(source="detector_mean", max_batch_size=8),
    "identity_fp32": BenchmarkModel(source="identity_fp32", max_batch_size=8),
    "identity_bytes": BenchmarkModel(source="identity_bytes", max_batch_size=8),
}

CONFIG = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: {max_batch_size}
dynamic_batching {{ }}
"""


class ModelsUnavailable(RuntimeError):
    """The generator could not make a model; carries what it said."""


def model_file(name: str, *, fresh: bool = False) -> Path:
    """The ONNX file of a benchmark model, generated on first use."""
    source = BENCHMARK_MODELS[name].source
    root = cache_directory() / "models"
    file = root / source / "1" / "model.onnx"
    if fresh or not file.exists():
        _generate(source, root)
    return file


def _generate(source: str, root: Path) -> None:
    shutil.rmtree(root / source, ignore_errors=True)
    command = [sys.executable, str(GENERATOR), str(root), source]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if made.returncode:
        raise ModelsUnavailable(f"{' '.join(command)} failed: {made.stderr.strip()[-400:]}")


def lay_out(root: Path, names: tuple[str, ...], *, copies: int = 1) -> tuple[str, ...]:
    """Write `root/NAME/1/model.onnx` with a config for each model; with copies, NAME-0000 and so on.

    Returns the names the server will know them by. Copies are real files, as separate models would be.
    """
    served: list[str] = []
    for name in names:
        for served_name in _copy_names(name, copies):
            _place(root / served_name, name, served_name)
            served.append(served_name)
    return tuple(served)


def _copy_names(name: str, copies: int) -> list[str]:
    return [name] if copies == 1 else [f"{name}-{index:04d}" for index in range(copies)]


def _place(directory: Path, name: str, served_name: str) -> None:
    version = directory / "1"
    version.mkdir(parents=True)
    shutil.copyfile(model_file(name), version / "model.onnx")
    batch = BENCHMARK_MODELS[name].max_batch_size
    (directory / "config.pbtxt").write_text(CONFIG.format(name=served_name, max_batch_size=batch))
