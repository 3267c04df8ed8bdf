"""Everything that is served over gRPC, whatever carries the calls: RPCs by their full path.

Messages pass as bytes. A unary RPC but ModelInfer is a function; a streaming one reads and writes through functions of
the transport's. ModelInfer is each front end's own, because its cost is the front end's cost.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from google.protobuf import descriptor_pb2

from appliance.config.grpc import GrpcConfig
from appliance.domain.protocol import ADDRESSES
from appliance.frontend.grpc.envelope import EnvelopeLimits
from appliance.frontend.grpc.handlers import Handlers
from appliance.frontend.grpc.health import FILE as HEALTH_FILE
from appliance.frontend.grpc.health import HEALTH_SERVICE, SERVICE, HealthService
from appliance.frontend.grpc.inference import NOBODY, Caller, Inference
from appliance.frontend.grpc.reflection import METHOD, V1, V1ALPHA, Reflection
from appliance.frontend.grpc.stream import Handed, Read, StreamSession, StreamWindow, Write
from appliance.frontend.grpc.wire_pb import descriptor_files
from appliance.frontend.port import Backend

INFER: Final = f"/{SERVICE}/ModelInfer"
INFER_STREAM: Final = f"/{SERVICE}/ModelStreamInfer"
TELL_OF_ALL: Final = frozenset((f"/{SERVICE}/ModelStatistics", f"/{SERVICE}/RepositoryIndex"))
"""Unary RPCs whose answers grow with the number of models: of many at once each waits for its client's turn."""
REAL_STATUSES: Final = "triton_grpc_error"


class Terms(NamedTuple):
    """What a client said about a stream beside its messages; and, of a transport that serves requests by itself, what
    StreamSession wants to know."""

    deadline_ns: int
    metadata: Iterable[tuple[str, str | bytes]]
    sender: Caller = NOBODY
    handed: Callable[[], Handed] = Handed
    end_input: Callable[[], None] | None = None


AnswerMessage = Callable[[bytes], bytes]
AnswerUser = Callable[[int, bytes], bytes]
ServeStream = Callable[[Read, Write, Terms], Awaitable[None]]


class Services:
    """The RPCs of one server and what they have open. Owner: the event loop's thread."""

    def __init__(self, backend: Backend, config: GrpcConfig, *, for_operator: bool = False) -> None:
        """``for_operator``: they may change settings."""
        engine, tracer = backend.engine, backend.tracer
        self._listening = backend.listening
        self.inference = Inference(engine, EnvelopeLimits(), tracer, backend.turns, backend.regions)
        self._handlers = Handlers(
            engine,
            backend.log,
            tracer,
            for_operator=for_operator,
            server_name=backend.server_name,
            regions=backend.regions,
        )
        self._health = HealthService(engine)
        health_file = descriptor_pb2.FileDescriptorProto.FromString(HEALTH_FILE)
        self._reflection = Reflection((SERVICE, HEALTH_SERVICE), (*descriptor_files(), health_file))
        self.window = (config.stream_window, config.stream_window_bytes)
        """Requests, and bytes of their messages, under way on one ModelStreamInfer."""
        self._sessions: set[StreamSession] = set()
        self._draining = False

    def unary(self) -> Mapping[str, AnswerMessage]:
        """Paths of unary RPCs to what answers a serialised request; it raises ApplianceError."""
        answers = {f"/{SERVICE}/{name}": rpc.serve for name, rpc in self._handlers.rpcs().items()}
        return {**answers, f"/{HEALTH_SERVICE}/Check": self._health.check, ADDRESSES: self._addresses}

    def unary_of_users(self) -> Mapping[str, AnswerUser]:
        """The same, where the answer depends on whose the request is."""
        return {f"/{SERVICE}/{name}": rpc.serve for name, rpc in self._handlers.user_rpcs().items()}

    def streaming(self) -> Mapping[str, ServeStream]:
        """Paths of streaming RPCs to what serves one; it raises ApplianceError or Refused to end with a status."""
        return {
            INFER_STREAM: self._infer_stream,
            f"/{HEALTH_SERVICE}/Watch": self._watch,
            f"/{V1ALPHA}/{METHOD}": self._reflect,
            f"/{V1}/{METHOD}": self._reflect,
        }

    def _addresses(self, _: bytes) -> bytes:
        return json.dumps(self._listening.urls()).encode()

    def drain(self) -> None:
        """Streams end when what they have under way is answered."""
        self._draining = True
        self._health.end()
        for session in tuple(self._sessions):
            session.stop()

    async def _infer_stream(self, read: Read, write: Write, terms: Terms) -> None:
        metadata = tuple(terms.metadata)
        real_statuses = any(key == REAL_STATUSES and value in ("true", b"true") for key, value in metadata)

        def caller() -> Caller:
            """The sender of the message that came now."""
            return self.inference.caller(terms.sender, INFER_STREAM, self.inference.engine.now_ns(), metadata)

        session = StreamSession(
            self.inference,
            StreamWindow(*self.window),
            terms.deadline_ns,
            real_statuses,
            caller,
            terms.handed,
            terms.end_input,
        )
        self._sessions.add(session)
        try:
            if self._draining:
                session.stop()
            await session.run(read, write)
        finally:
            self._sessions.discard(session)

    async def _watch(self, read: Read, write: Write, _: Terms) -> None:
        await self._health.watch(read, write)

    async def _reflect(self, read: Read, write: Write, _: Terms) -> None:
        await self._reflection.serve(read, write)
