"""What a reader has collected of an ONNX file so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.repository.onnx.summary import (
    ExternalData,
    Flaw,
    FunctionKey,
    GraphFunction,
    GraphPort,
    GraphSummary,
    GraphTensor,
    OperatorKey,
)


@dataclass(slots=True, kw_only=True)
class GraphContents:
    """Grows while the file is walked. ``places`` says where each operator was met first; ``calls`` are those of the
    function that is being read, or of the graphs."""

    ir_version: int = 0
    opsets: list[tuple[str, int]] = field(default_factory=list)
    opset_count: int = 0
    inputs: list[GraphPort] = field(default_factory=list)
    outputs: list[GraphPort] = field(default_factory=list)
    initializers: set[str] = field(default_factory=set)
    operators: Counter[OperatorKey] = field(default_factory=Counter)
    places: dict[OperatorKey, str] = field(default_factory=dict)
    external: list[ExternalData] = field(default_factory=list)
    tensors: list[GraphTensor] = field(default_factory=list)
    nodes: int = 0
    depth: int = 0
    functions: list[GraphFunction] = field(default_factory=list)
    function_count: int = 0
    calls: Counter[FunctionKey] = field(default_factory=Counter)

    def summary(self, size: int, flaws: Sequence[Flaw]) -> GraphSummary:
        """All of it, of a file of ``size`` bytes, with its ``flaws``."""
        return GraphSummary(
            ir_version=self.ir_version,
            opsets=tuple(self.opsets),
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            initializers=frozenset(self.initializers),
            operators=dict(self.operators),
            external=tuple(self.external),
            places=dict(self.places),
            tensors=tuple(self.tensors),
            nodes=self.nodes,
            depth=self.depth,
            functions=tuple(self.functions),
            function_count=self.function_count,
            calls=dict(self.calls),
            file_bytes=size,
            flaws=tuple(flaws),
        )
