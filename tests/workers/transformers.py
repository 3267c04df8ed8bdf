"""A transformer with its weights in a file of its own, of three pieces, as a version that can be verified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from appliance.config.repository import RepositoryConfig
from appliance.domain.digest import Digester
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.repository.model_directory import read_model_directory
from appliance.workers.port import (
    ModelLoaded,
    WeightsEvicted,
    WeightsPagedIn,
    WorkerExited,
)
from models.generators.transformer import SEQUENCE, SIZES, write_transformer
from tests.workers.bench import Bench, Tensor, tensor

MEGABYTES = 10
PIECES = 3
ANSWER_BYTES = SEQUENCE * 100 * 4
DIGEST = "ab" * 32
REQUEST = tensor(
    np.random.default_rng(3).standard_normal((1, SEQUENCE, SIZES[MEGABYTES].width), dtype=np.float32)
)


def write_version(root: Path, name: str = "transformer") -> ModelVersion:
    """A new one below ``root``, with the digests of its pieces."""
    write_transformer(root / name, SIZES[MEGABYTES])
    return read_version(root, name)


def read_version(root: Path, name: str = "transformer") -> ModelVersion:
    """What the repository makes of it, with the digests of its pieces."""
    reading = read_model_directory(str(root), name, RepositoryConfig())
    assert reading is not None
    assert reading.servable, reading
    version = reading.servable[0].model
    assert version.weights is not None
    return replace(version, weights=with_digests(version.weights))


def with_digests(file: WeightsFile) -> WeightsFile:
    digester = Digester()
    digester.update(Path(file.path).read_bytes())
    found = digester.finish()
    return WeightsFile(path=file.path, size=found.size, digest=found.digest, pieces=found.pieces)


def answer(bench: Bench, worker: int, model: int, request: Tensor = REQUEST) -> bytes:
    """What the model says to a request."""
    placed = bench.place([request], [0], capacity=2 * ANSWER_BYTES)
    (result,) = bench.run(worker, model, placed)
    assert not result.status.failed, result.error
    (raw,) = bench.read(placed, result)
    bench.free(placed)
    return raw


def flip_bit(path: str, position: int) -> None:
    """Change one bit of a file, in place."""
    with open(path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def load(bench: Bench, worker: int, version: ModelVersion, wish: LoadWish, model: int = 100) -> ModelLoaded:
    """Load, and wait for what is still on its way."""
    bench.call(bench.pool.load, worker, model, version, wish)
    loaded = bench.event(ModelLoaded)
    if wish.early:
        filled = bench.event(WeightsPagedIn)
        size = 0 if version.weights is None else version.weights.size
        assert (filled.model, filled.nbytes, filled.failure) == (model, size, None)
    return loaded


def evict_weights(bench: Bench, worker: int, model: int = 100) -> None:
    bench.call(bench.pool.evict_weights, worker, model)
    bench.event(WeightsEvicted)


def page_in(bench: Bench, worker: int, *, model: int = 100) -> WeightsPagedIn:
    bench.call(bench.pool.page_in, worker, model)
    return bench.event(WeightsPagedIn)


def stop(bench: Bench, worker: int) -> None:
    bench.call(bench.pool.stop, worker)
    assert bench.event(WorkerExited).cause is ExitCause.STOPPED


def private_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))
