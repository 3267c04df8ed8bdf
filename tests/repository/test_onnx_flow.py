"""The data flow of an ONNX file, as protobuf's own reader sees it, and of files that nobody would call one."""

from __future__ import annotations

import random

import onnx
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper

from appliance.domain.errors import ArtefactError
from appliance.repository.data_flow import FlowGraph
from appliance.repository.firewall_settings import FirewallConfig
from models.generate import MODELS
from tests.repository.flows import branches, flow_of
from tests.repository.onnx_files import copying, model_of, plain_model, port

READABLE = sorted(set(MODELS) - {"not_onnx", "truncated"})


def check(found: FlowGraph, wanted: GraphProto) -> None:
    """That both are the same, graphs inside with them."""
    tensors = {tensor.name for tensor in wanted.initializer}
    assert [each.name for each in found.inputs] == [
        each.name for each in wanted.input if each.name not in tensors
    ]
    assert [each.name for each in found.outputs] == [each.name for each in wanted.output]
    assert set(found.tensors) == tensors
    assert len(found.nodes) == len(wanted.node)
    for node, other in zip(found.nodes, wanted.node, strict=True):
        assert (node.name, node.operator[1]) == (other.name, other.op_type)
        assert (node.takes, node.gives) == (tuple(other.input), tuple(other.output))
        graphs = [(each.name, each.g) for each in other.attribute if each.HasField("g")]
        assert [name for name, _ in node.graphs] == [name for name, _ in graphs]
        for (_, inner), (_, wanted_inner) in zip(node.graphs, graphs, strict=True):
            check(inner, wanted_inner)


@pytest.mark.parametrize("name", READABLE)
def test_sample_models_are_read_as_protobuf_reads_them(name: str) -> None:
    content = MODELS[name].build().model
    wanted = onnx.load_model_from_string(content)
    check(flow_of(content).main, wanted.graph)


def test_what_graphs_inside_take_from_around_them() -> None:
    flow = flow_of(branches())
    check(flow.main, branches().graph)
    loop = flow.main.nodes[2]
    assert loop.captured == ("more", "total", "w")
    ((_, body),) = loop.graphs
    assert body.captured == ("more", "total", "w")
    assert [node.captured for node in body.nodes] == [("total", "w"), ()]
    assert flow.main.captured == ()


def test_types_of_values_between_nodes() -> None:
    model = model_of([port("x", ["n"])], [port("y", None)], [copying("x", "a"), copying("a", "y")])
    model.graph.value_info.append(port("a", ["n", None, 3], TensorProto.INT8))
    found = flow_of(model).main.port("a")
    assert found is not None
    assert (found.element_type, found.dims) == (TensorProto.INT8, ("n", None, 3))


def test_functions() -> None:
    model = plain_model()
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], []
    )
    model.functions.append(function)
    (found,) = flow_of(model).functions
    assert found.key == ("own", "Twice", "")
    assert [port.name for port in found.graph.inputs] == ["a"]
    assert [node.takes for node in found.graph.nodes] == [("a", "a")]


def test_names_that_are_not_utf8_are_shown_all_the_same() -> None:
    content = plain_model().SerializeToString().replace(b"\x0a\x01x", b"\x0a\x01\xff")
    assert "\ufffd" in {port.name for port in flow_of(content).main.inputs}


def test_a_model_in_pieces_is_put_together() -> None:
    first, second = ModelProto(), ModelProto()
    first.graph.node.append(copying("x", "a"))
    second.graph.node.append(copying("a", "y"))
    found = flow_of(first.SerializeToString() + second.SerializeToString()).main
    assert [node.gives for node in found.nodes] == [("a",), ("y",)]


@pytest.mark.parametrize("limits", [FirewallConfig(max_nodes=3), FirewallConfig(max_depth=2)])
def test_what_is_larger_than_allowed_is_no_flow(limits: FirewallConfig) -> None:
    with pytest.raises(ArtefactError):
        flow_of(branches(), limits)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_bytes_are(seed: int) -> None:
    chance = random.Random(seed)
    data = branches().SerializeToString()
    for _ in range(50):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(mutated))
            mutated[at : at + chance.choice((0, 1, 8))] = chance.randbytes(chance.choice((0, 1, 8)))
        try:
            flow_of(bytes(mutated))
        except ArtefactError:
            continue
