"""From the bytes of an inference request to a checked plan with its tensors.

Tensors travel raw, beside the head, or as typed contents inside of it: these become the raw bytes that the engine
takes. FP16 and BF16 have no typed form on the wire. Each datatype has one field it may travel in; a value that does not
fit the datatype, or data in another field, is an InvalidRequest."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import OutputHead, Parameter, RequestHead, RequestPlan, TensorHead
from appliance.domain.protocol import asks_for_region, output_classification, request_meaning
from appliance.domain.steps import STEP_ELEMENTS, Steps
from appliance.domain.tensor import MAX_RANK, Datatype, element_count, encode_bytes, parse_datatype
from appliance.domain.validation import check_raw, string_count_text
from appliance.engine.port import Buffer, EnginePort, Tensor
from appliance.frontend.grpc.envelope import Envelope, EnvelopeLimits, check_nested_fields, malformed
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.regions.registry import NOBODYS, Regions
from appliance.frontend.regions.users import UNKNOWN_USER
from appliance.frontend.regions.window import NO_WINDOWS, Window, Windows

LARGE_HEAD_BYTES: Final = 64 * 1024
"""From here on what is in a head is counted before it is read."""
REGION_KEYS: Final = b"shared_memory_"
"""What the keys of all parameters about shared memory begin with."""
NO_SOURCES: Final[Mapping[int, Window]] = {}
_PARAMETERS_MAX = 256
_REPEATABLE_HEAD_BYTES_MAX = 4096

_FIELDS = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}

# What protobuf writes for a packed field of these is the raw tensor: no value passes through Python, and every bit of
# a NaN stays.
_PACKED_AS_RAW = frozenset({Datatype.BOOL, Datatype.FP32, Datatype.FP64})


class Intake(NamedTuple):
    """A request that fits a model, ready for the engine; ``tensors`` are raw bytes in the request's order.
    ``empty_final_response`` is the stream's parameter of that name. ``head`` are the bytes of what may come again with
    other tensors (empty: it is too long, tensors are inside of it, or some in shared memory), and ``generation`` is
    that of the engine for which it was planned. ``windows`` are those of outputs that go to shared memory."""

    plan: RequestPlan
    tensors: tuple[Tensor, ...]
    empty_final_response: bool
    head: bytes
    generation: int
    windows: Windows = NO_WINDOWS


def take_in(
    envelope: Envelope,
    engine: EnginePort,
    limits: EnvelopeLimits,
    regions: Regions = NOBODYS,
    user: int = UNKNOWN_USER,
) -> Steps[Intake]:
    """Check an opened message of ``user`` against what ``engine`` serves and which ``regions`` there are now. Raises
    InvalidRequest, UnknownModel, NotReady, and what ``Regions.window`` does, in the words that clients match on."""
    raw = envelope.raw
    if len(envelope.head) > LARGE_HEAD_BYTES:
        check_nested_fields(envelope.head, limits)
        yield
    request = _parsed(envelope.head, limits)
    engine.resolve(request.model_name, request.model_version)  # what is unknown is told before what is wrong
    parameters = read_parameters(request.parameters, "the request")
    meaning = request_meaning(parameters)
    sources: Mapping[int, Window] = NO_SOURCES
    windows = NO_WINDOWS
    if REGION_KEYS in envelope.head:  # keys stand in it as they are: most requests pay for no more than this
        sources, windows = _windows(request, regions, user)
    head = RequestHead(
        model_name=request.model_name,
        model_version=request.model_version,
        inputs=tuple(_input_head(tensor) for tensor in request.inputs),
        outputs=tuple(_output_head(output) for output in request.outputs),
        priority=meaning.priority,
        timeout_us=meaning.timeout_us,
        parameters=parameters,
    )
    if raw:
        _refuse_contents(request)
    plan, generation = engine.plan(head), engine.generation
    tensors: tuple[Tensor, ...] = raw or (yield from _contents(request, sources))
    if sources:
        tensors = yield from _with_windows(plan, tensors, sources)
    yield from _check_tensors(plan, tensors)
    if engine.generation != generation:  # others had their turns meanwhile
        plan, generation = engine.plan(head), engine.generation
    repeatable = bool(raw) and len(envelope.head) <= _REPEATABLE_HEAD_BYTES_MAX and not (sources or windows)
    return Intake(
        plan, tensors, meaning.empty_final_response, envelope.head if repeatable else b"", generation, windows
    )


def _windows(
    request: pb.ModelInferRequest, regions: Regions, user: int
) -> tuple[Mapping[int, Window], Windows]:
    """The windows of inputs, by their place in the request, and of outputs, by name. Raises as ``take_in`` does."""
    inputs: dict[int, Window] = {}
    for index, tensor in enumerate(request.inputs):
        parameters = read_parameters(tensor.parameters, f"input '{tensor.name}'")
        if asks_for_region(parameters):
            inputs[index] = regions.window(user, "input", tensor.name, parameters)
    regions.check_inputs(inputs.values())
    outputs: dict[str, Window] = {}
    for output in request.outputs:
        parameters = read_parameters(output.parameters, f"output '{output.name}'")
        if asks_for_region(parameters):
            outputs[output.name] = regions.window(user, "output", output.name, parameters)
    return inputs, outputs


def _with_windows(
    plan: RequestPlan, sent: Sequence[Tensor], windows: Mapping[int, Window]
) -> Steps[tuple[Tensor, ...]]:
    """All tensors in the request's order: those ``sent`` in the message, which are in order, and the others where they
    are; strings of those are copied. Raises InvalidRequest."""
    announced = plan.head.inputs
    if len(sent) != len(announced) - len(windows):
        raise InvalidRequest(
            f"unexpected number of raw_input_contents for model '{plan.model.name}': {len(announced)} inputs, of which "
            f"{len(windows)} are in shared memory, but {len(sent)} raw_input_contents"
        )
    rest = iter(sent)
    tensors = [windows[index] if index in windows else next(rest) for index in range(len(announced))]
    for planned in plan.inputs:
        if planned.source in windows and planned.nbytes < 0:
            tensors[planned.source] = yield from windows[planned.source].read()
    return tuple(tensors)


def _parsed(head: bytes, limits: EnvelopeLimits) -> pb.ModelInferRequest:
    try:
        request = pb.ModelInferRequest.FromString(head)
    except DecodeError as error:
        malformed(error)
    for kind, count in (("inputs", len(request.inputs)), ("outputs", len(request.outputs))):
        if count > limits.tensors_max:
            raise InvalidRequest(f"request has {count} {kind}; at most {limits.tensors_max} are accepted")
    return request


def _check_tensors(plan: RequestPlan, tensors: tuple[Tensor, ...]) -> Steps[None]:
    """Hold the tensors to the plan, in number and in bytes."""
    announced = plan.head.inputs
    if len(tensors) < len(announced):
        raise InvalidRequest(
            f"unable to find data for input tensor '{announced[len(tensors)].name}' for model '{plan.model.name}' "
            f"in request: {len(announced)} inputs, but {len(tensors)} raw_input_contents"
        )
    if len(tensors) > len(announced):
        raise InvalidRequest(
            f"unexpected number of raw_input_contents for model '{plan.model.name}': "
            f"{len(announced)} inputs, but {len(tensors)} raw_input_contents"
        )
    for planned in plan.inputs:
        if planned.source >= 0:
            steps = check_raw(plan, planned, tensors[planned.source])
            if steps is not None:
                yield from steps


def read_parameters(parameters: Mapping[str, pb.InferParameter], where: str) -> dict[str, Parameter]:
    """A protobuf map of parameters as plain values; raises InvalidRequest for one without a value."""
    if len(parameters) > _PARAMETERS_MAX:
        raise InvalidRequest(
            f"{where} has {len(parameters)} parameters; at most {_PARAMETERS_MAX} are accepted"
        )
    plain: dict[str, Parameter] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidRequest(f"parameter '{key}' of {where} has no value of a known type")
        plain[key] = getattr(parameter, choice)
    return plain


def _input_head(tensor: pb.ModelInferRequest.InferInputTensor) -> TensorHead:
    if tensor.parameters:
        read_parameters(tensor.parameters, f"input '{tensor.name}'")
    if len(tensor.shape) > MAX_RANK:
        raise InvalidRequest(
            f"shape of input '{tensor.name}' has rank {len(tensor.shape)}; at most {MAX_RANK} dimensions are supported"
        )
    return TensorHead(tensor.name, tensor.datatype, tuple(tensor.shape))


def _output_head(output: pb.ModelInferRequest.InferRequestedOutputTensor) -> OutputHead:
    if not output.parameters:
        return OutputHead(output.name)
    parameters = read_parameters(output.parameters, f"output '{output.name}'")
    return OutputHead(output.name, output_classification(output.name, parameters))


def _refuse_contents(request: pb.ModelInferRequest, windows: Mapping[int, Window] | None = None) -> None:
    """Refuse contents of every input, or of those in ``windows``."""
    way = "raw_input_contents" if windows is None else "shared memory"
    for index, tensor in enumerate(request.inputs):
        asked = windows is None or index in windows
        if asked and tensor.HasField("contents") and tensor.contents.ListFields():
            raise InvalidRequest(
                f"contents field must not be specified when using {way} for input "
                f"'{tensor.name}' for model '{request.model_name}'"
            )


def _contents(request: pb.ModelInferRequest, windows: Mapping[int, Window]) -> Steps[tuple[Buffer, ...]]:
    """The tensors inside of the head; one that is in shared memory may not be there as well."""
    if windows:
        _refuse_contents(request, windows)
    tensors: list[Buffer] = []
    for index, tensor in enumerate(request.inputs):
        if index not in windows:
            tensors += ((yield from contents_to_raw(request.model_name, tensor)),)
    return tuple(tensors)


def contents_to_raw(model_name: str, tensor: pb.ModelInferRequest.InferInputTensor) -> Steps[Buffer]:
    """Raw little-endian bytes of ``tensor.contents``; raises InvalidRequest when they are not what its datatype and
    shape say."""
    datatype = parse_datatype(tensor.datatype)
    field = _FIELDS.get(datatype)
    if field is None:
        raise InvalidRequest(
            f"input '{tensor.name}' for model '{model_name}' has datatype {datatype.wire}, which travels only in "
            "raw_input_contents"
        )
    strange = sorted(found.name for found, _ in tensor.contents.ListFields() if found.name != field)
    if strange:
        raise InvalidRequest(
            f"unexpected {strange[0]} for input '{tensor.name}' for model '{model_name}': "
            f"datatype {datatype.wire} travels in {field}"
        )
    values: Sequence[int | float | bytes] = getattr(tensor.contents, field)
    expected = element_count(tensor.shape)
    if len(values) != expected:
        raise InvalidRequest(_count_text(model_name, tensor.name, datatype, len(values), expected))
    if datatype in _PACKED_AS_RAW and values:
        tensor.contents.DiscardUnknownFields()
        return tensor.contents.SerializeToString()[-expected * datatype.size :]
    if expected <= STEP_ELEMENTS:
        return _pack(model_name, tensor.name, datatype, values)
    packed = bytearray()
    for start in range(0, expected, STEP_ELEMENTS):
        yield
        packed += _pack(model_name, tensor.name, datatype, values[start : start + STEP_ELEMENTS])
    return memoryview(packed)


def _count_text(model_name: str, name: str, datatype: Datatype, found: int, expected: int) -> str:
    if found == 0:
        return f"unable to find data for input tensor '{name}' for model '{model_name}' in request."
    if datatype is Datatype.BYTES:
        return string_count_text(model_name, name, found, expected)
    return (
        f"input byte size mismatch for input '{name}' for model '{model_name}'. "
        f"Expected {expected * datatype.size}, got {found * datatype.size}"
    )


def _pack(model_name: str, name: str, datatype: Datatype, values: Sequence[int | float | bytes]) -> bytes:
    if datatype is Datatype.BYTES:
        return encode_bytes(value for value in values if isinstance(value, bytes))
    try:
        return struct.pack(f"<{len(values)}{datatype.code}", *values)
    except struct.error as error:
        raise InvalidRequest(
            f"input '{name}' for model '{model_name}' has a value outside of {datatype.wire}: {error}"
        ) from error
