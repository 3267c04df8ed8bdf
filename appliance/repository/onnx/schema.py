"""Keys of the fields of onnx.proto that are read here, named after their messages and fields."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from appliance.repository.onnx.protobuf import length_key, varint_key

MODEL_IR_VERSION: Final = varint_key(1)
MODEL_GRAPH: Final = length_key(7)
MODEL_OPSET: Final = length_key(8)
MODEL_TRAINING: Final = length_key(20)
MODEL_FUNCTION: Final = length_key(25)
OPSET_DOMAIN: Final = length_key(1)
OPSET_VERSION: Final = varint_key(2)
TRAINING_PARTS: Final = MappingProxyType({length_key(1): "initialization", length_key(2): "algorithm"})
FUNCTION_NAME: Final = length_key(1)
FUNCTION_NODE: Final = length_key(7)
FUNCTION_OPSET: Final = length_key(9)
FUNCTION_DOMAIN: Final = length_key(10)
FUNCTION_ATTRIBUTE: Final = length_key(11)
FUNCTION_OVERLOAD: Final = length_key(13)
GRAPH_NODE: Final = length_key(1)
GRAPH_INITIALIZER: Final = length_key(5)
GRAPH_INPUT: Final = length_key(11)
GRAPH_OUTPUT: Final = length_key(12)
GRAPH_SPARSE_INITIALIZER: Final = length_key(15)
NODE_NAME: Final = length_key(3)
NODE_OPERATOR: Final = length_key(4)
NODE_ATTRIBUTE: Final = length_key(5)
NODE_DOMAIN: Final = length_key(7)
NODE_OVERLOAD: Final = length_key(8)
ATTRIBUTE_NAME: Final = length_key(1)
ATTRIBUTE_TENSOR: Final = length_key(5)
ATTRIBUTE_GRAPH: Final = length_key(6)
ATTRIBUTE_TENSORS: Final = length_key(10)
ATTRIBUTE_GRAPHS: Final = length_key(11)
ATTRIBUTE_SPARSE: Final = length_key(22)
ATTRIBUTE_SPARSES: Final = length_key(23)
ATTRIBUTE_PARTS: Final = frozenset(
    {
        ATTRIBUTE_TENSOR,
        ATTRIBUTE_GRAPH,
        ATTRIBUTE_TENSORS,
        ATTRIBUTE_GRAPHS,
        ATTRIBUTE_SPARSE,
        ATTRIBUTE_SPARSES,
    }
)
SPARSE_VALUES: Final = length_key(1)
SPARSE_INDICES: Final = length_key(2)
SPARSE_DIMS: Final = varint_key(3)
SPARSE_PACKED_DIMS: Final = length_key(3)
