"""ONNX graphs from plain values: the only module of the generators that imports onnx.

Rules kept here: every file carries an IR version and an opset that onnxruntime 1.18 still reads, and the same arguments
always give the same bytes. Nothing here decides what a model computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

IR_VERSION: Final = 8
OPSET: Final = 17
ML_DOMAIN: Final = "ai.onnx.ml"

Shape = Sequence[int | str]
Node = NodeProto
Constant = TensorProto
Port = ValueInfoProto

ELEMENT_TYPES: Final[Mapping[str, int]] = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
"""Wire datatype name to ONNX element type."""


def node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", **attributes: Any
) -> Node:
    """One operator call, named after its first output; attributes may be numbers, strings, lists or a graph."""
    return helper.make_node(
        operator, list(inputs), list(outputs), name=outputs[0], domain=domain or None, **attributes
    )


def tensor_port(name: str, datatype: str, shape: Shape) -> Port:
    """A graph input or output: wire datatype, and a shape whose strings are free symbols."""
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], list(shape))


def sequence_port(name: str, datatype: str, shape: Shape) -> Port:
    """A sequence of tensors."""
    tensor = helper.make_tensor_type_proto(ELEMENT_TYPES[datatype], list(shape))
    return helper.make_value_info(name, helper.make_sequence_type_proto(tensor))


def optional_port(name: str, datatype: str, shape: Shape) -> Port:
    """An optional tensor."""
    tensor = helper.make_tensor_type_proto(ELEMENT_TYPES[datatype], list(shape))
    return helper.make_value_info(name, helper.make_optional_type_proto(tensor))


def map_port(name: str, key: str, value: str) -> Port:
    """A map from scalars of wire datatype `key` to scalars of wire datatype `value`."""
    scalar = helper.make_tensor_type_proto(ELEMENT_TYPES[value], [])
    return helper.make_value_info(name, helper.make_map_type_proto(ELEMENT_TYPES[key], scalar))


def map_sequence_port(name: str, key: str, value: str) -> Port:
    """A sequence of maps, as classifiers exported by other tools like to answer."""
    single = map_port(name, key, value).type
    return helper.make_value_info(name, helper.make_sequence_type_proto(single))


def constant(name: str, array: NDArray[Any]) -> Constant:
    """An initializer holding `array`; its numpy dtype decides the element type."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def external_constant(name: str, array: NDArray[Any], *, location: str, offset: int = 0) -> Constant:
    """An initializer whose bytes lie in the file `location`, a path relative to the model file, from `offset`."""
    element = constant(name, array[:0]).data_type
    tensor = TensorProto(name=name, data_type=element, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def subgraph(
    name: str, nodes: Sequence[Node], *, inputs: Sequence[Port], outputs: Sequence[Port]
) -> GraphProto:
    """The body of a control-flow operator; it may name values of the graph around it."""
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs))


def model_bytes(
    name: str,
    nodes: Sequence[Node],
    *,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: Sequence[Constant] = (),
    opset: int = OPSET,
    domains: Mapping[str, int] | None = None,
    check: bool = True,
) -> bytes:
    """A whole model file. `domains` are operator sets beyond the default one, name to version.

    Raises onnx.checker.ValidationError for a graph that breaks the ONNX rules, unless `check` is off because breaking
    them is the point.
    """
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), initializer=list(constants))
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    model = helper.make_model(graph, opset_imports=imports, producer_name="appliance-models")
    model.ir_version = IR_VERSION if opset <= OPSET else IR_VERSION + 1
    if check:
        onnx.checker.check_model(model)
    return model.SerializeToString(deterministic=True)
