"""The models whose loading is measured: transformers with their weights in a file of their own, made on first use."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from appliance.digest import PIECE_BYTES, Digester
from appliance.model import ModelVersion, WeightsFile
from appliance.repository.model_directory import read_model_directory
from appliance.repository.settings import RepositoryConfig
from benchmarks.cache import ROOT, cache_directory
from benchmarks.models import ModelsUnavailable


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


def _generate(root: Path, megabytes: int) -> None:
    command = [sys.executable, "-m", "models.generators.transformer", str(root), str(megabytes)]
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
