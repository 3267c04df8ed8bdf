"""The gRPC side of ``appliance infer``: four calls of the Open Inference Protocol, and failures in one sentence."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

# What fails is told in one sentence: the library's own lines about it would stand above that. Read when it is imported;
# an operator's own setting wins.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from google.protobuf.message import Message

from appliance.cli.arguments import check_known
from appliance.cli.connection import CONNECT_S, SILENT, connect, grpc_channel, other_port, spoken_at
from appliance.cli.endpoint import Endpoint
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.tls import GRPC, HTTP, refused
from appliance.domain.inference import OutputTensor
from appliance.domain.tensor import Datatype, TensorSpec, parse_datatype
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb

PUSHBACK = "grpc-retry-pushback-ms"
SERVICE = "inference.GRPCInferenceService"
SILENT_S = 30.0
ABSENT = frozenset({grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a model takes and gives; shapes include the batch dimension. ``labelled`` names outputs with labels."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labelled: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTensor:
    """One input as it is sent; ``note`` is as in Array."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    raw: bytes
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request. ``classes`` maps an output to how many top classes of it are wanted, 0 for the tensor itself."""

    model: str
    version: str
    inputs: Sequence[InputTensor]
    classes: dict[str, int]
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer and how long it took to come back, in milliseconds."""

    model: str
    version: str
    outputs: tuple[OutputTensor, ...]
    milliseconds: float


class OipClient:
    """A connection to ``endpoint``, or to the gRPC port of the appliance whose HTTP port that is. Raises CommandFailed,
    and only that.

    A connection to a socket that starts the appliance is accepted once its models are there, so a connection that
    nobody has answered is waited for, up to ``SILENT_S``.

    ``timeout_s`` is the deadline of the request. Connecting and learning what the model takes come before it and may
    take longer: a deadline that is too short should be told as one, not as a server that is not there.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        wrong = spoken_at(endpoint) == HTTP
        self._endpoint = other_port(endpoint, GRPC) if wrong else endpoint
        self._timeout_s = timeout_s
        self._channel = grpc_channel(self._endpoint)

    def __enter__(self) -> Self:
        ready = grpc.channel_ready_future(self._channel)
        for patience_s in (CONNECT_S, SILENT_S):
            try:
                ready.result(patience_s)
                return self
            except grpc.FutureTimeoutError:
                silent = spoken_at(self._endpoint) == SILENT
            if not silent:
                break
        ready.cancel()
        self._channel.close()
        raise _mute(self._endpoint) if silent else _unreachable(self._endpoint)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._channel.close()

    def signature(self, model: str, version: str) -> Signature:
        """What the model takes and gives."""
        patience_s = max(CONNECT_S, self._timeout_s)
        metadata = pb.ModelMetadataResponse()
        try:
            self._call(
                "ModelMetadata", pb.ModelMetadataRequest(name=model, version=version), metadata, patience_s
            )
        except _Absent as refused:
            index = pb.RepositoryIndexResponse()
            self._call("RepositoryIndex", pb.RepositoryIndexRequest(), index, patience_s)
            check_known([model], {each.name for each in index.models})
            there = sorted(int(each.version) for each in index.models if each.name == model and each.version)
            if not version or version in map(str, there):
                text = "; ".join((str(refused), *_why(index, model, version)))
                raise CommandFailed(text, Exit.REFUSED) from None
            raise CommandFailed(
                f"no such version: {model}/{version}; there are {', '.join(map(str, there))}", Exit.REFUSED
            ) from None
        config = pb.ModelConfigResponse()
        self._call("ModelConfig", pb.ModelConfigRequest(name=model, version=version), config, patience_s)
        return Signature(
            inputs=_specs(metadata.inputs),
            outputs=_specs(metadata.outputs),
            labelled=frozenset(output.name for output in config.config.output if output.label_filename),
        )

    def ask(self, question: Question) -> Reply:
        """Send one request and wait for its answer."""
        request = _request(question)
        response = pb.ModelInferResponse()
        begun = time.perf_counter()
        self._call("ModelInfer", request, response, self._timeout_s)
        milliseconds = (time.perf_counter() - begun) * 1_000
        outputs = tuple(
            OutputTensor(output.name, parse_datatype(output.datatype), tuple(output.shape), raw)
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        )
        return Reply(
            model=response.model_name,
            version=response.model_version,
            outputs=outputs,
            milliseconds=milliseconds,
        )

    def _call(self, method: str, request: Message, response: Message, timeout_s: float) -> None:
        rpc = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=_serialize,
            response_deserializer=response.ParseFromString,
        )
        try:
            rpc(request, timeout=timeout_s)
        except grpc.RpcError as error:
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            what = (
                f"no answer within the deadline of {timeout_s * 1_000:g} ms" if late else "the server refused"
            )
            text = f"{what}: {error.details()} ({error.code().name}){_when_again(error)}"
            absent = error.code() in ABSENT
            raise (_Absent if absent else CommandFailed)(text, Exit.REFUSED) from None


class _Absent(CommandFailed):
    """The server knows no such model or version, or it does not serve."""


def _why(index: pb.RepositoryIndexResponse, model: str, version: str) -> list[str]:
    """Why a model that is there does not serve, of the version that was asked for or of each."""
    return [
        f"version {each.version} is {each.state}: {each.reason}"
        for each in index.models
        if each.name == model and version in ("", each.version) and each.reason
    ]


def _when_again(error: grpc.RpcError) -> str:
    """What the server says of another try (gRFC A6): when it is worth one, or that it is worth none."""
    said = [each.value for each in error.trailing_metadata() or () if each.key == PUSHBACK]
    try:
        milliseconds = int(said[0])
    except (ValueError, IndexError):
        return ""
    return "; another try is of no use" if milliseconds < 0 else f"; try again in {milliseconds / 1_000:g} s"


def _mute(endpoint: Endpoint) -> CommandFailed:
    text = (
        f"something takes connections at {endpoint} and says nothing; an appliance that is started by its socket "
        "answers once its models are loaded, so look at its log, or try again"
    )
    return CommandFailed(text, Exit.UNREACHABLE)


def _unreachable(endpoint: Endpoint) -> CommandFailed:
    """Why no gRPC connection came about: a server that speaks something else, or none."""
    tls = None if endpoint.socket else endpoint.tls
    try:
        if tls is None:
            connect(endpoint, CONNECT_S).close()
        elif refusal := tls.refusal(endpoint.host, endpoint.port, CONNECT_S):
            return refused(str(endpoint), refusal)
    except OSError:
        text = f"no server answers at {endpoint}; start one with 'appliance serve', or give its --url"
        return CommandFailed(text, Exit.UNREACHABLE)
    more = "; where that speaks TLS (grpc.tls_certificate), give --ca FILE as well"
    if tls is not None:
        more = "" if tls.certificate else "; where clients must show a certificate, give --cert and --key"
    return CommandFailed(
        f"something answers at {endpoint}, but not in gRPC; give --url the address that 'appliance serve' shows{more}",
        Exit.UNREACHABLE,
    )


def _serialize(request: Message) -> bytes:
    return request.SerializeToString()


def _specs(tensors: Sequence[pb.ModelMetadataResponse.TensorMetadata]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=tensor.name, datatype=parse_datatype(tensor.datatype), shape=tuple(tensor.shape))
        for tensor in tensors
    )


def _request(question: Question) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=question.model, model_version=question.version)
    if question.priority:
        request.parameters["priority"].uint64_param = question.priority
    for tensor in question.inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype.wire, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    for name, classes in question.classes.items():
        output = request.outputs.add(name=name)
        if classes:
            output.parameters["classification"].int64_param = classes
    return request
