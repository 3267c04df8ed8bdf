"""Models that cost something: a small network, a large tensor, weights in a second file.

Weights come from a fixed seed, so that the same name is always the same function.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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
from models.generators.package import ModelPackage, SampleModel

MLP_WIDTHS = (64, 64, 64, 10)
MLP_SEED = 20240501
IMAGE_SHAPE = (3, 224, 224)
DETECTOR_SHAPE = (3, 640, 640)
EXTERNAL_WIDTHS = (32, 8)
EXTERNAL_FILE = "weights.bin"


def mlp_weights() -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]:
    """(weight [inputs, outputs], bias [outputs]) of each layer of `mlp`, FP32."""
    generator = np.random.default_rng(MLP_SEED)
    layers = []
    for inputs, outputs in itertools.pairwise(MLP_WIDTHS):
        weight = generator.standard_normal((inputs, outputs)) / np.sqrt(inputs)
        layers.append((weight.astype(np.float32), generator.standard_normal(outputs).astype(np.float32)))
    return tuple(layers)


def dense_layers(
    layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]], *, source: str, result: str
) -> tuple[list[Node], list[Constant]]:
    """Gemm layers with ReLU between them, from value `source` [batch, inputs] to value `result` [batch, outputs]."""
    nodes: list[Node] = []
    constants: list[Constant] = []
    value = source
    for index, (weight, bias) in enumerate(layers):
        last = index == len(layers) - 1
        linear = result if last else f"linear{index}"
        nodes.append(node("Gemm", [value, f"weight{index}", f"bias{index}"], [linear]))
        constants += [constant(f"weight{index}", weight), constant(f"bias{index}", bias)]
        if not last:
            value = f"hidden{index}"
            nodes.append(node("Relu", [linear], [value]))
    return nodes, constants


def mlp() -> ModelPackage:
    """y = a three-layer perceptron of x, FP32 [batch, 64] to [batch, 10]."""
    nodes, constants = dense_layers(mlp_weights(), source="x", result="y")
    model = model_bytes(
        "mlp",
        nodes,
        inputs=[tensor_port("x", "FP32", ["batch", MLP_WIDTHS[0]])],
        outputs=[tensor_port("y", "FP32", ["batch", MLP_WIDTHS[-1]])],
        constants=constants,
    )
    return ModelPackage(model=model)


def big_mean() -> ModelPackage:
    """mean = per-channel mean of image, FP32 [batch, 3, 224, 224] (602,112 bytes a row) to [batch, 3]."""
    return _channel_mean("big_mean", IMAGE_SHAPE)


def detector_mean() -> ModelPackage:
    """The same of a picture as detectors take it, FP32 [batch, 3, 640, 640] (4,915,200 bytes a row)."""
    return _channel_mean("detector_mean", DETECTOR_SHAPE)


def _channel_mean(name: str, shape: tuple[int, ...]) -> ModelPackage:
    model = model_bytes(
        name,
        [node("ReduceMean", ["image"], ["mean"], axes=[2, 3], keepdims=0)],
        inputs=[tensor_port("image", "FP32", ["batch", *shape])],
        outputs=[tensor_port("mean", "FP32", ["batch", shape[0]])],
    )
    return ModelPackage(model=model)


def external_weight() -> NDArray[np.float32]:
    """The matrix [32, 8] that `external` keeps in its second file."""
    return np.arange(np.prod(EXTERNAL_WIDTHS), dtype=np.float32).reshape(EXTERNAL_WIDTHS)


def external_model(location: str) -> bytes:
    """y = x @ weight, FP32 [batch, 32] to [batch, 8]; the weight's bytes are in the file `location`."""
    return model_bytes(
        "external",
        [node("MatMul", ["x", "weight"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["batch", EXTERNAL_WIDTHS[0]])],
        outputs=[tensor_port("y", "FP32", ["batch", EXTERNAL_WIDTHS[1]])],
        constants=[external_constant("weight", external_weight(), location=location)],
        check=False,  # the checker wants the second file on disk; the tests load the written model instead
    )


def external() -> ModelPackage:
    """`external_model` with its weights beside the model file."""
    return ModelPackage(
        model=external_model(EXTERNAL_FILE), side_files={EXTERNAL_FILE: external_weight().tobytes()}
    )


SAMPLES = (
    SampleModel(name="mlp", summary="64-64-64-10 perceptron, FP32 x [batch, 64] to y [batch, 10]", build=mlp),
    SampleModel(
        name="big_mean", summary="channel means of FP32 [batch, 3, 224, 224], 600 KB a row", build=big_mean
    ),
    SampleModel(
        name="detector_mean",
        summary="channel means of FP32 [batch, 3, 640, 640], 4.9 MB a row",
        build=detector_mean,
    ),
    SampleModel(
        name="external", summary="y = x @ weight, the weight in a second file beside it", build=external
    ),
)
