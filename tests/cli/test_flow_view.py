"""What a person sees of a graph, at several widths and of graphs of all sizes."""

from __future__ import annotations

import random

import pytest
from onnx import TensorProto, helper
from rich.cells import cell_len

from appliance.cli.flow_json import flow_json
from appliance.cli.flow_view import LINES_MAX, Detail, FlowDrawing
from appliance.repository.data_flow import DataFlow
from models.generate import MODELS
from models.generators.bert_graph import sentence_encoder
from tests.models.encoders import small_encoder
from tests.repository.flows import branches, flow_of, flow_of_nodes
from tests.repository.onnx_files import copying, plain_model

node = helper.make_node


def shown(flow: DataFlow, detail: Detail = Detail.FOLDED, width: int = 80) -> list[str]:
    return [line.plain.rstrip() for line in FlowDrawing(flow=flow, detail=detail).texts(width)]


def test_an_mlp() -> None:
    flow = flow_of(MODELS["mlp"].build().model)
    assert shown(flow) == [
        "○               x  FP32 [batch, 64]",
        "● 32.5 KiB 93%  2 x [Gemm Relu] (2 nodes each)",
        "●  2.5 KiB  7%  Gemm  FP32 [64, 10], FP32 [10]  -> FP32 [batch, 10]",
        "○               y  FP32 [batch, 10]",
    ]
    assert shown(flow, Detail.FULL)[1] == "● 16.2 KiB 46%  Gemm  FP32 [64, 64], FP32 [64]  linear0"
    assert len(shown(flow, Detail.FULL)) == 7
    assert shown(flow, Detail.BLOCKS)[2:7] == [
        "│ ┆ the first of 2, 2 nodes",
        "│ ┆ ○               x  FP32 [batch, 64]",
        "│ ┆ ● 16.2 KiB 46%  Gemm  FP32 [64, 64], FP32 [64]",
        "│ ┆ ●               Relu",
        "│ ┆ ○               hidden0",
    ]


def test_a_sentence_encoder_from_its_tokens_to_its_vector() -> None:
    lines = shown(flow_of(sentence_encoder(small_encoder())))
    assert lines[0].endswith("input_ids  INT64 [batch, sequence]")
    assert lines[1].startswith("│ ○")
    assert lines[-1].endswith("sentence_embedding  FP32 [batch, 24]")
    (layers,) = [line for line in lines if " 2 x [" in line]
    assert layers.startswith("●─│─╯")
    assert "%  2 x [MatMul Add Reshape" in layers


def test_graphs_inside_nodes() -> None:
    assert shown(flow_of(branches())) == [
        "○                   x  FP32 [batch, 4]",
        "├─●                 ReduceSum",
        "│ ├─●               Greater  FP32 []",
        "●─┴─╯  1.6 KiB 100% Loop  INT64 [], FP32 [400]  -> FP32 [batch, 4]",
        "│     ┆ body, 2 nodes",
        "│     ┆ ○                 turn  INT64 []",
        "│     ┆ ○                 go  BOOL []",
        "│     ┆ │ ○               state  FP32",
        "│     ┆ │ ●  1.6 KiB 100% If  FP32 [400]  -> FP32  from around it: more, total",
        "│     ┆ │ │ ┆ else_branch, 1 node",
        "│     ┆ │ │ ┆ ●  1.6 KiB 100% Mul  FP32 [400]  -> FP32  from around it: total",
        "│     ┆ │ │ ┆ ○               else_product  FP32",
        "│     ┆ │ │ ┆ then_branch, 1 node",
        "│     ┆ │ │ ┆ ●  1.6 KiB 100% Add  FP32 [400]  -> FP32  from around it: total",
        "│     ┆ │ │ ┆ ○               then_sum  FP32",
        "│     ┆ ● │               Identity  -> BOOL []",
        "│     ┆ ○ │               still  BOOL []",
        "│     ┆   ○               next  FP32",
        "○                   y  FP32 [batch, 4]",
    ]


def test_functions_are_drawn_below() -> None:
    model = plain_model()
    model.functions.append(
        helper.make_function("own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [])
    )
    lines = shown(flow_of(model))
    assert lines[-4:] == ["function own:Twice (1 node)", "○ a", "● Add", "○ b"] or lines[-4].endswith(
        "(1 node)"
    )


@pytest.mark.parametrize("width", [30, 80, 160])
@pytest.mark.parametrize("detail", [Detail.FOLDED, Detail.BLOCKS, Detail.FULL])
def test_no_line_is_wider_than_the_screen(width: int, detail: Detail) -> None:
    for flow in (flow_of(branches()), flow_of(sentence_encoder(small_encoder()))):
        assert max(map(cell_len, shown(flow, detail, width))) <= width


def test_names_with_control_characters_stay_on_their_line() -> None:
    odd = "a\nb\x1b[2J"
    nodes = (
        node(odd, ["x", "nowhere\r"], [odd], name=odd, domain="d\te"),
        copying(odd, "y"),
    )
    for detail in (Detail.FOLDED, Detail.FULL):
        lines = shown(flow_of_nodes(*nodes), detail, 200)
        assert len(lines) == 4
        assert "d\\te:a\\nb\\x1b[2J" in lines[1]
        assert "nothing makes 'nowhere\\r'" in lines[1]
        assert "\x1b" not in "".join(lines)


def tangled(count: int) -> DataFlow:
    """Every node takes from anywhere before it."""
    chance = random.Random(7)
    nodes = [
        node(
            chance.choice(["Add", "Mul"]),
            [f"h{chance.randrange(place + 1)}" for _ in range(2)],
            [f"h{place + 1}"],
        )
        for place in range(count)
    ]
    return flow_of_nodes(*nodes, outputs=(f"h{count}", "h0"))


def test_a_large_graph_is_bounded_unless_all_of_it_is_asked_for() -> None:
    flow = tangled(3000)
    lines = shown(flow)
    assert len(lines) < 200
    assert [line for line in lines if "⋮" in line and " nodes: " in line]
    assert len(shown(flow, Detail.FULL)) >= 3000
    assert max(map(cell_len, lines)) <= 80


def test_many_graphs_inside_nodes_are_cut_off() -> None:
    nodes = []
    for place in range(120):
        steps = [
            node(operator, ["x"], [f"{operator}{place}"]) for operator in ("Relu", "Abs", "Exp", "Log", "Neg")
        ]
        inner = helper.make_graph(steps, "g", [], [helper.make_tensor_value_info(f"Neg{place}", 1, None)])
        nodes.append(node("If", ["x"], [f"y{place}"], then_branch=inner, else_branch=inner, number=place))
    lines = shown(flow_of_nodes(*nodes, outputs=("y0",)))
    assert len(lines) == LINES_MAX + 1
    assert "--graph full" in lines[-1]


def test_many_inputs_share_a_line() -> None:
    model = plain_model()
    for number in range(100):
        model.graph.input.append(helper.make_tensor_value_info(f"i{number}", TensorProto.FLOAT, [1]))
    assert [line for line in shown(flow_of(model)) if line.endswith("... 77 more")]


def test_nodes_and_edges_as_values() -> None:
    found = flow_json(flow_of(branches()))
    edges = [(edge["value"], edge["from"], edge["to"]) for edge in found["edges"]]
    assert edges == [
        ("x", "input", 0),
        ("total", 0, 1),
        ("x", "input", 2),
        ("more", 1, 2),
        ("total", 0, 2),
        ("y", 2, "output"),
    ]
    loop = found["nodes"][2]
    assert loop["weights"] == ["turns", "w"]
    (body,) = loop["graphs"]
    inner = [(edge["value"], edge["from"], edge["to"]) for edge in body["edges"]]
    assert ("more", "around", 0) in inner
    assert ("next", 0, "output") in inner
    assert [stage["nodes"] for stage in found["stages"]] == [[0], [1], [2]]
    assert found["edges"][0]["shape"] == ["batch", 4]
