"""Three versions of one classifier as signed packages: the first one, a fine-tuned one, and one with a flaw that shows
on some requests only."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.generators.compute import dense_layers
from models.generators.graph import constant, model_bytes, node, tensor_port
from models.generators.package import ModelPackage, write_package

APPLIANCE: Final = str(Path(sys.executable).with_name("appliance"))
NAME: Final = "classifier"
INPUTS: Final = 64
CLASSES: Final = 10
WIDTHS: Final = (INPUTS, 512, 512, CLASSES)
SEED: Final = 20
FINE_TUNING: Final = 0.005
"""How much weights move, relative to their size, from the first version to the second."""
BAD_FROM: Final = 0.5
"""The third version fails for rows whose first element is greater."""

Layers = tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]


def make_packages(folder: Path, key: Path) -> dict[int, Path]:
    """The versions by number, packed and signed with ``key`` in ``folder``. Raises CalledProcessError."""
    graphs = {
        1: classifier(weights(0.0)),
        2: classifier(weights(FINE_TUNING)),
        3: flawed(weights(FINE_TUNING)),
    }
    return {version: pack(folder, key, NAME, version, graph) for version, graph in graphs.items()}


def pack(folder: Path, key: Path, name: str, version: int, graph: bytes) -> Path:
    """The package of one version, packed and signed with ``key`` in ``folder``. Raises CalledProcessError."""
    home = write_package(
        ModelPackage(model=graph), name, folder / f"source-{name}-{version}", version=version
    )
    package = folder / f"{name}-{version}.model"
    subprocess.run(
        [APPLIANCE, "model", "pack", str(home / str(version)), "--name", name,
         "--version", str(version), "--key", str(key), "--no-proof", "-o", str(package)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return package


def weights(moved: float, widths: Sequence[int] = WIDTHS) -> Layers:
    """Layers from INPUTS to CLASSES of these ``widths``, ``moved`` by so much from where training began."""
    generator, tuning = np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        weight = (generator.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)
        bias = generator.standard_normal(outputs).astype(np.float32)
        change = (1 + moved * tuning.standard_normal((inputs, outputs))).astype(np.float32)
        layers.append((weight * change, bias))
    return tuple(layers)


def classifier(layers: Layers) -> bytes:
    """scores = the layers applied to x, FP32 [batch, INPUTS] to [batch, CLASSES]."""
    nodes, constants = dense_layers(layers, source="x", result="scores")
    return model_bytes(
        NAME,
        nodes,
        inputs=[tensor_port("x", "FP32", ["batch", INPUTS])],
        outputs=[tensor_port("scores", "FP32", ["batch", CLASSES])],
        constants=constants,
    )


def flawed(layers: Layers) -> bytes:
    """The same with a table that is too short: it is looked up at 1 where x[:, 0] is greater than BAD_FROM."""
    nodes, constants = dense_layers(layers, source="x", result="raw")
    nodes += [
        node("Slice", ["x", "zero", "one", "axis"], ["first"]),
        node("Greater", ["first", "bad_from"], ["high"]),
        node("Cast", ["high"], ["place"], to=7),
        node("Gather", ["table", "place"], ["offset"]),
        node("Add", ["raw", "offset"], ["scores"]),
    ]
    whole = np.int64
    return model_bytes(
        NAME,
        nodes,
        inputs=[tensor_port("x", "FP32", ["batch", INPUTS])],
        outputs=[tensor_port("scores", "FP32", ["batch", CLASSES])],
        constants=[
            *constants,
            constant("zero", np.array([0], whole)),
            constant("one", np.array([1], whole)),
            constant("axis", np.array([1], whole)),
            constant("bad_from", np.array(BAD_FROM, np.float32)),
            constant("table", np.zeros(1, np.float32)),
        ],
    )
