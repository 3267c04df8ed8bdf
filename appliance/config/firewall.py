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
    max_tensors: int = field(
        default=100_000,
        metadata={
            "min": 1,
            "max": 1_000_000,
            "help": "most tensors, initializers and attributes alike, with all functions expanded",
        },
    )
