"""A client of our own messages, for what the public clients would not send: broken, odd and oversized requests."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb

SERVICE = "inference.GRPCInferenceService"
NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Failure(NamedTuple):
    """How an RPC failed."""

    code: str
    text: str
    trailers: dict[str, str]


class Stub:
    """One connection; every RPC of the service by name."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(
            address, options=[*NO_LIMIT, ("grpc.use_local_subchannel_pool", 1)]
        )

    def call(
        self,
        rpc: str,
        request: Any = b"",
        timeout_s: float | None = 30.0,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> bytes:
        """Serialised answer of a unary RPC; ``request`` is a message or bytes. Raises grpc.RpcError."""
        answer: bytes = self._method(rpc)(request, timeout=timeout_s, metadata=metadata)
        return answer

    def begin(self, rpc: str, request: Any, timeout_s: float | None = 30.0) -> Any:
        """Start a unary RPC; gives its future."""
        return self._method(rpc).future(request, timeout=timeout_s)

    def infer(self, request: Any, timeout_s: float = 30.0) -> pb.ModelInferResponse:
        """One inference; raises grpc.RpcError."""
        return pb.ModelInferResponse.FromString(self.call("ModelInfer", request, timeout_s))

    def refusal(self, request: Any, rpc: str = "ModelInfer", timeout_s: float = 30.0) -> Failure:
        """How an RPC that must fail does."""
        try:
            answer = self.call(rpc, request, timeout_s)
        except grpc.RpcError as error:
            return failure_of(error)
        raise AssertionError(f"{rpc} was answered: {answer[:200]!r}")

    def stream(
        self,
        requests: Any,
        metadata: tuple[tuple[str, str], ...] = (),
        compression: Any = None,
        timeout_s: float | None = 30.0,
    ) -> Any:
        """ModelStreamInfer over serialised messages: an iterator of responses."""
        method = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=_serialised,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        return method(requests, metadata=metadata, timeout=timeout_s, compression=compression)

    def _method(self, rpc: str) -> Any:
        return self.channel.unary_unary(
            f"/{SERVICE}/{rpc}", request_serializer=_serialised, response_deserializer=bytes
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()


def failure_of(error: Any) -> Failure:
    """Status, text and trailers of a failed call."""
    trailers = {key: str(value) for key, value in error.trailing_metadata() or ()}
    return Failure(error.code().name, error.details(), trailers)


def _serialised(request: Any) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
