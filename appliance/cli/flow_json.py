"""The data flow of a graph as plain JSON values: nodes, the edges between them, and the stages that people are shown.

Nodes go by their numbers in their graph. An edge comes ``from`` a node, or from "input", "around" (a graph inside a
node takes it from the graph that the node is in) or "nothing", and goes ``to`` a node or "output". Weights are no
edges: nodes name them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from appliance.package.stages import Network, Stage
from appliance.repository.data_flow import DataFlow, FlowNode, tensor_bytes
from appliance.repository.graph_ports import element_name
from appliance.repository.onnx_summary import GraphPort, PortKind

Json = dict[str, Any]


def flow_json(flow: DataFlow) -> Json:
    """All of it."""
    return {
        **_graph(Network(flow.main, constants=True), Network(flow.main)),
        "functions": [
            {
                "domain": function.key[0],
                "name": function.key[1],
                "overload": function.key[2],
                **_graph(Network(function.graph, constants=True), Network(function.graph)),
            }
            for function in flow.functions
        ],
    }


def _graph(network: Network, folded: Network) -> Json:
    graph = network.graph
    return {
        "inputs": [_port(port.name, port) for port in graph.inputs],
        "outputs": [_port(port.name, port) for port in graph.outputs],
        "tensors": [
            {
                "name": name,
                "datatype": element_name(tensor.element_type),
                "shape": list(tensor.dims),
                "bytes": tensor_bytes(tensor),
            }
            for name, tensor in graph.tensors.items()
        ],
        "nodes": [_node(number, node, network, folded) for number, node in enumerate(graph.nodes)],
        "edges": list(_edges(network)),
        "stages": [_stage(stage, folded) for stage in folded.stages()],
    }


def _node(number: int, node: FlowNode, network: Network, folded: Network) -> Json:
    found: Json = {
        "number": number,
        "name": node.name,
        "domain": node.operator[0],
        "operator": node.operator[1],
        "takes": list(node.takes),
        "gives": list(node.gives),
        "weights": list(network.weights(node)),
    }
    if node.overload:
        found["overload"] = node.overload
    if node.graphs:
        found["graphs"] = [
            {
                "attribute": name,
                **_graph(Network(graph, network.inside, constants=True), Network(graph, folded.inside)),
            }
            for name, graph in node.graphs
        ]
    return found


def _edges(network: Network) -> Iterator[Json]:
    """What flows: to nodes in their order, and to the outputs."""
    for number, node in enumerate(network.graph.nodes):
        for name in network.flows(node):
            yield _edge(name, number, network)
    for port in network.graph.outputs:
        yield _edge(port.name, "output", network)


def _edge(name: str, to: int | str, network: Network) -> Json:
    return {**_port(name, network.graph.port(name)), "from": network.source(name), "to": to}


def _port(name: str, port: GraphPort | None) -> Json:
    """A value, with its type where the file says that; sizes that are not known are null, symbols their names."""
    found: Json = {"value": name}
    if port is not None and port.kind is PortKind.TENSOR:
        found["datatype"] = element_name(port.element_type)
        if port.dims is not None:
            found["shape"] = list(port.dims)
    elif port is not None and port.kind is not PortKind.NOTHING:
        found["kind"] = port.kind.name.lower()
    return found


def _stage(stage: Stage, network: Network) -> Json:
    found: Json = {
        "count": stage.count,
        "nodes": list(stage.nodes),
        "operators": [network.graph.nodes[number].operator[1] for number in stage.nodes],
        "takes": list(stage.takes),
        "gives": list(stage.gives),
        "weight_bytes": stage.weight_bytes,
    }
    if stage.inner:
        found["stages"] = [_stage(inner, network) for inner in stage.inner]
    if stage.problems:
        found["problems"] = list(stage.problems)
    return found
