"""Models that a careful server must refuse, and models that load and then misbehave when asked to.

Each one is wrong in exactly one way, and its summary says which.
"""

from __future__ import annotations

import numpy as np

from models.generators.compute import external_model, external_weight, mlp
from models.generators.graph import (
    ML_DOMAIN,
    constant,
    map_port,
    map_sequence_port,
    model_bytes,
    node,
    optional_port,
    sequence_port,
    subgraph,
    tensor_port,
)
from models.generators.package import Expectation, ModelPackage, SampleModel

OUTSIDE_FILE = "../../secret.bin"
WRONG_CONFIG = """\
name: "wrong_config"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_INT32 dims: [ 7 ] } ]
output [ { name: "z" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""


def sequence_out() -> ModelPackage:
    """y = [x, x], a sequence of FP32 tensors."""
    model = model_bytes(
        "sequence_out",
        [node("SequenceConstruct", ["x", "x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["batch", 2])],
        outputs=[sequence_port("y", "FP32", ["batch", 2])],
    )
    return ModelPackage(model=model)


def map_out() -> ModelPackage:
    """y = one map from class number to score for each row of x, FP32 [batch, 3]."""
    model = model_bytes(
        "map_out",
        [node("ZipMap", ["x"], ["y"], domain=ML_DOMAIN, classlabels_int64s=[0, 1, 2])],
        inputs=[tensor_port("x", "FP32", ["batch", 3])],
        outputs=[map_sequence_port("y", "INT64", "FP32")],
        domains={ML_DOMAIN: 3},
    )
    return ModelPackage(model=model)


def map_in() -> ModelPackage:
    """y = the values of the map x under the keys a and b, FP32 [1, 2]."""
    model = model_bytes(
        "map_in",
        [node("DictVectorizer", ["x"], ["y"], domain=ML_DOMAIN, string_vocabulary=["a", "b"])],
        inputs=[map_port("x", "BYTES", "FP32")],
        outputs=[tensor_port("y", "FP32", [1, 2])],
        domains={ML_DOMAIN: 3},
    )
    return ModelPackage(model=model)


def optional_type() -> ModelPackage:
    """y = the tensor inside the optional x, FP32 [batch, 2]."""
    model = model_bytes(
        "optional_type",
        [node("OptionalGetElement", ["x"], ["y"])],
        inputs=[optional_port("x", "FP32", ["batch", 2])],
        outputs=[tensor_port("y", "FP32", ["batch", 2])],
    )
    return ModelPackage(model=model)


def not_onnx() -> ModelPackage:
    """Text where a model should be."""
    return ModelPackage(model=b"This is a text file and not an ONNX model.\n")


def truncated() -> ModelPackage:
    """The first half of a good model."""
    whole = mlp().model
    return ModelPackage(model=whole[: len(whole) // 2])


def external_outside() -> ModelPackage:
    """Weights in a file two directories up, which exists and has the right size."""
    return ModelPackage(
        model=external_model(OUTSIDE_FILE), side_files={OUTSIDE_FILE: external_weight().tobytes()}
    )


def unknown_operator() -> ModelPackage:
    """An operator that no runtime has, of a domain that it has."""
    model = model_bytes(
        "unknown_operator",
        [node("Frobnicate", ["x"], ["y"], domain="com.microsoft")],
        inputs=[tensor_port("x", "FP32", ["batch", 2])],
        outputs=[tensor_port("y", "FP32", ["batch", 2])],
        domains={"com.microsoft": 1},
    )
    return ModelPackage(model=model)


def wrong_config() -> ModelPackage:
    """The `mlp` graph with a config of another input type, another size and an output it does not have."""
    return ModelPackage(model=mlp().model, config=WRONG_CONFIG)


def huge_alloc() -> ModelPackage:
    """y = sum of a tensor of ones of shape x, INT64 [rank] to FP32 []: a few bytes in ask for any amount of memory."""
    one = constant("one", np.ones(1, np.float32))
    model = model_bytes(
        "huge_alloc",
        [node("ConstantOfShape", ["x"], ["ones"], value=one), node("ReduceSum", ["ones"], ["y"], keepdims=0)],
        inputs=[tensor_port("x", "INT64", ["rank"])],
        outputs=[tensor_port("y", "FP32", [])],
    )
    return ModelPackage(model=model)


def endless() -> ModelPackage:
    """y = x, FP32 [1], but the run never ends when x is above zero."""
    body = subgraph(
        "spin",
        [node("Identity", ["going"], ["still_going"]), node("Identity", ["value"], ["same_value"])],
        inputs=[
            tensor_port("turn", "INT64", []),
            tensor_port("going", "BOOL", []),
            tensor_port("value", "FP32", [1]),
        ],
        outputs=[tensor_port("still_going", "BOOL", []), tensor_port("same_value", "FP32", [1])],
    )
    model = model_bytes(
        "endless",
        [
            node("Greater", ["x", "zero"], ["positive"]),
            node("Reshape", ["positive", "no_dimensions"], ["start"]),
            node("Loop", ["", "start", "x"], ["y"], body=body),
        ],
        inputs=[tensor_port("x", "FP32", [1])],
        outputs=[tensor_port("y", "FP32", [1])],
        constants=[
            constant("zero", np.zeros(1, np.float32)),
            constant("no_dimensions", np.zeros(0, np.int64)),
        ],
    )
    return ModelPackage(model=model)


SAMPLES = (
    SampleModel(
        name="sequence_out",
        summary="answers a sequence of tensors",
        build=sequence_out,
        expectation=Expectation.UNSERVABLE_TYPE,
    ),
    SampleModel(
        name="map_out",
        summary="answers a sequence of maps",
        build=map_out,
        expectation=Expectation.UNSERVABLE_TYPE,
    ),
    SampleModel(name="map_in", summary="takes a map", build=map_in, expectation=Expectation.UNSERVABLE_TYPE),
    SampleModel(
        name="optional_type",
        summary="takes an optional tensor",
        build=optional_type,
        expectation=Expectation.UNSERVABLE_TYPE,
    ),
    SampleModel(
        name="not_onnx", summary="text, not a model", build=not_onnx, expectation=Expectation.RUNTIME_REFUSES
    ),
    SampleModel(
        name="truncated",
        summary="half a model file",
        build=truncated,
        expectation=Expectation.RUNTIME_REFUSES,
    ),
    SampleModel(
        name="unknown_operator",
        summary="calls an operator no runtime has",
        build=unknown_operator,
        expectation=Expectation.RUNTIME_REFUSES,
    ),
    SampleModel(
        name="external_outside",
        summary=f"reads its weights from {OUTSIDE_FILE}",
        build=external_outside,
        expectation=Expectation.UNSAFE_PATH,
    ),
    SampleModel(
        name="wrong_config",
        summary="config.pbtxt contradicts the graph",
        build=wrong_config,
        expectation=Expectation.CONFIG_DISAGREES,
    ),
    SampleModel(name="huge_alloc", summary="allocates a tensor of the shape it is given", build=huge_alloc),
    SampleModel(name="endless", summary="y = x, never ends when x > 0", build=endless),
)
