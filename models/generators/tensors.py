"""Models about datatypes, shapes, ranks and names: they compute next to nothing, exactly.

Every result here can be checked by hand; none of them rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from models.generators.graph import ELEMENT_TYPES, Shape, constant, model_bytes, node, tensor_port
from models.generators.package import ModelPackage, SampleModel

RANK_MAX = 6
MANY = 20


def identity(datatype: str) -> ModelPackage:
    """y = x, both [batch, size] of one wire datatype."""
    model = model_bytes(
        f"identity_{datatype.lower()}",
        [node("Identity", ["x"], ["y"])],
        inputs=[tensor_port("x", datatype, ["batch", "size"])],
        outputs=[tensor_port("y", datatype, ["batch", "size"])],
    )
    return ModelPackage(model=model)


def rank(dimensions: int) -> ModelPackage:
    """y = -x, FP32 with `dimensions` free dimensions."""
    shape = [f"d{axis}" for axis in range(dimensions)]
    model = model_bytes(
        f"rank_{dimensions}",
        [node("Neg", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", shape)],
        outputs=[tensor_port("y", "FP32", shape)],
    )
    return ModelPackage(model=model)


def scalar() -> ModelPackage:
    """y = x * x, FP32 of rank 0."""
    model = model_bytes(
        "scalar",
        [node("Mul", ["x", "x"], ["y"])],
        inputs=[tensor_port("x", "FP32", [])],
        outputs=[tensor_port("y", "FP32", [])],
    )
    return ModelPackage(model=model)


def no_batch() -> ModelPackage:
    """y = x + 1, FP32 [3, 2]: no free dimension at all."""
    model = model_bytes(
        "no_batch",
        [node("Add", ["x", "one"], ["y"])],
        inputs=[tensor_port("x", "FP32", [3, 2])],
        outputs=[tensor_port("y", "FP32", [3, 2])],
        constants=[constant("one", np.float32(1).reshape(1))],
    )
    return ModelPackage(model=model)


def variable() -> ModelPackage:
    """y = 2x [batch, length] and total = sum of x over length [batch, 1], FP32."""
    model = model_bytes(
        "variable",
        [
            node("Add", ["x", "x"], ["y"]),
            node("ReduceSum", ["x", "axes"], ["total"], keepdims=1),
        ],
        inputs=[tensor_port("x", "FP32", ["batch", "length"])],
        outputs=[tensor_port("y", "FP32", ["batch", "length"]), tensor_port("total", "FP32", ["batch", 1])],
        constants=[constant("axes", np.array([1], np.int64))],
    )
    return ModelPackage(model=model)


def reshape() -> ModelPackage:
    """y = x [batch, 4, 4] laid out as [batch, 16], FP32."""
    model = model_bytes(
        "reshape",
        [node("Reshape", ["x", "target"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["batch", 4, 4])],
        outputs=[tensor_port("y", "FP32", ["batch", 16])],
        constants=[constant("target", np.array([0, 16], np.int64))],
    )
    return ModelPackage(model=model)


def transpose() -> ModelPackage:
    """y = x transposed, FP32 [rows, columns] to [columns, rows]: free first dimensions that are not a batch."""
    model = model_bytes(
        "transpose",
        [node("Transpose", ["x"], ["y"], perm=[1, 0])],
        inputs=[tensor_port("x", "FP32", ["rows", "columns"])],
        outputs=[tensor_port("y", "FP32", ["columns", "rows"])],
    )
    return ModelPackage(model=model)


def repeated_symbol() -> ModelPackage:
    """y = a @ b, INT32 [n, m] by [m, n]: the same symbols in two inputs must mean the same numbers."""
    model = model_bytes(
        "repeated_symbol",
        [node("MatMul", ["a", "b"], ["y"])],
        inputs=[tensor_port("a", "INT32", ["n", "m"]), tensor_port("b", "INT32", ["m", "n"])],
        outputs=[tensor_port("y", "INT32", ["n", "n"])],
    )
    return ModelPackage(model=model)


def data_shape() -> ModelPackage:
    """y = indices of the non-zero elements of x: FP32 [length] to INT64 [1, count], a size known only after the run."""
    model = model_bytes(
        "data_shape",
        [node("NonZero", ["x"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["length"])],
        outputs=[tensor_port("y", "INT64", [1, "count"])],
    )
    return ModelPackage(model=model)


def add_sub() -> ModelPackage:
    """OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1, INT32 [batch, 16]."""
    shape: Shape = ["batch", 16]
    model = model_bytes(
        "add_sub",
        [node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])],
        inputs=[tensor_port("INPUT0", "INT32", shape), tensor_port("INPUT1", "INT32", shape)],
        outputs=[tensor_port("OUTPUT0", "INT32", shape), tensor_port("OUTPUT1", "INT32", shape)],
    )
    return ModelPackage(model=model)


def string_concat() -> ModelPackage:
    """y = a followed by b, element by element, BYTES [batch, size]."""
    shape = ["batch", "size"]
    model = model_bytes(
        "string_concat",
        [node("StringConcat", ["a", "b"], ["y"])],
        inputs=[tensor_port("a", "BYTES", shape), tensor_port("b", "BYTES", shape)],
        outputs=[tensor_port("y", "BYTES", shape)],
        opset=20,
    )
    return ModelPackage(model=model)


def optional_input() -> ModelPackage:
    """y = x + offset, FP32 [batch, 4]; offset [1] may be left out and is then 10."""
    model = model_bytes(
        "optional_input",
        [node("Add", ["x", "offset"], ["y"])],
        inputs=[tensor_port("x", "FP32", ["batch", 4]), tensor_port("offset", "FP32", [1])],
        outputs=[tensor_port("y", "FP32", ["batch", 4])],
        constants=[constant("offset", np.array([10], np.float32))],
    )
    return ModelPackage(model=model)


def many_io() -> ModelPackage:
    """OUT<i> = IN<i> + i for i from 00 to 19, INT64 [batch, 2]."""
    names = [f"{index:02d}" for index in range(MANY)]
    shape: Shape = ["batch", 2]
    model = model_bytes(
        "many_io",
        [node("Add", [f"IN{name}", f"step{name}"], [f"OUT{name}"]) for name in names],
        inputs=[tensor_port(f"IN{name}", "INT64", shape) for name in names],
        outputs=[tensor_port(f"OUT{name}", "INT64", shape) for name in names],
        constants=[constant(f"step{name}", np.array([int(name)], np.int64)) for name in names],
    )
    return ModelPackage(model=model)


def odd_names() -> ModelPackage:
    """y = x with names holding a space, a slash, a colon, quotes and letters beyond ASCII, FP32 [batch, 2]."""
    source, result = "in put/0:ä", "out\"put'{1}\u2192"
    model = model_bytes(
        "odd_names",
        [node("Identity", [source], [result])],
        inputs=[tensor_port(source, "FP32", ["batch", 2])],
        outputs=[tensor_port(result, "FP32", ["batch", 2])],
    )
    return ModelPackage(model=model)


def _identities() -> Iterator[SampleModel]:
    for datatype in ELEMENT_TYPES:
        yield SampleModel(
            name=f"identity_{datatype.lower()}",
            summary=f"y = x, {datatype} [batch, size]",
            build=partial(identity, datatype),
        )


def _ranks() -> Iterator[SampleModel]:
    for dimensions in range(1, RANK_MAX + 1):
        yield SampleModel(
            name=f"rank_{dimensions}",
            summary=f"y = -x, FP32 with {dimensions} free dimensions",
            build=partial(rank, dimensions),
        )


SAMPLES = (
    *_identities(),
    *_ranks(),
    SampleModel(name="scalar", summary="y = x * x, FP32 of rank 0", build=scalar),
    SampleModel(name="no_batch", summary="y = x + 1, FP32 [3, 2], all dimensions fixed", build=no_batch),
    SampleModel(
        name="variable", summary="y = 2x [batch, length], total = row sums [batch, 1]", build=variable
    ),
    SampleModel(name="reshape", summary="y = x [batch, 4, 4] as [batch, 16]", build=reshape),
    SampleModel(
        name="transpose", summary="y = x transposed, [rows, columns], not batchable", build=transpose
    ),
    SampleModel(name="repeated_symbol", summary="y = a @ b, INT32 [n, m] by [m, n]", build=repeated_symbol),
    SampleModel(
        name="data_shape",
        summary="y = indices of non-zero x, output size depends on values",
        build=data_shape,
    ),
    SampleModel(name="add_sub", summary="sum and difference of two INT32 [batch, 16] inputs", build=add_sub),
    SampleModel(
        name="string_concat", summary="y = a followed by b, BYTES [batch, size]", build=string_concat
    ),
    SampleModel(
        name="optional_input", summary="y = x + offset, offset may be left out (10)", build=optional_input
    ),
    SampleModel(name="many_io", summary="20 INT64 inputs to 20 outputs, OUT<i> = IN<i> + i", build=many_io),
    SampleModel(name="odd_names", summary="y = x under names with odd characters", build=odd_names),
)
