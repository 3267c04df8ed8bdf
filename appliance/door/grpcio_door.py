"""The front door over grpc.aio: the only file that knows the gRPC library.

Inference messages pass as bytes, never as protobuf objects; everything else goes to the transport-independent
handlers. Health and reflection use the library's own messages. Keeps to what costs little per request: one future, no
task, no metadata unless there is an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

# The library's newer listener passes each event on between threads once more than the older one, which at concurrency 1
# costs a request a quarter of its time (docs/BENCHMARKS.md). Read when the library is imported; an operator's own
# setting wins.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from appliance.address import Address, check_free, parse_address, unavailable
from appliance.door.door import SERVICE, DoorConfig, DoorStatistics, LogControl
from appliance.door.envelope import EnvelopeLimits
from appliance.door.handlers import Handlers, Rpc
from appliance.door.health import Health, health_of
from appliance.door.inference import Inference, Refused
from appliance.door.status import Code, Status, status_of
from appliance.door.stream import StreamSession
from appliance.door.wire_pb.pool import descriptor_files
from appliance.engine.port import EnginePort
from appliance.errors import ApplianceError

Context = aio.ServicerContext[Any, Any]
UnaryBehaviour = Callable[[bytes, Context], Awaitable[bytes]]

HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICE = "grpc.reflection.v1.ServerReflection"
REAL_STATUSES = "triton_grpc_error"
_CODES = {code.value[0]: code for code in grpc.StatusCode}

EDGE = "grpc"


class GrpcioDoor:
    """FrontDoor over grpc.aio. Make and use it on the event loop's thread, inside the running loop."""

    def __init__(self, engine: EnginePort, config: DoorConfig, log: LogControl) -> None:
        self._engine = engine
        self._config = config
        limits = EnvelopeLimits(tensors_max=config.max_tensors, head_bytes_max=config.max_head_bytes)
        self._inference = Inference(engine, limits)
        self._handlers = Handlers(engine, log)
        self._server: aio.Server | None = None
        self._sessions: set[StreamSession] = set()
        self._watchers: set[asyncio.Event] = set()
        self._draining = False

    # --- FrontDoor

    async def open(self) -> tuple[str, ...]:
        """See FrontDoor."""
        addresses = [parse_address(text) for text in self._config.addresses]
        if not addresses:
            return ()
        server = aio.server(options=_options(self._config))
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, self._service()),
                grpc.method_handlers_generic_handler(HEALTH_SERVICE, self._health_service()),
                *_reflection_handlers(),
            )
        )
        bound = tuple(_bind(server, address) for address in addresses)
        self._server = server
        await server.start()
        return bound

    def announce_stop(self) -> None:
        """See FrontDoor."""
        self._handlers.stopping = True
        self._wake_watchers()

    async def drain(self, grace_s: float) -> None:
        """See FrontDoor."""
        self.announce_stop()
        self._draining = True
        self._wake_watchers()
        for session in tuple(self._sessions):
            session.stop()
        if self._server is not None:
            await self._server.stop(grace_s)

    async def close(self) -> None:
        """See FrontDoor."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    def statistics(self) -> DoorStatistics:
        """See FrontDoor."""
        tally = self._inference.tally
        return DoorStatistics(
            requests=tally.requests,
            answered=tally.answered,
            failed=tally.failed,
            cancelled=tally.cancelled,
            streams=tally.streams,
        )

    # --- inference

    def _service(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(_answering(rpc))
            for name, rpc in self._handlers.rpcs().items()
        }
        methods["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self._infer)
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        return methods

    async def _infer(self, message: bytes, context: Context) -> bytes:
        try:
            return await self._inference.unary(message, context.time_remaining())
        except Refused as refused:
            await _abort(context, refused.status)

    async def _stream(self, _: object, context: Context) -> None:
        async def read() -> bytes | None:
            message = await context.read()
            return message if isinstance(message, bytes) else None

        session = StreamSession(
            self._inference,
            self._config.stream_window,
            self._inference.deadline_ns(context.time_remaining()),
            _wants_real_statuses(context),
        )
        self._sessions.add(session)
        try:
            if self._draining:
                session.stop()
            await session.run(read, context.write)
        except Refused as refused:
            await _abort(context, refused.status)
        finally:
            self._sessions.discard(session)

    # --- health

    def _health_service(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check_health,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(
                self._watch_health,
                request_deserializer=health_pb2.HealthCheckRequest.FromString,
                response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
            ),
        }

    def _health(self, service: str) -> Health:
        return health_of(self._engine, service, self._handlers.stopping)

    async def _check_health(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        health = self._health(request.service)
        if health is Health.SERVICE_UNKNOWN:
            await _abort(
                context, Status(Code.NOT_FOUND, f"no model or service '{request.service[:200]}' is known")
            )
        return health_pb2.HealthCheckResponse(status=health.value)

    async def _watch_health(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        changed = asyncio.Event()
        end_watch = self._engine.watch(changed.set)
        self._watchers.add(changed)
        told: Health | None = None
        try:
            while True:
                changed.clear()
                health = self._health(request.service)
                if health is not told:
                    told = health
                    await context.write(health_pb2.HealthCheckResponse(status=health.value))
                if self._draining:
                    return
                await changed.wait()
        finally:
            self._watchers.discard(changed)
            end_watch()

    def _wake_watchers(self) -> None:
        for changed in self._watchers:
            changed.set()


def _answering(rpc: Rpc) -> UnaryBehaviour:
    async def answer(message: bytes, context: Context) -> bytes:
        try:
            return rpc.serve(message)
        except ApplianceError as error:
            await _abort(context, status_of(error))

    return answer


async def _abort(context: Context, status: Status) -> NoReturn:
    await context.abort(_CODES[status.code.value], status.text, status.metadata)


def _wants_real_statuses(context: Context) -> bool:
    metadata = context.invocation_metadata() or ()
    return any(key == REAL_STATUSES and value in ("true", b"true") for key, value in metadata)


def _bind(server: aio.Server, address: Address) -> str:
    check_free(address, EDGE)
    target = address.with_port(address.port)
    try:
        port = server.add_insecure_port(target)
    except RuntimeError as error:
        raise unavailable(address, EDGE, str(error)) from error
    if port == 0:
        raise unavailable(address, EDGE, "the gRPC library could not bind it")
    return address.with_port(port)


def _options(config: DoorConfig) -> list[tuple[str, int]]:
    options = [
        # Without this a second server could share the port, and each would get half of the clients.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        ("grpc.max_metadata_size", config.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", config.max_metadata_bytes),
        ("grpc.keepalive_time_ms", round(config.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(config.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(config.client_ping_interval_s * 1000)),
    ]
    if config.max_connection_age_s:
        options.append(("grpc.max_connection_age_ms", round(config.max_connection_age_s * 1000)))
    return options


def _reflection_handlers() -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
    """Reflection under both of its names: newer clients ask for v1, whose messages are the same."""
    pool = descriptor_pool.DescriptorPool()
    for file in (*descriptor_files(), _file(health_pb2), _file(reflection_pb2)):
        pool.Add(file)
    names = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
    servicer = ReflectionServicer(names, pool=pool)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return tuple(
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        for name in (reflection.SERVICE_NAME, REFLECTION_SERVICE)
    )


def _file(module: Any) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
