"""One walk finds every tensor that an ONNX file can hold, wherever it stands, as protobuf's own reflection does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from models.generate import MODELS
from tests.repository.onnx_files import part, plain_model, summary, tensors_of


def _tensor(name: str, kind: int, dims: Sequence[int], outside: bool) -> TensorProto:
    tensor = TensorProto(name=name, data_type=kind, dims=dims)
    if outside:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"{name}.bin")
    return tensor


TENSORS = st.builds(
    _tensor,
    st.text(max_size=4),
    st.sampled_from([TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT4, TensorProto.BFLOAT16]),
    st.lists(st.integers(0, 3), max_size=3),
    st.booleans(),
)
SPARSES = st.builds(
    lambda values, indices: onnx.SparseTensorProto(values=values, indices=indices), TENSORS, TENSORS
)


def _attribute(
    tensors: list[TensorProto],
    sparses: list[onnx.SparseTensorProto],
    graphs: list[GraphProto],
    numbers: list[int],
) -> AttributeProto:
    """All kinds at once, which protobuf allows."""
    attribute = AttributeProto(name="a", ints=numbers, floats=[0.5] * len(numbers), strings=[b"s"])
    if tensors:
        attribute.t.CopyFrom(tensors[0])
        attribute.tensors.extend(tensors[1:])
    if sparses:
        attribute.sparse_tensor.CopyFrom(sparses[0])
        attribute.sparse_tensors.extend(sparses[1:])
    if graphs:
        attribute.g.CopyFrom(graphs[0])
        attribute.graphs.extend(graphs[1:])
    return attribute


def _node(attributes: list[AttributeProto]) -> NodeProto:
    return NodeProto(op_type="If", name="n", attribute=attributes)


def _graphs(inner: st.SearchStrategy[GraphProto]) -> st.SearchStrategy[GraphProto]:
    attributes = st.builds(
        _attribute,
        st.lists(TENSORS, max_size=2),
        st.lists(SPARSES, max_size=2),
        st.lists(inner, max_size=2),
        st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3),
    )
    return st.builds(
        lambda nodes, initializers, sparses: GraphProto(
            node=nodes, initializer=initializers, sparse_initializer=sparses
        ),
        st.lists(st.builds(_node, st.lists(attributes, max_size=2)), max_size=2),
        st.lists(TENSORS, max_size=2),
        st.lists(SPARSES, max_size=1),
    )


GRAPHS = st.recursive(st.just(GraphProto()), _graphs, max_leaves=4)


def _model(graph: GraphProto, functions: list[GraphProto], trainings: list[GraphProto]) -> ModelProto:
    model = plain_model()
    model.graph.MergeFrom(graph)
    for number, body in enumerate(functions):
        function = model.functions.add(name=f"f{number}", domain="own", node=body.node)
        for node in body.node:
            function.attribute_proto.extend(node.attribute)
    for body in trainings:
        model.training_info.add(initialization=body, algorithm=body)
    return model


@settings(max_examples=60)
@given(GRAPHS, st.lists(GRAPHS, max_size=2), st.lists(GRAPHS, max_size=1))
def test_the_walk_finds_the_tensors_that_protobuf_finds(
    graph: GraphProto, functions: list[GraphProto], trainings: list[GraphProto]
) -> None:
    model = _model(graph, functions, trainings)
    found = summary(model.SerializeToString())
    expected = list(tensors_of(model))
    assert len(found.tensors) == len(expected)
    assert Counter(
        (each.name, each.element_type, each.dims, each.outside) for each in found.tensors
    ) == Counter((each.name, each.data_type, tuple(each.dims), each.data_location == 1) for each in expected)
    assert Counter(each.location for each in found.external) == Counter(
        f"{each.name}.bin" for each in expected if each.data_location == 1
    )


@pytest.mark.parametrize("sample", ["mlp", "external", "optional_input"])
def test_the_walk_finds_the_tensors_of_real_models(sample: str) -> None:
    data = MODELS[sample].build().model
    expected = list(tensors_of(onnx.load_model_from_string(data)))
    found = summary(data)
    assert [(each.name, each.dims, each.inline_bytes) for each in found.tensors] == [
        (each.name, tuple(each.dims), len(each.raw_data)) for each in expected
    ]
    for each, tensor in zip(found.tensors, expected, strict=True):
        if not each.outside:
            assert each.data_bytes == numpy_helper.to_array(tensor).nbytes


def test_dimensions_may_be_packed() -> None:
    packed = part(1, b"\x02\x80\x01\x03") + b"\x10\x01" + part(8, b"w") + part(9, bytes(4 * 2 * 128 * 3))
    data = plain_model().SerializeToString() + part(7, part(5, packed))
    (tensor,) = summary(data).tensors
    assert (tensor.dims, tensor.data_bytes) == ((2, 128, 3), tensor.inline_bytes)
    assert tuple(onnx.load_model_from_string(data).graph.initializer[0].dims) == (2, 128, 3)
