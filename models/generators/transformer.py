"""Transformer encoders of any size with their weights in a file of their own, as packages have them.

FP32 x [batch, 16, width] to y [batch, 16, 100]; weights from a fixed seed, written in the order in which inference
touches them, each at a multiple of 4 KiB, so that a large model is never whole in memory. For tests and benchmarks of
loading: `python -m models.generators.transformer OUT_DIR 10 100 500` writes `OUT_DIR/transformer_10` and so on, by
megabytes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.generators.graph import (
    Constant,
    Node,
    constant,
    external_constant,
    model_bytes,
    node,
    tensor_port,
)

GRAPH_FILE: Final = "graph.onnx"
WEIGHTS_FILE: Final = "weights.bin"
ALIGNMENT: Final = 4096
SEQUENCE: Final = 16
HEADS: Final = 8
CLASSES: Final = 100
SEED: Final = 20260501

CONFIG: Final = """\
backend: "onnxruntime"
default_model_filename: "graph.onnx"
max_batch_size: 8
"""


class Size(NamedTuple):
    """Width of a token and number of layers."""

    width: int
    layers: int


SIZES: Final[Mapping[int, Size]] = {
    1: Size(64, 5),
    10: Size(256, 3),
    100: Size(512, 8),
    500: Size(1024, 10),
    2000: Size(2048, 10),
}
"""By size of the weights in megabytes, about."""


class _Writer:
    """Collects the graph and writes the weights out as they are made."""

    def __init__(self, file: BinaryIO, seed: int) -> None:
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []
        self._file = file
        self._random = np.random.default_rng(seed)

    def call(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(node(operator, inputs, [name], **attributes))
        return name

    def small(self, name: str, values: object, datatype: type) -> str:
        self.constants.append(constant(name, np.asarray(values, datatype)))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Normal values, scaled so that the signal keeps its size."""
        return self._external(
            name, self._random.standard_normal(shape, np.float32) / np.sqrt(np.float32(shape[0]))
        )

    def ones(self, name: str, width: int) -> str:
        return self._external(name, np.ones(width, np.float32))

    def zeros(self, name: str, width: int) -> str:
        return self._external(name, np.zeros(width, np.float32))

    def pad(self) -> None:
        """To the next multiple of ALIGNMENT."""
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))

    def _external(self, name: str, array: NDArray[np.float32]) -> str:
        self.pad()
        offset = self._file.tell()
        self.constants.append(external_constant(name, array, location=WEIGHTS_FILE, offset=offset))
        self._file.write(array.tobytes())
        return name


def write_transformer(home: Path, size: Size, *, version: int = 1, seed: int = SEED) -> Path:
    """Write `home/config.pbtxt`, `home/VERSION/graph.onnx` and `weights.bin`; returns `home`. Same arguments, same
    bytes. The version directory appears when it is complete."""
    partial = home / f".{version}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    with (partial / WEIGHTS_FILE).open("wb") as file:
        writer = _Writer(file, seed)
        graph = _encoder(writer, size)
        writer.pad()
    (partial / GRAPH_FILE).write_bytes(graph)
    (home / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    os.replace(partial, home / str(version))
    return home


def _encoder(writer: _Writer, size: Size) -> bytes:
    width = size.width
    writer.small("heads", [-1, SEQUENCE, HEADS, width // HEADS], np.int64)
    writer.small("tokens", [-1, SEQUENCE, width], np.int64)
    writer.small("scale", 1 / np.sqrt(width // HEADS), np.float32)
    hidden = "x"
    for number in range(size.layers):
        hidden = _layer(writer, f"layer{number}", hidden, width)
    writer.call("MatMul", [hidden, writer.weight("head", width, CLASSES)], "y")
    return model_bytes(
        "transformer",
        writer.nodes,
        inputs=[tensor_port("x", "FP32", ["batch", SEQUENCE, width])],
        outputs=[tensor_port("y", "FP32", ["batch", SEQUENCE, CLASSES])],
        constants=writer.constants,
        check=False,  # the checker would look for the weights beside a file that is not there yet
    )


def _layer(writer: _Writer, name: str, source: str, width: int) -> str:
    call, weight = writer.call, writer.weight
    normal = _norm(writer, f"{name}.norm1", source, width)
    parts = {}
    for part in "qkv":
        projected = _affine(writer, f"{name}.{part}", normal, width, width)
        split = call("Reshape", [projected, "heads"], f"{name}.{part}.split")
        order = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
        parts[part] = call("Transpose", [split], f"{name}.{part}.heads", perm=order)
    scores = call("MatMul", [parts["q"], parts["k"]], f"{name}.scores")
    scaled = call("Mul", [scores, "scale"], f"{name}.scaled")
    shares = call("Softmax", [scaled], f"{name}.shares", axis=-1)
    mixed = call("MatMul", [shares, parts["v"]], f"{name}.mixed")
    together = call("Transpose", [mixed], f"{name}.together", perm=[0, 2, 1, 3])
    flat = call("Reshape", [together, "tokens"], f"{name}.flat")
    attended = call("Add", [source, _affine(writer, f"{name}.out", flat, width, width)], f"{name}.attended")
    normal = _norm(writer, f"{name}.norm2", attended, width)
    wide = call("Relu", [_affine(writer, f"{name}.up", normal, width, 4 * width)], f"{name}.relu")
    narrow = call("MatMul", [wide, weight(f"{name}.down.weight", 4 * width, width)], f"{name}.down.product")
    down = call("Add", [narrow, writer.zeros(f"{name}.down.bias", width)], f"{name}.down")
    return call("Add", [attended, down], f"{name}.result")


def _affine(writer: _Writer, name: str, source: str, inputs: int, outputs: int) -> str:
    product = writer.call(
        "MatMul", [source, writer.weight(f"{name}.weight", inputs, outputs)], f"{name}.product"
    )
    return writer.call("Add", [product, writer.zeros(f"{name}.bias", outputs)], name)


def _norm(writer: _Writer, name: str, source: str, width: int) -> str:
    inputs = [source, writer.ones(f"{name}.scale", width), writer.zeros(f"{name}.shift", width)]
    return writer.call("LayerNormalization", inputs, name, axis=-1)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("sizes", type=int, nargs="+", choices=sorted(SIZES), help="megabytes of weights")
    arguments = parser.parse_args()
    for megabytes in arguments.sizes:
        print(write_transformer(arguments.out / f"transformer_{megabytes}", SIZES[megabytes]))


if __name__ == "__main__":
    main()
