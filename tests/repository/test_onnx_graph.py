"""Our reader of ONNX files against the onnx package, and against files that are wrong."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from appliance.domain.errors import ArtefactError
from appliance.repository.onnx import graph
from appliance.repository.onnx.summary import GraphPort, GraphSummary, PortKind
from models.generate import MODELS
from models.generators.package import Expectation
from tests.repository.onnx_files import (
    copying,
    external_tensor,
    model_of,
    part,
    plain_model,
    port,
    summary,
)

SAMPLES = [
    sample
    for sample in MODELS.values()
    if not sample.name.startswith("burn_") and sample.name not in ("not_onnx", "truncated")
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_agrees_with_the_onnx_package(sample: object) -> None:
    assert hasattr(sample, "build")
    data = sample.build().model
    assert _told(summary(data)) == _expected(onnx.load_model_from_string(data))


def test_agrees_on_a_file_larger_than_any_window() -> None:
    generator = np.random.default_rng(7)
    tensors = [
        numpy_helper.from_array(generator.random((size, 50)).astype(np.float32), f"weight{index}")
        for index, size in enumerate((1, 3, 400, 20, 1000, 7))
    ]
    nodes = [copying("x" if index == 0 else f"v{index}", f"v{index + 1}") for index in range(3000)]
    model = model_of([port("x", ["n"])], [port("v3000", ["n"])], nodes, tensors)
    data = model.SerializeToString()
    assert len(data) > 4 * 64 * 1024
    assert _told(summary(data)) == _expected(model)


def test_reading_leaves_nothing_for_the_collector() -> None:
    data = plain_model().SerializeToString()
    gc.collect()
    for _ in range(100):
        summary(data)
    assert gc.collect() < 100


def test_scalar_fields_in_runs_are_stepped_over_exactly() -> None:
    """Attributes written number by number, with a graph and an outside tensor hidden between them."""
    generator = np.random.default_rng(11)
    attribute = AttributeProto(name="numbers", type=AttributeProto.INTS)
    attribute.ints.extend(generator.integers(-(1 << 62), 1 << 62, 30_000).tolist())
    attribute.floats.extend(generator.random(30_000).tolist())
    attribute.t.CopyFrom(external_tensor("hidden", "hidden.bin"))
    attribute.strings.extend([b"word"] * 100)
    node = copying("x", "y")
    node.attribute.append(attribute)
    model = model_of([port("x", [1])], [port("y", [1])], [node])
    assert [reference.location for reference in summary(model.SerializeToString()).external] == ["hidden.bin"]


def test_tensor_data_in_unpacked_fields_is_stepped_over() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT32, dims=[5])
    body = tensor.SerializeToString() + b"".join(b"\x28" + bytes((number,)) for number in range(5))
    outside = external_tensor("v", "v.bin").SerializeToString() + b"\x28\x07" * 3
    model = plain_model().SerializeToString()
    data = model + part(7, part(5, body) + part(5, outside))
    assert onnx.load_model_from_string(data).graph.initializer[0].int32_data == [0, 1, 2, 3, 4]
    found = summary(data)
    assert found.initializers == {"w", "v"}
    assert [reference.tensor for reference in found.external] == ["v"]


def test_symbols_numbers_and_unknown_dimensions() -> None:
    model = plain_model(["batch", 3, None])
    model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=-1)
    model.graph.input[0].type.tensor_type.shape.dim.add(dim_param="")
    model.graph.input.append(port("unranked", None))
    model.graph.input.append(port("scalar", []))
    inputs = summary(model.SerializeToString()).inputs
    assert [each.dims for each in inputs] == [("batch", 3, None, None, None), None, ()]


def test_a_field_given_twice_is_merged_as_protobuf_does() -> None:
    first = plain_model().SerializeToString()
    second = ModelProto()
    second.graph.output.append(port("more", [2]))
    second.graph.initializer.append(external_tensor("w", "w.bin"))
    data = first + second.SerializeToString()
    merged = onnx.load_model_from_string(data)
    found = summary(data)
    assert _told(found) == _expected(merged)
    assert [each.name for each in found.outputs] == ["y", "more"]


def test_a_tensor_split_over_two_fields_keeps_its_reference() -> None:
    whole = external_tensor("split", "split.bin")
    flag = TensorProto()
    flag.data_location = TensorProto.EXTERNAL
    whole.ClearField("data_location")
    attribute = AttributeProto(name="value", type=AttributeProto.TENSOR).SerializeToString()
    attribute += part(5, whole.SerializeToString()) + part(5, flag.SerializeToString())
    node = copying("x", "y").SerializeToString() + part(5, attribute)
    data = plain_model().SerializeToString() + part(7, part(1, node))
    assert (
        onnx.load_model_from_string(data).graph.node[1].attribute[0].t.external_data[0].value == "split.bin"
    )
    assert [reference.location for reference in summary(data).external] == ["split.bin"]


def _hide_in_initializer(model: ModelProto, tensor: TensorProto) -> None:
    model.graph.initializer.append(tensor)


def _hide_in_sparse_values(model: ModelProto, tensor: TensorProto) -> None:
    model.graph.sparse_initializer.add().values.CopyFrom(tensor)


def _hide_in_sparse_indices(model: ModelProto, tensor: TensorProto) -> None:
    model.graph.sparse_initializer.add().indices.CopyFrom(tensor)


def _hide_in_attribute(model: ModelProto, tensor: TensorProto) -> None:
    model.graph.node[0].attribute.add(name="a").t.CopyFrom(tensor)


def _hide_in_attribute_list(model: ModelProto, tensor: TensorProto) -> None:
    model.graph.node[0].attribute.add(name="a").tensors.append(tensor)


def _hide_in_sparse_attribute(model: ModelProto, tensor: TensorProto) -> None:
    model.graph.node[0].attribute.add(name="a").sparse_tensor.values.CopyFrom(tensor)


def _hide_in_sparse_attribute_list(model: ModelProto, tensor: TensorProto) -> None:
    model.graph.node[0].attribute.add(name="a").sparse_tensors.add().indices.CopyFrom(tensor)


def _hide_in_subgraph(model: ModelProto, tensor: TensorProto) -> None:
    inner = model.graph.node[0].attribute.add(name="a").g
    inner.node.add(op_type="If").attribute.add(name="b").graphs.add().initializer.append(tensor)


def _hide_in_function(model: ModelProto, tensor: TensorProto) -> None:
    model.functions.add(name="f").node.add(op_type="Constant").attribute.add(name="a").t.CopyFrom(tensor)


def _hide_in_function_default(model: ModelProto, tensor: TensorProto) -> None:
    model.functions.add(name="f").attribute_proto.add(name="a").t.CopyFrom(tensor)


def _hide_in_training_start(model: ModelProto, tensor: TensorProto) -> None:
    model.training_info.add().initialization.initializer.append(tensor)


def _hide_in_training_step(model: ModelProto, tensor: TensorProto) -> None:
    model.training_info.add().algorithm.node.add(op_type="C").attribute.add(name="a").t.CopyFrom(tensor)


HIDING_PLACES = [
    _hide_in_initializer,
    _hide_in_sparse_values,
    _hide_in_sparse_indices,
    _hide_in_attribute,
    _hide_in_attribute_list,
    _hide_in_sparse_attribute,
    _hide_in_sparse_attribute_list,
    _hide_in_subgraph,
    _hide_in_function,
    _hide_in_function_default,
    _hide_in_training_start,
    _hide_in_training_step,
]


@pytest.mark.parametrize("hide", HIDING_PLACES, ids=lambda hide: hide.__name__.removeprefix("_hide_in_"))
def test_external_data_is_found_wherever_a_tensor_can_stand(
    hide: Callable[[ModelProto, TensorProto], None],
) -> None:
    model = plain_model()
    hide(model, external_tensor("secret", "../secret.bin", offset=16, length=32))
    (reference,) = summary(model.SerializeToString()).external
    assert (reference.tensor, reference.location) == ("secret", "../secret.bin")
    assert (reference.offset, reference.length) == (16, 32)


def test_every_message_that_holds_tensors_is_known() -> None:
    """When a new version of ONNX puts tensors or graphs somewhere else, this says so."""
    holders = set()
    for message in onnx.onnx_ml_pb2.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            held = field.message_type.name if field.message_type else ""
            if held in ("TensorProto", "SparseTensorProto", "GraphProto", "AttributeProto", "NodeProto"):
                holders.add(f"{message.name}.{field.name}")
    assert holders == {
        "ModelProto.graph",
        "TrainingInfoProto.initialization",
        "TrainingInfoProto.algorithm",
        "FunctionProto.node",
        "FunctionProto.attribute_proto",
        "GraphProto.node",
        "GraphProto.initializer",
        "GraphProto.sparse_initializer",
        "NodeProto.attribute",
        "AttributeProto.t",
        "AttributeProto.tensors",
        "AttributeProto.g",
        "AttributeProto.graphs",
        "AttributeProto.sparse_tensor",
        "AttributeProto.sparse_tensors",
        "SparseTensorProto.values",
        "SparseTensorProto.indices",
    }


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is empty"),
        (b"This is a text file.\n", "is not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"\x20\0\0\0ORTM" + bytes(100), "ORT format"),
        (b"\x08\x08", "it holds no graph"),
        (b"\x08\x08\x12\x03abc", "it holds no graph"),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "more than ten bytes"),
        (b"\x00\x01", "impossible number 0"),
        (b"\x08\x08\x3a\xff\xff\xff\xff\x0f", "is a damaged or truncated ONNX model"),
        (b"\x08\x08\x3a", "cut off"),
        (b"\x08\x08\x3b", "unknown wire type 3"),
        (model_of([port("x", [1])], []).SerializeToString(), "graph without outputs"),
    ],
)
def test_files_that_are_no_models(data: bytes, text: str) -> None:
    with pytest.raises(ArtefactError, match=text):
        summary(data)


@pytest.mark.parametrize("keep", [1, 2, 20, 100, 3000, 18_000, 36_000])
def test_a_truncated_model_is_said_to_be_one(keep: int) -> None:
    data = MODELS["mlp"].build().model
    with pytest.raises(ArtefactError, match=r"truncated|not an ONNX model"):
        summary(data[:keep])


def _nested(depth: int) -> bytes:
    """A model whose graph holds a graph that holds a graph; put together by hand, as protobuf has its own bound."""
    graph = b""
    for _ in range(depth - 1):
        graph = part(1, part(5, part(6, graph)))
    return part(7, graph) + plain_model().SerializeToString()


def test_nesting_is_bounded() -> None:
    assert summary(_nested(32)).outputs
    with pytest.raises(ArtefactError, match="nested more than 32 deep"):
        summary(_nested(33))


def test_the_number_of_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = plain_model().SerializeToString()
    monkeypatch.setattr(graph, "FIELDS_MAX", 10)
    with pytest.raises(ArtefactError, match="more than 10 fields"):
        summary(data)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensor: tensor.ClearField("external_data"), "without a location"),
        (
            lambda tensor: tensor.external_data.add(key="offset", value="-1"),
            "offset '-1' is not a whole number",
        ),
        (
            lambda tensor: tensor.external_data.add(key="length", value="1e3"),
            "length '1e3' is not a whole number",
        ),
        (lambda tensor: tensor.external_data.add(key="length", value="9" * 30), "is not a whole number"),
        (
            lambda tensor: tensor.external_data.add(key="location", value="b"),
            "two different values of 'location'",
        ),
    ],
)
def test_references_that_name_no_single_place(change: Callable[[TensorProto], object], text: str) -> None:
    tensor = external_tensor("w", "a")
    change(tensor)
    model = plain_model()
    model.graph.initializer.append(tensor)
    flaws = summary(model.SerializeToString()).flaws
    assert any(text in flaw.text and flaw.where == "graph > initializer 0" for flaw in flaws)


def test_a_name_that_is_not_text_is_refused() -> None:
    data = plain_model().SerializeToString() + part(7, part(12, part(1, b"\xff\xfe")))
    with pytest.raises(ArtefactError, match="not UTF-8"):
        summary(data)


def test_kinds_of_values_are_told_apart() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    types = {
        PortKind.SEQUENCE: helper.make_sequence_type_proto(tensor),
        PortKind.OPTIONAL: helper.make_optional_type_proto(tensor),
        PortKind.MAP: helper.make_map_type_proto(TensorProto.INT64, tensor),
        PortKind.SPARSE_TENSOR: helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [1]),
        PortKind.NOTHING: onnx.TypeProto(),
    }
    outputs = [helper.make_value_info(kind.name, each) for kind, each in types.items()]
    found = summary(model_of([port("x", [1])], outputs).SerializeToString())
    assert [each.kind for each in found.outputs] == list(types)


Told = dict[str, object]


def _told(found: GraphSummary) -> Told:
    """The part of a summary that the onnx package tells, too."""
    assert found.flaws == []
    return {
        "ir_version": found.ir_version,
        "opsets": tuple(found.opsets),
        "inputs": tuple(found.inputs),
        "outputs": tuple(found.outputs),
        "initializers": found.initializers,
        "operators": found.operators,
        "nodes": found.nodes,
        "external": tuple((each.tensor, each.location, each.offset, each.length) for each in found.external),
    }


def _expected(model: ModelProto) -> Told:
    """The same as the onnx package sees the model."""
    graph = model.graph
    names = {tensor.name for tensor in graph.initializer}
    names |= {tensor.values.name for tensor in graph.sparse_initializer}
    operators = Counter(
        ("" if node.domain == "ai.onnx" else node.domain, node.op_type) for node in _all_nodes(graph)
    )
    return {
        "ir_version": model.ir_version,
        "opsets": tuple((each.domain, each.version) for each in model.opset_import),
        "inputs": tuple(map(_expected_port, graph.input)),
        "outputs": tuple(map(_expected_port, graph.output)),
        "initializers": frozenset(names),
        "operators": dict(operators),
        "nodes": operators.total(),
        "external": tuple(
            (
                tensor.name,
                said["location"],
                int(said.get("offset", 0)),
                int(said["length"]) if "length" in said else None,
            )
            for tensor in graph.initializer
            if tensor.data_location == TensorProto.EXTERNAL
            for said in [{entry.key: entry.value for entry in tensor.external_data}]
        ),
    }


def _all_nodes(graph: GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)
            for inner in attribute.graphs:
                yield from _all_nodes(inner)


def _expected_port(value: ValueInfoProto) -> GraphPort:
    kind = value.type.WhichOneof("value")
    kinds = {"tensor_type": PortKind.TENSOR, "sequence_type": PortKind.SEQUENCE, "map_type": PortKind.MAP}
    tensor = value.type.tensor_type
    dims = None
    if tensor.HasField("shape"):
        dims = tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim
        )
    return GraphPort(
        name=value.name, kind=kinds.get(kind, PortKind.OPTIONAL), element_type=tensor.elem_type, dims=dims
    )


def test_samples_include_what_cannot_be_served() -> None:
    assert any(sample.expectation is Expectation.UNSERVABLE_TYPE for sample in SAMPLES)
