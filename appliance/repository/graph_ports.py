"""What the inputs and outputs of a graph mean to the protocol: which can be served, as what, and whether in
batches.

Pure tables and rules about the graph alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from appliance.domain.tensor import MAX_RANK, Datatype
from appliance.repository.findings import Findings, Place
from appliance.repository.onnx.summary import GraphPort, GraphSummary, PortKind

INITIALIZERS_ARE_CONSTANT_BELOW: Final = (
    4  # ir_version from which an input with an initializer may be overridden
)

_WIRE_TYPES: Final = MappingProxyType(
    {
        1: Datatype.FP32,
        2: Datatype.UINT8,
        3: Datatype.INT8,
        4: Datatype.UINT16,
        5: Datatype.INT16,
        6: Datatype.INT32,
        7: Datatype.INT64,
        8: Datatype.BYTES,
        9: Datatype.BOOL,
        10: Datatype.FP16,
        11: Datatype.FP64,
        12: Datatype.UINT32,
        13: Datatype.UINT64,
        16: Datatype.BF16,
    }
)
_OTHER_TYPES: Final = MappingProxyType(
    {
        0: "no element type",
        14: "complex64",
        15: "complex128",
        17: "float8e4m3fn",
        18: "float8e4m3fnuz",
        19: "float8e5m2",
        20: "float8e5m2fnuz",
        21: "uint4",
        22: "int4",
        23: "float4e2m1",
        24: "float8e8m0",
        25: "uint2",
        26: "int2",
        27: "float6e2m3",
        28: "float6e3m2",
    }
)
_KIND_NAMES: Final = MappingProxyType(
    {
        PortKind.NOTHING: "a value without a type",
        PortKind.SEQUENCE: "a sequence",
        PortKind.MAP: "a map",
        PortKind.OPAQUE: "an opaque value",
        PortKind.SPARSE_TENSOR: "a sparse tensor",
        PortKind.OPTIONAL: "an optional value",
    }
)


def wire_datatype(port: GraphPort) -> Datatype | None:
    """The protocol's datatype for a tensor, or None when it has none."""
    return _WIRE_TYPES.get(port.element_type)


def is_batchable(inputs: Sequence[GraphPort], outputs: Sequence[GraphPort]) -> bool:
    """Whether the first dimension of everything is the batch, as far as the graph tells."""
    if not inputs or not outputs:
        return False
    firsts: set[int | str | None] = set()
    for port in (*inputs, *outputs):
        if not port.dims:
            return False
        firsts.add(port.dims[0])
    if len(firsts) != 1:
        return False
    (symbol,) = firsts
    if isinstance(symbol, int):
        return False
    return symbol is None or not any(symbol in (port.dims or ())[1:] for port in (*inputs, *outputs))


def request_inputs(graph: GraphSummary) -> tuple[GraphPort, ...]:
    """Inputs a request may give: weights that an old file lists among them are left out."""
    if graph.ir_version >= INITIALIZERS_ARE_CONSTANT_BELOW:
        return graph.inputs
    return tuple(port for port in graph.inputs if port.name not in graph.initializers)


def check_ports(side: str, ports: Sequence[GraphPort], place: Place, findings: Findings) -> None:
    """Things that no configuration can mend: kinds and types the wire does not have, names missing or given
    twice."""
    seen: set[str] = set()
    for port in ports:
        if not port.name:
            findings.problem(place, f"the graph has an {side} without a name")
        elif port.name in seen:
            findings.problem(place, f"the graph has two {side}s called '{port.name}'")
        seen.add(port.name)
        if port.kind is not PortKind.TENSOR:
            findings.problem(
                place, f"{side} '{port.name}' is {_KIND_NAMES[port.kind]}; only tensors can be served"
            )
        elif port.element_type not in _WIRE_TYPES:
            name = _OTHER_TYPES.get(port.element_type, f"the unknown type {port.element_type}")
            findings.problem(place, f"{side} '{port.name}' has {name}, which the protocol cannot carry")
        if port.dims is not None and len(port.dims) > MAX_RANK:
            findings.problem(
                place, f"{side} '{port.name}' has {len(port.dims)} dimensions; at most {MAX_RANK} are served"
            )
