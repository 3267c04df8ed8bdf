"""The models whose loading is measured: transformers with their weights in a file of their own, made on first use, and
the sentence-embedding model, fetched on first use."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

from appliance.config.repository import RepositoryConfig
from appliance.domain.digest import PIECE_BYTES, Digester, digest_of
from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, Tolerance, write_golden
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.domain.tensor import Datatype
from appliance.repository.model_directory import read_model_directory
from benchmarks.cache import ROOT, cache_directory
from benchmarks.models import ModelsUnavailable

TOKENS = 16


def transformer(megabytes: int) -> ModelVersion:
    """The transformer of about so many megabytes, with the digests of its pieces, and a digest, so that packed forms
    can be made of it."""
    root = cache_directory() / "transformers"
    name = f"transformer_{megabytes}"
    if not (root / name / "1").exists():
        _generate(root, megabytes)
    reading = read_model_directory(str(root), name, RepositoryConfig())
    if reading is None or not reading.servable:
        raise ModelsUnavailable(f"{name} cannot be served: {reading}")
    version = reading.servable[0].model
    if version.weights is None:
        raise ModelsUnavailable(f"{name} has no file of weights")
    weights = _with_digests(version.weights)
    return replace(version, weights=weights, digest=weights.digest, forms=str(root / "forms"))


def embedding() -> ModelVersion:
    """The sentence-embedding model of 90 MB, with a golden set of its own answers, so that a packed form can be made of
    it. Raises ModelsUnavailable where its weights can not be fetched."""
    root = cache_directory() / "embedding"
    if not (root / "minilm").exists():
        _command("models.import_minilm", str(root))
        _write_golden(root / "minilm")
    reading = read_model_directory(str(root), "minilm", RepositoryConfig())
    if reading is None or not reading.servable:
        raise ModelsUnavailable(f"minilm cannot be served: {reading}")
    version = reading.servable[0].model
    digest = digest_of(Path(version.path).read_bytes())
    return replace(version, digest=digest, forms=str(root / "forms"))


def _write_golden(home: Path) -> None:
    tokens, ones = np.arange(1000, 1000 + TOKENS, dtype=np.int64)[None], np.ones((1, TOKENS), np.int64)
    session = onnxruntime.InferenceSession(home / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    (answer,) = session.run(["sentence_embedding"], {"input_ids": tokens, "attention_mask": ones})
    file = TensorFile()
    inputs = (("input_ids", tokens), ("attention_mask", ones))
    case = GoldenCase(
        name="numbers as tokens",
        inputs=tuple(file.add(name, Datatype.INT64, each.shape, each.tobytes()) for name, each in inputs),
        outputs=(file.add("sentence_embedding", Datatype.FP32, answer.shape, answer.tobytes()),),
    )
    golden = GoldenSet(
        cases=(case,), tolerances={"sentence_embedding": Tolerance(absolute=1e-4, relative=1e-3)}
    )
    write_golden(str(home / "golden"), golden, file.data())


def _generate(root: Path, megabytes: int) -> None:
    _command("models.generators.transformer", str(root), str(megabytes))


def _command(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if made.returncode:
        raise ModelsUnavailable(f"{' '.join(command)} failed: {made.stderr.strip()[-400:]}")


def _with_digests(file: WeightsFile) -> WeightsFile:
    digester = Digester()
    with open(file.path, "rb") as source:
        while data := source.read(PIECE_BYTES):
            digester.update(data)
    found = digester.finish()
    return replace(file, digest=found.digest, pieces=found.pieces)
