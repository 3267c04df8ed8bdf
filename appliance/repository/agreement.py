"""Where the graph and the configuration meet: the inputs, outputs and batching that are really served.

Rules kept here: the graph says what is true, the configuration may narrow it and must not contradict it; all
contradictions are found. Pure.

Without a configuration (or with one that gives neither ``max_batch_size`` nor any ``dims``) a model is
batched when the first dimension of every input and output is one and the same symbol that stands nowhere
else, or when the graph leaves all of these dimensions open without a name, which is also how Triton completes
a configuration; but not the latter where an operator counts what it finds, as the output may be as long as that.
Of a graph that is one classifier (``classifiers``) the operator says what the dimensions of outputs are.
Requests of such a model are merged, where a worker does not see rows that change one another's answers. A
configuration that gives ``max_batch_size`` is taken at its word: requests are then merged only when it has
``dynamic_batching``. One that gives ``dims`` but no ``max_batch_size`` means whole shapes: 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from appliance.domain.errors import InvalidRequest
from appliance.domain.model import Batching
from appliance.domain.tensor import FREE, MAX_RANK, Datatype, TensorSpec, byte_size
from appliance.repository.classifiers import true_outputs
from appliance.repository.findings import Findings, Place, shown_names
from appliance.repository.model_config import ModelConfig
from appliance.repository.onnx.summary import GraphPort, GraphSummary, PortKind
from appliance.repository.section import NAME_BYTES_MAX
from appliance.repository.tensor_config import TensorConfig

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

_COUNTING_OPERATORS: Final = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""Standard operators whose outputs are as long as what they find."""
_SHARED_SCALE_OPERATORS: Final = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
)
"""Operators that round all rows of a batch to one scale, so that rows change one another's answers a little."""

_ZIP_MAP: Final = ("ai.onnx.ml", "ZipMap")
_OF_ZIP_MAP: Final = (
    ", which ZipMap makes of probabilities",
    ": convert the model anew without ZipMap (zipmap=False of onnxmltools, options={'zipmap': False} of skl2onnx)",
)

Pair = tuple[GraphPort, TensorConfig | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What is served. Shapes leave out the batch dimension when ``max_batch_size`` > 0; ``batching`` None:
    requests are never merged. ``rows_assumed``: as in ModelVersion, where it can be seen."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    batching: Batching | None
    rows_assumed: bool = False


def agree(
    config: ModelConfig, graph: GraphSummary, graph_place: Place, default_max_batch: int, findings: Findings
) -> Agreement:
    """What a model with this graph and configuration serves; every contradiction goes to ``findings``."""
    inputs = request_inputs(graph)
    outputs = true_outputs(graph, inputs)
    optional = {port.name for port in inputs} & graph.initializers
    for side, ports in (("input", inputs), ("output", outputs)):
        check_ports(side, ports, graph_place, findings, zips=_ZIP_MAP in graph.operators)
    wanted_inputs = _pairs("input", inputs, config.inputs, findings)
    wanted_outputs = _pairs("output", outputs, config.outputs, findings)
    _check_left_out(config, wanted_inputs, inputs, optional, findings)
    from_graph = config.max_batch_size is None and not _gives_dims(config)
    if from_graph:
        max_batch_size = (
            default_max_batch if _is_batchable(graph, _ports(wanted_inputs), _ports(wanted_outputs)) else 0
        )
    else:
        max_batch_size = config.max_batch_size or 0
        _check_first_dimensions(config, _ports((*wanted_inputs, *wanted_outputs)), findings)
    batched = max_batch_size > 0
    return Agreement(
        inputs=tuple(
            _spec(port, said, batched, _is_optional(port, said, optional, findings), graph_place, findings)
            for port, said in wanted_inputs
        ),
        outputs=tuple(
            _spec(port, said, batched, False, graph_place, findings) for port, said in wanted_outputs
        ),
        max_batch_size=max_batch_size,
        batching=_batching(config, max_batch_size, from_graph, findings),
        rows_assumed=from_graph and batched and config.batching is None and _keeps_rows_apart(graph),
    )


def from_config_alone(config: ModelConfig, findings: Findings) -> Agreement:
    """What a model without a graph serves: its configuration has to say everything."""
    for side, tensors in (("input", config.inputs), ("output", config.outputs)):
        if not tensors:
            findings.problem(
                config.section.place(side),
                f"is missing; the backend '{config.kind.backend}' cannot tell its {side}s",
            )
    max_batch_size = config.max_batch_size or 0
    return Agreement(
        inputs=_written_specs(config.inputs or (), findings),
        outputs=_written_specs(config.outputs or (), findings),
        max_batch_size=max_batch_size,
        batching=_batching(config, max_batch_size, False, findings),
    )


def _pairs(
    side: str, ports: Sequence[GraphPort], written: Sequence[TensorConfig] | None, findings: Findings
) -> tuple[Pair, ...]:
    """Ports in graph order with what the configuration says of each; when it lists any, only those listed."""
    if written is None:
        return tuple((port, None) for port in ports)
    said: dict[str, TensorConfig] = {}
    known = {port.name for port in ports}
    names = shown_names((port.name for port in ports), len(ports))
    for tensor in written:
        if tensor.name in said:
            findings.problem(tensor.section.place(), f"{side} '{tensor.name}' is given twice")
        elif tensor.name and tensor.name not in known:
            findings.problem(
                tensor.section.place(),
                f"the graph has no {side} {shown_names((tensor.name,), 1)}; it has {names}",
            )
        said[tensor.name] = tensor
    return tuple((port, said[port.name]) for port in ports if port.name in said)


def _check_left_out(
    config: ModelConfig,
    wanted: Sequence[Pair],
    inputs: Sequence[GraphPort],
    optional: set[str],
    findings: Findings,
) -> None:
    """An input that the graph needs must not be missing from the configuration; and something must be
    answered."""
    kept = {port.name for port, _ in wanted}
    for port in inputs:
        if port.name not in kept and port.name not in optional:
            findings.problem(config.section.place("input"), f"the graph's input '{port.name}' is missing")
    if config.outputs == ():
        findings.problem(
            config.section.place("output"), "lists no output; leave it out to serve all outputs of the graph"
        )


def _ports(pairs: Sequence[Pair]) -> tuple[GraphPort, ...]:
    return tuple(port for port, _ in pairs)


def _gives_dims(config: ModelConfig) -> bool:
    return any(tensor.dims is not None for tensor in (*(config.inputs or ()), *(config.outputs or ())))


def _check_first_dimensions(config: ModelConfig, ports: Sequence[GraphPort], findings: Findings) -> None:
    """A batched model needs a free first dimension everywhere."""
    if not config.max_batch_size:
        return
    for port in ports:
        if port.dims is not None and (not port.dims or isinstance(port.dims[0], int)):
            findings.problem(
                config.section.place("max_batch_size"),
                f"is {config.max_batch_size}, but '{port.name}' has shape {_shown(port.dims)} in the graph, "
                "whose first dimension cannot be a batch; set it to 0 and give whole shapes",
            )


def _is_optional(port: GraphPort, said: TensorConfig | None, optional: set[str], findings: Findings) -> bool:
    if said is None or said.optional is None:
        return port.name in optional
    if said.optional and port.name not in optional:
        findings.problem(
            said.section.place("optional"),
            f"the graph has no default for '{port.name}'; it cannot be left out",
        )
    return said.optional


def _spec(
    port: GraphPort,
    said: TensorConfig | None,
    batched: bool,
    optional: bool,
    place: Place,
    findings: Findings,
) -> TensorSpec:
    datatype = wire_datatype(port)
    if said and datatype and said.datatype not in (None, datatype):
        written = said.datatype.config_name if said.datatype else ""
        findings.problem(
            said.section.place("data_type"),
            f"is {written}, but '{port.name}' is {datatype.config_name} in the graph",
        )
    shape = _shape(port, said, batched, place, findings)
    spec = TensorSpec(name=port.name, datatype=datatype or Datatype.BYTES, shape=shape, optional=optional)
    _check_sizes(spec, said, said.section.place() if said else place, findings)
    return spec


def _check_sizes(spec: TensorSpec, said: TensorConfig | None, place: Place, findings: Findings) -> None:
    """What keeps a tensor of the shape from ever being given, whatever its free dimensions are; as the model has it,
    too."""
    for shape in (spec.shape, (said.reshape if said else None) or ()):
        try:
            byte_size(spec.datatype, [max(size, 1) for size in shape])
        except InvalidRequest as error:
            findings.problem(place, f"{shown_names((spec.name,), 1)}: {error}")


def _shape(
    port: GraphPort, said: TensorConfig | None, batched: bool, place: Place, findings: Findings
) -> tuple[int, ...]:
    """The shape that clients see, without the batch dimension when ``batched``."""
    written = said.dims if said else None
    if port.dims is None:
        if written is None and port.kind is PortKind.TENSOR:
            findings.problem(
                place, f"the graph does not say the shape of '{port.name}'; give dims for it in config.pbtxt"
            )
        return written or ()
    true = tuple(size if isinstance(size, int) else FREE for size in port.dims[1 if batched else 0 :])
    if written is None or said is None:
        return true
    key, own = ("dims", written) if said.reshape is None else ("reshape", said.reshape)
    if len(own) != len(true) or any(have not in (FREE, want) for have, want in zip(true, own, strict=True)):
        batch = " after the batch dimension" if batched else ""
        findings.problem(
            said.section.place(key),
            f"{_shown(own)} does not fit the graph's {_shown(true)}{batch} of '{port.name}'",
        )
    return written


def _written_specs(tensors: Sequence[TensorConfig], findings: Findings) -> tuple[TensorSpec, ...]:
    specs: dict[str, TensorSpec] = {}
    for tensor in tensors:
        if tensor.name in specs:
            findings.problem(tensor.section.place(), f"'{tensor.name}' is given twice")
        if tensor.datatype is None:
            findings.problem(
                tensor.section.place("data_type"), "is needed where there is no graph to tell it"
            )
        if tensor.dims is None:
            findings.problem(tensor.section.place("dims"), "is needed where there is no graph to tell it")
        spec = specs[tensor.name] = TensorSpec(
            name=tensor.name,
            datatype=tensor.datatype or Datatype.BYTES,
            shape=tensor.dims or (),
            optional=bool(tensor.optional),
        )
        _check_sizes(spec, tensor, tensor.section.place(), findings)
    return tuple(specs.values())


def _batching(
    config: ModelConfig, max_batch_size: int, from_graph: bool, findings: Findings
) -> Batching | None:
    """The batching written, or the plain one of a model that the graph alone makes batchable."""
    if config.batching is None:
        return Batching() if from_graph and max_batch_size else None
    largest = max(1, max_batch_size)
    for size in config.batching.preferred_batch_size:
        if size > largest:
            findings.problem(config.preferred_place, f"{size} is above the largest batch, {largest}")
    return config.batching


def _shown(dims: Sequence[int | str | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in dims) + "]"


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


def _is_batchable(graph: GraphSummary, inputs: Sequence[GraphPort], outputs: Sequence[GraphPort]) -> bool:
    """Whether requests may be merged, as far as the graph tells: dimensions without a name say less where an operator
    counts what it finds."""
    if not is_batchable(inputs, outputs):
        return False
    named = (outputs[0].dims or (None,))[0] is not None
    return named or not any(("", name) in graph.operators for name in _COUNTING_OPERATORS)


def _keeps_rows_apart(graph: GraphSummary) -> bool:
    """Whether rows that run together may be held against rows that run alone: no operator rounds them together."""
    return not any(name in _SHARED_SCALE_OPERATORS for _, name in graph.operators)


def request_inputs(graph: GraphSummary) -> tuple[GraphPort, ...]:
    """Inputs a request may give: weights that an old file lists among them are left out."""
    if graph.ir_version >= INITIALIZERS_ARE_CONSTANT_BELOW:
        return tuple(graph.inputs)
    return tuple(port for port in graph.inputs if port.name not in graph.initializers)


def check_ports(
    side: str, ports: Sequence[GraphPort], place: Place, findings: Findings, *, zips: bool = False
) -> None:
    """Things that no configuration can mend: kinds and types the wire does not have, names missing or given
    twice. ``zips``: the graph makes sequences of maps of probabilities."""
    seen: set[str] = set()
    for port in ports:
        if not port.name:
            findings.problem(place, f"the graph has an {side} without a name")
        elif port.name in seen:
            findings.problem(place, f"the graph has two {side}s called '{port.name}'")
        seen.add(port.name)
        if len(port.name.encode(errors="replace")) > NAME_BYTES_MAX:
            name = shown_names((port.name,), 1)
            findings.problem(place, f"{side} {name} has a name of more than {NAME_BYTES_MAX} bytes")
        if port.kind is not PortKind.TENSOR:
            zipped = zips and side == "output" and port.kind is PortKind.SEQUENCE
            origin, remedy = _OF_ZIP_MAP if zipped else ("", "")
            kind = f"{_KIND_NAMES[port.kind]}{origin}"
            findings.problem(place, f"{side} '{port.name}' is {kind}; only tensors can be served{remedy}")
        elif port.element_type not in _WIRE_TYPES:
            name = _OTHER_TYPES.get(port.element_type, f"the unknown type {port.element_type}")
            findings.problem(place, f"{side} '{port.name}' has {name}, which the protocol cannot carry")
        if port.dims is not None and len(port.dims) > MAX_RANK:
            findings.problem(
                place, f"{side} '{port.name}' has {len(port.dims)} dimensions; at most {MAX_RANK} are served"
            )
