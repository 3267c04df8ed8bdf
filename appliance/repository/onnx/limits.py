"""By what graphs are read and judged: what the operator sets, and constants beside it."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.repository import FirewallConfig, RepositoryConfig
from appliance.domain.binding import extended


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits(FirewallConfig):
    """The ``[repository.firewall]`` section with constants of its own, each far above real models and far below what
    hurts the daemon that reads them."""

    max_opset: int = 100
    """Highest version of an operator set: ONNX is at a quarter of it after ten years."""
    max_graph_bytes: int = (1 << 31) - 1
    """Largest ONNX file: what protobuf can hold."""
    max_operators: int = 2_000
    """Most different operators: ONNX and ONNX Runtime together define some 400."""
    max_depth: int = 32
    """Deepest nesting of graphs in attributes: each level takes a frame of the reader's stack."""
    max_functions: int = 10_000
    """Most functions of the model's own, and most training graphs: exporters write one for each kind of layer."""
    max_ports: int = 4_096
    """Most inputs, and most outputs: four times what a request may name."""
    max_name_bytes: int = 4_096
    """Longest name in a graph: exporters join a path of module names, some hundred bytes."""


def graph_limits(settings: RepositoryConfig) -> GraphLimits:
    """What holds with these settings."""
    return extended(GraphLimits, settings.firewall)
