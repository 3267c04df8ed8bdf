"""Data flows to test with: read by our own reader from what the onnx package makes."""

from __future__ import annotations

import os

from onnx import ModelProto, NodeProto, TensorProto, helper

from appliance.repository.data_flow import DataFlow
from appliance.repository.firewall_settings import FirewallConfig
from appliance.repository.onnx_flow import read_flow
from tests.repository.onnx_files import model_of, port


def flow_of(model: ModelProto | bytes, limits: FirewallConfig = FirewallConfig()) -> DataFlow:  # noqa: B008 - frozen
    """The flow of a model."""
    descriptor = os.memfd_create("model")
    try:
        os.write(descriptor, model if isinstance(model, bytes) else model.SerializeToString())
        return read_flow(descriptor, limits)
    finally:
        os.close(descriptor)


def flow_of_nodes(
    *nodes: NodeProto, tensors: tuple[TensorProto, ...] = (), outputs: tuple[str, ...] = ("y",)
) -> DataFlow:
    """A model from x to ``outputs``."""
    return flow_of(
        model_of([port("x", ["batch", 4])], [port(name, None) for name in outputs], nodes, tensors)
    )


def branches() -> ModelProto:
    """An If in a Loop: both branches take from the graph around the loop, a value and a weight."""
    made = {
        name: helper.make_graph(
            [helper.make_node(operator, ["total", "w"], [name])], name, [], [port(name, None)]
        )
        for name, operator in (("then_sum", "Add"), ("else_product", "Mul"))
    }  # fmt: skip
    choice = helper.make_node(
        "If", ["more"], ["next"], then_branch=made["then_sum"], else_branch=made["else_product"]
    )
    body = helper.make_graph(
        [choice, helper.make_node("Identity", ["go"], ["still"])],
        "body",
        [port("turn", [], TensorProto.INT64), port("go", [], TensorProto.BOOL), port("state", None)],
        [port("still", [], TensorProto.BOOL), port("next", None)],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["more"]),
        helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body),
    ]
    tensors = [
        helper.make_tensor("w", TensorProto.FLOAT, [400], [1.0] * 400),
        helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
        helper.make_tensor("turns", TensorProto.INT64, [], [2]),
    ]
    return model_of([port("x", ["batch", 4])], [port("y", ["batch", 4])], nodes, tensors)
