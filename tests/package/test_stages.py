"""A graph as stages: what is folded, what is not, where the weights lie, and graphs that hang together badly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

from appliance.package.stages import Network, Stage
from appliance.repository.data_flow import FlowGraph, tensor_bytes
from models.generate import MODELS
from models.generators.bert_graph import sentence_encoder
from models.generators.transformer import SIZES, write_transformer
from tests.models.encoders import small_encoder
from tests.package.onnx_models import tensor
from tests.repository.flows import branches, flow_of, flow_of_nodes

node = helper.make_node


def folded(graph: FlowGraph) -> list[tuple[int, str]]:
    """How often, and the operators of a block."""
    stages = Network(graph).stages()
    return [
        (each.count, " ".join(graph.nodes[number].operator[1] for number in each.nodes)) for each in stages
    ]


def everything(stages: tuple[Stage, ...]) -> Iterator[int]:
    for stage in stages:
        yield stage.count * len(stage.nodes)


def test_a_transformer_is_its_layers(tmp_path: Path) -> None:
    home = write_transformer(tmp_path / "t", SIZES[1])
    graph = flow_of((home / "1" / "graph.onnx").read_bytes()).main
    layers, head = Network(graph).stages()
    assert layers.count == SIZES[1].layers
    assert len(layers.nodes) * layers.count + 1 == len(graph.nodes)
    assert graph.nodes[layers.nodes[0]].operator[1] == "LayerNormalization"
    assert (layers.takes, layers.gives) == (("x",), (f"layer{SIZES[1].layers - 1}.result",))
    total = sum(map(tensor_bytes, graph.tensors.values()))
    assert layers.weight_bytes + head.weight_bytes == total
    assert head.weight_bytes == 64 * 100 * 4


def test_the_sentence_encoder_is_its_layers() -> None:
    graph = flow_of(sentence_encoder(small_encoder())).main
    stages = Network(graph).stages()
    (layers,) = [stage for stage in stages if stage.count > 1]
    assert layers.count == 2
    assert graph.nodes[layers.nodes[-1]].operator[1] == "LayerNormalization"
    assert layers.takes == ("embedding_norm", "mask_penalty")
    assert layers.gives == ("layer1.output",)
    constants = sum(each.is_constant for each in graph.nodes)
    assert sum(everything(stages)) + constants == len(graph.nodes)
    assert all(not stage.problems for stage in stages)


def test_an_mlp_with_equal_layers() -> None:
    assert folded(flow_of(MODELS["mlp"].build().model).main) == [(2, "Gemm Relu"), (1, "Gemm")]


def chain(*steps: str) -> Iterator[NodeProto]:
    for place, operator in enumerate(steps):
        yield node(operator, [f"h{place}" if place else "x"], [f"h{place + 1}"])
    yield node("Identity", [f"h{len(steps)}"], ["y"])


def test_blocks_inside_blocks() -> None:
    steps = ("Relu", "Exp", "Relu", "Exp", "Abs") * 3
    (stage, _) = Network(flow_of_nodes(*chain(*steps)).main).stages()
    assert (stage.count, len(stage.nodes)) == (3, 5)
    assert [(inner.count, len(inner.nodes)) for inner in stage.inner] == [(2, 2), (1, 1)]


def test_equal_operators_that_hang_together_otherwise_are_no_blocks() -> None:
    nodes = list(chain(*("Relu", "Exp") * 4))
    assert folded(flow_of_nodes(*nodes).main)[0] == (4, "Relu Exp")
    nodes[6].input[0] = "h2"
    assert folded(flow_of_nodes(*nodes).main)[0] == (3, "Relu Exp")


def test_other_attributes_and_other_weights_are_other_blocks() -> None:
    def built(last: int, width: int) -> FlowGraph:
        nodes = [
            node(
                "Concat",
                [f"h{place}" if place else "x", f"w{place}"],
                [f"h{place + 1}"],
                axis=last if place == 3 else 0,
            )
            for place in range(4)
        ]
        nodes.append(node("Identity", ["h4"], ["y"]))
        weights = [
            tensor(f"w{place}", np.zeros(width if place == 3 else 2, np.float32)) for place in range(4)
        ]
        return flow_of_nodes(*nodes, tensors=tuple(weights)).main

    assert folded(built(0, 2)) == [(4, "Concat"), (1, "Identity")]
    assert max(count for count, _ in folded(built(1, 2))) == 1
    assert max(count for count, _ in folded(built(0, 3))) == 1


def test_weights_count_once_at_the_first_who_takes_them() -> None:
    weight = tensor("w", np.zeros((4, 4), np.float32))
    nodes = (node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["b", "w"], ["y"]))
    first, _, second = Network(flow_of_nodes(*nodes, tensors=(weight,)).main).stages()
    assert (first.weights, first.again, first.weight_bytes) == (("w",), (), 64)
    assert (second.weights, second.again, second.weight_bytes) == ((), ("w",), 0)


def test_constants_are_weights_of_those_who_take_them() -> None:
    value = helper.make_tensor("", TensorProto.FLOAT, [300], [0.0] * 300)
    nodes = (
        node("Constant", [], ["c"], value=value),
        node("Constant", [], ["d"], value_float=1.0),
        node("Add", ["x", "c"], ["a"]),
        node("Add", ["a", "d"], ["y"]),
    )
    graph = flow_of_nodes(*nodes).main
    assert [(stage.nodes, stage.weight_bytes) for stage in Network(graph).stages()] == [
        ((2,), 1200),
        ((3,), 0),
    ]
    assert len(Network(graph, constants=True).stages(fold=False)) == 4


def test_what_a_node_takes_for_the_graphs_inside_it() -> None:
    _, _, loop = Network(flow_of(branches()).main).stages()
    assert loop.takes == ("x", "more", "total")
    assert loop.weights == ("turns", "w")
    assert loop.weight_bytes == 8 + 1600


def test_inside_of_a_graph_names_from_around_it_are_known() -> None:
    network = Network(flow_of(branches()).main)
    ((_, body),) = network.node(2).graphs
    inner = Network(body, network.inside)
    assert all(not stage.problems for stage in inner.stages())
    assert inner.source("more") == "around"
    assert any(stage.problems for stage in Network(body).stages())


def test_circles_and_names_that_nobody_makes() -> None:
    nodes = (
        node("Add", ["x", "b"], ["a"]),
        node("Add", ["a", "nowhere"], ["b"]),
        node("Relu", ["c"], ["c"]),
        node("Relu", ["b"], ["y"]),
    )
    network = Network(flow_of_nodes(*nodes, outputs=("y", "z")).main)
    assert [stage.problems for stage in network.stages()] == [
        ("takes 'b' before it is made",),
        ("nothing makes 'nowhere'",),
        ("takes 'c' before it is made",),
        (),
    ]
    assert [network.unmade(name) for name in ("y", "z")] == [False, True]


@pytest.mark.parametrize("count", [5, 50])
def test_the_middle_of_a_long_graph(count: int) -> None:
    weights = [tensor(f"w{place}", np.zeros(place + 1, np.uint8)) for place in range(count)]
    nodes = [
        node("Add", [f"h{place}" if place else "x", f"w{place}"], [f"h{place + 1}"]) for place in range(count)
    ]
    network = Network(flow_of_nodes(*nodes, tensors=tuple(weights), outputs=(f"h{count}",)).main)
    stages = network.stages()
    short = network.shortened(stages, 3, 2)
    assert len(short) == min(count, 6)
    assert sum(stage.weight_bytes for stage in short) == count * (count + 1) // 2
    assert sum(len(stage.nodes) for stage in short) == count
    if count > 6:
        assert (short[3].takes, short[3].gives) == (("h3",), (f"h{count - 2}",))
