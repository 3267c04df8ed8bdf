"""Decode the head of a ModelInferRequest: what is asked, of which model, with which tensors announced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import OutputHead, Parameter, RequestHead, TensorHead
from appliance.domain.protocol import check_input_parameters, output_classification, request_meaning
from appliance.domain.tensor import MAX_RANK
from appliance.frontend.grpc.envelope import EnvelopeLimits, malformed
from appliance.frontend.grpc.typed import contents_to_raw
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb

_PARAMETERS_MAX = 256


class DecodedHead(NamedTuple):
    """A head. ``typed`` is the message when the tensors are typed contents inside it, else None;
    ``empty_final_response`` is the stream's parameter of that name."""

    head: RequestHead
    typed: pb.ModelInferRequest | None
    empty_final_response: bool


def decode_head(message: bytes, raw_tensors: int, limits: EnvelopeLimits) -> DecodedHead:
    """Decode the head of a request that has ``raw_tensors`` entries in raw_input_contents. Raises InvalidRequest, and
    Unsupported for shared memory, and refuses typed contents beside raw tensors."""
    try:
        request = pb.ModelInferRequest.FromString(message)
    except DecodeError as error:
        malformed(error)
    for kind, count in (("inputs", len(request.inputs)), ("outputs", len(request.outputs))):
        if count > limits.tensors_max:
            raise InvalidRequest(f"request has {count} {kind}; at most {limits.tensors_max} are accepted")
    parameters = read_parameters(request.parameters, "the request")
    meaning = request_meaning(parameters)
    head = RequestHead(
        model_name=request.model_name,
        model_version=request.model_version,
        inputs=tuple(_input_head(tensor) for tensor in request.inputs),
        outputs=tuple(_output_head(output) for output in request.outputs),
        priority=meaning.priority,
        timeout_us=meaning.timeout_us,
        parameters=parameters,
    )
    if raw_tensors:
        _refuse_contents(request)
    typed = None if raw_tensors or not request.inputs else request
    return DecodedHead(head, typed, meaning.empty_final_response)


def typed_tensors(request: pb.ModelInferRequest) -> tuple[bytes, ...]:
    """The raw bytes of every input of ``request``, in its order, from typed contents; raises InvalidRequest."""
    return tuple(contents_to_raw(request.model_name, tensor) for tensor in request.inputs)


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
        check_input_parameters(tensor.name, read_parameters(tensor.parameters, f"input '{tensor.name}'"))
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


def _refuse_contents(request: pb.ModelInferRequest) -> None:
    for tensor in request.inputs:
        if tensor.HasField("contents") and tensor.contents.ListFields():
            raise InvalidRequest(
                "contents field must not be specified when using raw_input_contents for input "
                f"'{tensor.name}' for model '{request.model_name}'"
            )
