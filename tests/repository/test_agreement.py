"""Graph and configuration together: what is batched, what is optional, and which graphs cannot be served at all."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype
from appliance.repository.agreement import is_batchable
from appliance.repository.onnx.summary import GraphPort, PortKind
from models.generate import MODELS
from models.generators.package import Expectation
from tests.repository.classifiers import classifier, tree
from tests.repository.conftest import ReadModel
from tests.repository.onnx_files import Dims, copying, model_of, plain_model, port
from tests.repository.outcomes import only_problem, served


def _ports(*shapes: Dims | None) -> list[GraphPort]:
    return [
        GraphPort(
            name=f"p{index}",
            kind=PortKind.TENSOR,
            element_type=1,
            dims=None if dims is None else tuple(dims),
        )
        for index, dims in enumerate(shapes)
    ]


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ([["n", 4]], [["n", 10]], True),
        ([["n"]], [["n"]], True),
        ([["n", "m"], ["n", 3]], [["n"], ["n", "m"]], True),
        ([[None, 4]], [[None]], True),
        ([["n", 4]], [["m", 4]], False),
        ([["n", 4]], [[None, 4]], False),
        ([["n", 4], ["m", 4]], [["n", 4]], False),
        ([[2, 4]], [["n", 4]], False),
        ([["n", 4]], [[1, 4]], False),
        ([[2, 4]], [[2, 4]], False),
        ([["n", "n"]], [["n", 4]], False),
        ([["n", 4]], [["n", "n"]], False),
        ([["n", 4]], [[]], False),
        ([["n", 4]], [None], False),
        ([], [["n"]], False),
    ],
)
def test_what_is_batchable(inputs: list[Dims | None], outputs: list[Dims | None], expected: bool) -> None:
    assert is_batchable(_ports(*inputs), _ports(*outputs)) is expected


def test_a_batchable_graph_is_batched_as_configured(read_model: ReadModel) -> None:
    model = served(read_model(default_max_batch_size=5))
    assert (model.max_batch_size, model.batching, model.inputs[0].shape) == (5, Batching(), (4,))
    model = served(read_model(default_max_batch_size=0))
    assert (model.max_batch_size, model.batching, model.inputs[0].shape) == (0, None, (-1, 4))


def test_a_graph_without_batch_keeps_its_whole_shape(read_model: ReadModel) -> None:
    model = served(read_model(graph=plain_model([2, "n", None])))
    assert (model.max_batch_size, model.batching, model.inputs[0].shape) == (0, None, (2, -1, -1))


@pytest.mark.parametrize("dims", [[2, 4], []])
def test_a_config_cannot_batch_what_has_no_batch(read_model: ReadModel, dims: Dims) -> None:
    found = read_model("max_batch_size: 8", graph=plain_model(dims))
    assert {problem.key for problem in found.problems} == {"max_batch_size"}
    assert "whose first dimension cannot be a batch" in found.problems[0].text


def test_a_config_is_believed_when_the_graph_names_first_dimensions_differently(
    read_model: ReadModel,
) -> None:
    graph = model_of([port("x", ["n", 4])], [port("y", ["other", 4])])
    assert served(read_model("max_batch_size: 8", graph=graph)).max_batch_size == 8
    assert served(read_model("name: 'm'", graph=graph)).max_batch_size == 0


def test_a_config_may_narrow_free_dimensions(read_model: ReadModel) -> None:
    config = 'max_batch_size: 4 input { name: "x" dims: [ 7 ] } output { name: "y" dims: [ -1 ] }'
    model = served(read_model(config, graph=plain_model(["batch", "length"])))
    assert (model.inputs[0].shape, model.outputs[0].shape) == ((7,), (-1,))


def test_a_shape_that_the_graph_leaves_open_must_be_given(read_model: ReadModel) -> None:
    graph = model_of([port("x", None)], [port("y", None)])
    found = read_model(graph=graph)
    assert [problem.text for problem in found.problems] == [
        f"the graph does not say the shape of '{name}'; give dims for it in config.pbtxt" for name in "xy"
    ]
    config = 'input { name: "x" dims: [ -1, 3 ] } output { name: "y" dims: [ -1 ] }'
    assert served(read_model(config, graph=graph)).inputs[0].shape == (-1, 3)


def _with_default(ir_version: int) -> object:
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    return model_of(
        [port("x", ["n", 4]), port("w", [4])], [port("y", ["n", 4])], [node], [weight], ir_version=ir_version
    )


def test_an_input_with_an_initializer_is_optional(read_model: ReadModel) -> None:
    model = served(read_model(graph=_with_default(8)))
    assert [(spec.name, spec.optional) for spec in model.inputs] == [("x", False), ("w", True)]
    assert model.max_batch_size == 0


def test_weights_that_an_old_file_lists_are_no_inputs(read_model: ReadModel) -> None:
    model = served(read_model(graph=_with_default(3)))
    assert [spec.name for spec in model.inputs] == ["x"]
    assert model.max_batch_size == 32


def test_a_config_may_leave_out_or_demand_an_optional_input(read_model: ReadModel) -> None:
    model = served(read_model('max_batch_size: 8 input { name: "x" }', graph=_with_default(8)))
    assert [spec.name for spec in model.inputs] == ["x"]
    config = 'input [ { name: "w" optional: false }, { name: "x" } ]'
    model = served(read_model(config, graph=_with_default(8)))
    assert [(spec.name, spec.optional) for spec in model.inputs] == [("x", False), ("w", False)]


def test_a_config_may_serve_fewer_outputs(read_model: ReadModel) -> None:
    graph = model_of([port("x", ["n"])], [port("a", ["n"]), port("b", ["n"]), port("c", ["n"])])
    model = served(read_model('output [ { name: "c" }, { name: "a" } ]', graph=graph))
    assert [spec.name for spec in model.outputs] == ["a", "c"]


@pytest.mark.parametrize("datatype", Datatype)
def test_every_datatype_of_the_wire_is_served(read_model: ReadModel, datatype: Datatype) -> None:
    graph = MODELS[f"identity_{datatype.wire.lower()}"].build().model
    model = served(read_model(graph=graph))
    assert {spec.datatype for spec in (*model.inputs, *model.outputs)} == {datatype}


@pytest.mark.parametrize("number", [*range(17, 29), TensorProto.COMPLEX64, TensorProto.COMPLEX128])
def test_types_the_wire_does_not_have_are_refused_by_name(read_model: ReadModel, number: int) -> None:
    found = read_model(graph=model_of([port("x", ["n"], number)], [port("y", ["n"])]))
    name = TensorProto.DataType.Name(number).lower()
    problem = only_problem(found)
    assert problem.file == "m/1/model.onnx"
    assert problem.text == f"input 'x' has {name}, which the protocol cannot carry"


def test_every_onnx_type_is_known() -> None:
    """When ONNX gets a new element type, this says so; 28 is the last one with a name here."""
    assert max(TensorProto.DataType.values()) == 28


@pytest.mark.parametrize("name", ["sequence_out", "map_out", "map_in", "optional_type"])
def test_values_that_are_no_tensors_are_refused(read_model: ReadModel, name: str) -> None:
    assert MODELS[name].expectation is Expectation.UNSERVABLE_TYPE
    problem = only_problem(read_model(graph=MODELS[name].build().model))
    assert "only tensors can be served" in problem.text


def test_probabilities_in_maps_name_what_to_export_anew(read_model: ReadModel) -> None:
    """What converters of scikit-learn and LightGBM put behind a classifier unless they are told not to."""
    nodes = [
        helper.make_node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
        helper.make_node("Identity", ["x"], ["y"]),
    ]
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    outputs = [port("y", ["n", 2]), helper.make_value_info("p", maps)]
    problem = only_problem(read_model(graph=model_of([port("x", ["n", 2])], outputs, nodes)))
    assert problem.text == (
        "output 'p' is a sequence, which ZipMap makes of probabilities; only tensors can be served: convert the model "
        "anew without ZipMap (zipmap=False of onnxmltools, options={'zipmap': False} of skl2onnx)"
    )


def _twice(value: ValueInfoProto) -> list[ValueInfoProto]:
    return [value, value]


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        (_twice(port("y", ["n"])), "the graph has two outputs called 'y'"),
        ([port("", ["n"])], "the graph has an output without a name"),
        ([port("y", ["n"] * 9)], "output 'y' has 9 dimensions; at most 8 are served"),
        (
            [helper.make_value_info("y", helper.make_tensor_type_proto(0, ["n"]))],
            "output 'y' has no element type",
        ),
        ([ValueInfoProto(name="y")], "output 'y' is a value without a type; only tensors can be served"),
    ],
)
def test_graphs_that_cannot_be_served(
    read_model: ReadModel, outputs: list[ValueInfoProto], text: str
) -> None:
    found = read_model(graph=model_of([port("x", ["n"])], outputs))
    assert any(text in problem.text for problem in found.problems), found.problems
    assert not found.servable


FAKE = """
backend: "fake"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "z" data_type: TYPE_INT64 dims: [ ] optional: true }
output { name: "y" data_type: TYPE_STRING dims: [ 2 ] }
dynamic_batching { preferred_batch_size: 4 }
parameters { key: "mode" value { string_value: "crash" } }
"""


def test_another_runtime_takes_everything_from_the_config(read_model: ReadModel) -> None:
    model = served(read_model(FAKE, graph=b"not looked at", runtimes=("onnx", "fake")))
    assert (model.platform, model.backend, model.runtime) == ("", "fake", "fake")
    assert [(spec.name, spec.datatype, spec.shape, spec.optional) for spec in model.inputs] == [
        ("x", Datatype.FP32, (-1,), False),
        ("z", Datatype.INT64, (), True),
    ]
    assert model.outputs[0].datatype is Datatype.BYTES
    assert model.batching == Batching(preferred_batch_size=(4,))
    assert (model.file_bytes, model.parameters) == (len(b"not looked at"), {"mode": "crash"})
    assert model.path.endswith("/m/1")


def test_another_runtime_needs_a_whole_config(read_model: ReadModel) -> None:
    config = 'backend: "fake" input { name: "x" } input { name: "x" data_type: TYPE_FP32 dims: 1 } max_batch_size: 1'
    found = read_model(config, runtimes=("fake",))
    assert {(problem.key, problem.text) for problem in found.problems} == {
        ("output", "is missing; the backend 'fake' cannot tell its outputs"),
        ("input[0].data_type", "is needed where there is no graph to tell it"),
        ("input[0].dims", "is needed where there is no graph to tell it"),
        ("input[1]", "'x' is given twice"),
    }


def test_a_runtime_that_is_off_is_refused(read_model: ReadModel) -> None:
    found = read_model('backend: "onnxruntime"', runtimes=("fake",))
    assert only_problem(found).text == "'onnxruntime' is not enabled; enabled are: fake"
    assert not read_model(runtimes=("fake",)).servable


@pytest.mark.parametrize("operator", ["NonZero", "Unique", "NonMaxSuppression", "Compress"])
@pytest.mark.parametrize(("first", "batched"), [(None, False), ("n", True)])
def test_dimensions_without_a_name_are_no_batch_where_an_operator_counts(
    read_model: ReadModel, operator: str, first: str | None, batched: bool
) -> None:
    """The output is as long as what was found, and no name says otherwise."""
    nodes = [helper.make_node(operator, ["x"], ["found"]), helper.make_node("Identity", ["x"], ["y"])]
    graph = model_of([port("x", [first, 4])], [port("y", [first, 2])], nodes)
    assert (served(read_model(graph=graph)).max_batch_size > 0) is batched


@pytest.mark.parametrize(
    ("config", "operator", "assumed"),
    [
        ("", "Neg", True),
        ("dynamic_batching { }", "Neg", False),
        ("max_batch_size: 8 dynamic_batching { }", "Neg", False),
        ("max_batch_size: 0", "Neg", False),
        ("", "DynamicQuantizeLinear", False),
    ],
)
def test_who_says_that_rows_stand_alone(
    read_model: ReadModel, config: str, operator: str, assumed: bool
) -> None:
    """The graph's dimensions alone, unless the configuration does; and where rows are rounded together on purpose, it
    is not looked at."""
    graph = model_of([port("x", ["n", 4])], [port("y", ["n", 4])], [helper.make_node(operator, ["x"], ["y"])])
    assert served(read_model(config, graph=graph)).rows_assumed is assumed


@pytest.mark.parametrize("rows", ["N", None])
@pytest.mark.parametrize("label", [[1], ["M"], [None]])
def test_labels_of_a_classifier_are_one_for_each_row_whatever_their_shape_says(
    read_model: ReadModel, rows: str | None, label: Dims
) -> None:
    """As the operator has it; converters are less exact."""
    model = served(read_model(graph=classifier(rows, label)))
    assert model.max_batch_size > 0
    assert model.rows_assumed, "a worker tries whether it is so"
    assert [each.shape for each in model.outputs] == [(), (2,)]
    model = served(read_model("max_batch_size: 8 dynamic_batching { }", graph=classifier(rows, label)))
    assert (model.max_batch_size, model.batching, model.rows_assumed) == (8, Batching(), False)


ROW_SUM = helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=1)
LABEL = helper.make_tensor("fixed", TensorProto.INT64, [1], [3])
SHARES = helper.make_tensor("fixed", TensorProto.FLOAT, [1, 2], [0.5, 0.5])


@pytest.mark.parametrize(
    "graph",
    [
        classifier(4),
        classifier(label=[1, 1]),
        classifier(shares=[1, 2, 1]),
        classifier(
            nodes=[tree(), copying("fixed", "label"), copying("shares", "probabilities")], tensors=[LABEL]
        ),
        classifier(
            nodes=[tree(), copying("found", "label"), copying("fixed", "probabilities")], tensors=[SHARES]
        ),
        classifier(nodes=[ROW_SUM, tree("sum", "label", "probabilities")]),
        classifier(nodes=[tree(shares="s"), tree("s", "label", "probabilities")]),
    ],
    ids=[
        "fixed rows",
        "label of two axes",
        "shares of three",
        "constant label",
        "constant shares",
        "sum",
        "two",
    ],
)
def test_what_else_may_answer_is_no_batch(read_model: ReadModel, graph: ModelProto) -> None:
    assert served(read_model(graph=graph)).max_batch_size == 0
