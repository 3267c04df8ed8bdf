"""The ``[repository.firewall]`` section of the configuration: what a graph may hold before a runtime is given
it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallConfig:
    """Caps are far above real models and far below what hurts the daemon that reads them.

    ``domains`` are operator sets whose code is part of the runtime that is shipped here: ONNX's own ("" ), its
    classical machine learning, and ONNX Runtime's contrib operators, which its optimiser and quantiser write, with
    their blocked-layout twin. Everything else needs a library from elsewhere, or trains. A domain of functions that the
    model itself brings along needs no permission."""

    domains: tuple[str, ...] = field(
        default=("", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"),
        metadata={"help": 'operator domains that a graph may use; "" is the standard one'},
    )
    max_opset: int = field(
        default=100, metadata={"min": 1, "max": 1_000_000, "help": "highest version of an operator set"}
    )
    max_graph_bytes: int = field(
        default=(1 << 31) - 1,
        metadata={"min": 1, "max": (1 << 31) - 1, "unit": "bytes", "help": "largest ONNX file"},
    )
    max_weight_bytes: int = field(
        default=256 << 30,
        metadata={"min": 1, "max": 1 << 48, "unit": "bytes", "help": "most bytes of tensors in all"},
    )
    max_expanded_bytes: int = field(
        default=1 << 31,
        metadata={
            "min": 0,
            "max": 1 << 48,
            "unit": "bytes",
            "help": "most bytes of tensors beyond those that the files hold: sparse ones dense, functions copied",
        },
    )
    max_nodes: int = field(
        default=500_000,
        metadata={"min": 1, "max": 4_000_000, "help": "most nodes, with all functions expanded"},
    )
    max_operators: int = field(
        default=2_000, metadata={"min": 1, "max": 100_000, "help": "most different operators"}
    )
    max_depth: int = field(
        default=32, metadata={"min": 1, "max": 64, "help": "deepest nesting of graphs in attributes"}
    )
    max_tensors: int = field(
        default=100_000,
        metadata={
            "min": 1,
            "max": 1_000_000,
            "help": "most tensors, initializers and attributes alike, with all functions expanded",
        },
    )
    max_functions: int = field(
        default=10_000,
        metadata={
            "min": 0,
            "max": 100_000,
            "help": "most functions of the model's own, and most training graphs",
        },
    )
    max_ports: int = field(
        default=4_096, metadata={"min": 1, "max": 100_000, "help": "most inputs, and most outputs"}
    )
    max_name_bytes: int = field(
        default=4_096, metadata={"min": 16, "max": 65_536, "unit": "bytes", "help": "longest name in a graph"}
    )
