"""What a manifest claims of a graph, as it is read from the graph: one wording for who writes and who checks it."""

from __future__ import annotations

from typing import Final

from appliance.domain.manifest import Opset, Port
from appliance.domain.tensor import TensorSpec
from appliance.repository.onnx_graph import STANDARD_DOMAIN
from appliance.repository.onnx_summary import GraphSummary

GRAPH_FILE: Final = "graph.onnx"
WEIGHTS_FILE: Final = "weights.bin"
RUNTIME: Final = "onnxruntime"


def manifest_opsets(graph: GraphSummary) -> tuple[Opset, ...]:
    """The sets of operators of a graph as a manifest says them."""
    opsets = {"" if domain == STANDARD_DOMAIN else domain: version for domain, version in graph.opsets}
    return tuple(Opset(domain=domain, version=opsets[domain]) for domain in sorted(opsets))


def manifest_port(spec: TensorSpec) -> Port:
    """An input or output as a manifest says it."""
    return Port(name=spec.name, datatype=spec.datatype.wire, shape=spec.shape, optional=spec.optional)
