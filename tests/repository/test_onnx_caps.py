"""How much a graph may hold, and how much of it its reader remembers."""

from __future__ import annotations

import os

import numpy as np
import pytest
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from appliance.domain.errors import ArtefactError
from appliance.repository.onnx.firewall import GraphLimits, graph_flaws
from appliance.repository.onnx.graph import read_graph
from appliance.repository.onnx.summary import GraphSummary
from tests.repository.onnx_files import copying, model_of, part, plain_model, port, summary


def _many_operators() -> ModelProto:
    return model_of(
        [port("x", [1])],
        [port("y", [1])],
        [copying("x", "y"), *(helper.make_node(f"Op{n}", ["x"], [f"z{n}"]) for n in range(30))],
    )


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (GraphLimits(max_operators=20), "has 21 different operators; at most 20"),
        (GraphLimits(max_weight_bytes=79), "has 80 bytes of tensors; at most 79"),
        (GraphLimits(max_functions=1), "has 2 functions; at most 1"),
        (GraphLimits(max_opset=16), "asks for operator set 17 of 'ai.onnx'; 1 to 16"),
        (GraphLimits(max_name_bytes=16), "has a name of 17 bytes; at most 16"),
        (
            GraphLimits(
                max_weight_bytes=80, max_functions=2, max_opset=17, max_name_bytes=17, max_operators=31
            ),
            "",
        ),
        (GraphLimits(), ""),
    ],
)
def test_caps(config: GraphLimits, text: str) -> None:
    model = _many_operators()
    model.functions.extend([FunctionProto(name="a", domain="d"), FunctionProto(name="b", domain="d")])
    model.graph.initializer.extend(
        numpy_helper.from_array(np.zeros(4, np.float32), f"w{n}") for n in range(5)
    )
    model.graph.node[0].name = "n" * 17
    data = model.SerializeToString()
    found = [str(flaw) for flaw in graph_flaws(_read(data, config), config)]
    assert len(found) == bool(text)
    assert text in "".join(found)


def _read(data: bytes, config: GraphLimits) -> GraphSummary:
    descriptor = os.memfd_create("model")
    try:
        os.write(descriptor, data)
        return read_graph(descriptor, config)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (GraphLimits(max_graph_bytes=100), "at most 100 are read"),
        (GraphLimits(max_nodes=30), "has more than 30 nodes"),
        (GraphLimits(max_tensors=4), "has more than 4 tensors"),
        (GraphLimits(max_depth=1), "nested more than 1 deep"),
        (GraphLimits(max_ports=1), "more than 1 inputs"),
    ],
)
def test_caps_that_end_the_reading(config: GraphLimits, text: str) -> None:
    model = _many_operators()
    model.graph.input.append(port("second", [1]))
    model.graph.initializer.extend([TensorProto(name="w")] * 5)
    model.graph.node[0].attribute.add(name="a").g.CopyFrom(GraphProto(name="inner"))
    with pytest.raises(ArtefactError, match=text):
        _read(model.SerializeToString(), config)


def test_attributes_of_one_node_are_bounded() -> None:
    node = part(4, b"Op") + part(5, b"") * 5000
    with pytest.raises(ArtefactError, match="more than 4096 attributes of one node"):
        summary(plain_model().SerializeToString() + part(7, part(1, node)))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (GraphLimits(max_tensors=9), "more than 9 tensors and graphs in one attribute"),
        (GraphLimits(max_nodes=9), "more than 9 nodes in one function"),
    ],
)
def test_what_is_remembered_for_later_is_bounded(config: GraphLimits, text: str) -> None:
    model = plain_model()
    if config.max_tensors == 9:
        model.graph.node[0].attribute.add(name="a").tensors.extend([TensorProto()] * 10)
    else:
        model.functions.add(name="f", domain="d").node.extend([NodeProto(op_type="Op")] * 10)
    with pytest.raises(ArtefactError, match=text):
        _read(model.SerializeToString(), config)


def test_a_type_in_very_many_pieces_is_read_as_one() -> None:
    piece = part(2, part(1, part(2, part(1, b""))))  # one more dimension of which nothing is known
    whole = part(2, part(1, b"\x08\x01"))
    data = plain_model().SerializeToString() + part(7, part(12, part(1, b"many") + whole + piece * 20_000))
    found = summary(data).outputs[1]
    assert (found.name, found.element_type, found.dims) == ("many", 1, (None,) * 20_000)


def test_a_name_without_end_is_not_read() -> None:
    data = plain_model().SerializeToString() + part(7, part(1, part(4, b"x" * (2 << 20))))
    with pytest.raises(ArtefactError, match="the text at byte"):
        summary(data)


def test_names_have_a_limit_in_all() -> None:
    node = part(1, part(4, b"x" * (1 << 20)))
    with pytest.raises(ArtefactError, match="bytes of names"):
        summary(plain_model().SerializeToString() + part(7, node * 65))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (GraphLimits(max_nodes=6), "has more than 6 nodes"),
        (GraphLimits(max_tensors=2), "has more than 2 tensors"),
        (GraphLimits(max_depth=1), "nested more than 1 deep"),
        (GraphLimits(max_functions=1), "has more than 1 training graphs"),
        (GraphLimits(max_operators=2), "has 3 different operators; at most 2"),
        (GraphLimits(max_weight_bytes=11), "has 12 bytes of tensors; at most 11"),
        (GraphLimits(), ""),
    ],
)
def test_training_graphs_count_against_the_caps(config: GraphLimits, text: str) -> None:
    """A runtime reads them, too, though nothing trains here."""
    model = plain_model()
    for number in range(2):
        training = model.training_info.add()
        training.algorithm.node.extend([helper.make_node(f"Op{number}", ["x"], ["z"])] * 2)
        training.algorithm.node.add(op_type="Identity").attribute.add(name="a").g.CopyFrom(GraphProto())
    for number in range(3):
        training.initialization.initializer.append(
            numpy_helper.from_array(np.zeros(1, np.float32), f"{number}")
        )
    data = model.SerializeToString()
    try:
        found = "; ".join(map(str, graph_flaws(_read(data, config), config)))
    except ArtefactError as error:
        found = str(error)
    assert text in found
    assert bool(found) == bool(text)


@pytest.mark.parametrize("count", [20, 21])
def test_overloads_are_as_many_as_operators_may_be(count: int) -> None:
    nodes = [NodeProto(op_type="Identity", overload=f"{number}") for number in range(count)]
    data = model_of([port("x", [1])], [port("y", [1])], nodes).SerializeToString()
    config = GraphLimits(max_operators=20)
    if count == 20:
        assert sum(_read(data, config).calls.values()) == 20
        return
    with pytest.raises(ArtefactError, match="more than 20 overloads of its operators"):
        _read(data, config)


@pytest.mark.parametrize("overloads", [0, 500])
def test_too_many_operators_are_told_as_that(overloads: int) -> None:
    """Their overloads are not remembered any more."""
    model = _many_operators()
    model.graph.node.extend(NodeProto(op_type="Op1", overload=f"{number}") for number in range(overloads))
    config = GraphLimits(max_operators=20)
    found = _read(model.SerializeToString(), config)
    (flaw,) = graph_flaws(found, config)
    assert str(flaw).startswith("has 21 different operators; at most 20 are allowed")
    assert len(found.calls) == 20


def test_a_bomb_of_functions_does_not_hide_behind_overloads() -> None:
    """Calls beyond those that are remembered would not be counted."""
    model = plain_model()
    for level in range(6):
        body = model.functions.add(name=f"f{level}", domain="d", input=["x"], output=["y"])
        nodes = [
            helper.make_node(
                f"f{level + 1}" if level < 5 else "Identity", ["x"], ["y"], domain="d" * (level < 5)
            )
        ]
        body.node.extend(nodes * 10)
        body.opset_import.append(helper.make_opsetid("d", 1))
    bomb = helper.make_node("f0", ["x"], ["y"], domain="d")
    model.graph.node.append(bomb)
    config = GraphLimits(max_operators=20)
    (flaw,) = graph_flaws(_read(model.SerializeToString(), config), config)
    assert "with its functions expanded" in str(flaw)
    del model.graph.node[-1]
    for number in range(30):
        model.graph.node.add(op_type="Identity", overload=f"{number}")
    model.graph.node.append(bomb)
    with pytest.raises(ArtefactError, match="more than 20 overloads of its operators"):
        _read(model.SerializeToString(), config)
