"""The front door over grpc.aio: the only file that knows the gRPC library.

Every message passes as bytes, never as protobuf objects, to what serves it (``services``). Keeps to what costs little
per request: one future, no task, no metadata unless there is an error.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn
from urllib.parse import unquote

# The library's newer listener passes each event on between threads once more than the older one, which at concurrency 1
# costs a request a quarter of its time (docs/BENCHMARKS.md). Read when the library is imported; an operator's own
# setting wins.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
# What this process forks is at once another program; the library would look after its threads each time, and complain.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from grpc import aio

from appliance.config.grpc import DoorConfig, DoorKind
from appliance.config.listening import inherits
from appliance.domain.address import Address, check_free, parse_address, unavailable
from appliance.domain.errors import AddressUnavailable, OperatorError, QuotaExceeded
from appliance.engine.port import EnginePort
from appliance.frontend.grpc.control import ControlHandlers
from appliance.frontend.grpc.door import DoorStatistics, LogControl
from appliance.frontend.grpc.failure import status_for
from appliance.frontend.grpc.inference import NOBODY, Refused
from appliance.frontend.grpc.services import INFER, INFER_STREAM, AnswerMessage, ServeStream, Services, Terms
from appliance.frontend.grpc.status import Status
from appliance.frontend.listening.access import UnixAccess, unix_access
from appliance.frontend.listening.sockets import give_to_group, masked
from appliance.frontend.quota.quotas import Account, Quotas
from appliance.telemetry.snapshot import DoorFigures
from appliance.telemetry.trace import Tracer

Context = aio.ServicerContext[Any, Any]
UnaryBehaviour = Callable[[bytes, Context], Awaitable[bytes]]
StreamBehaviour = Callable[[Any, Context], Awaitable[None]]

_CODES = {code.value[0]: code for code in grpc.StatusCode}

EDGE = "grpc"


class GrpcioDoor:
    """FrontDoor over grpc.aio. Make and use it on the event loop's thread, inside the running loop."""

    def __init__(
        self,
        engine: EnginePort,
        config: DoorConfig,
        log: LogControl,
        tracer: Tracer | None = None,
        control: ControlHandlers | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """``control`` makes it the operator's."""
        self._config = config
        self._control = control
        self._quotas = quotas
        self._services = Services(engine, config, log, tracer)
        self._server: aio.Server | None = None

    # --- FrontDoor

    async def open(self) -> tuple[str, ...]:
        """See FrontDoor."""
        if self._config.tls_certificate:
            raise OperatorError(
                "grpc.tls_certificate: the grpcio door has no TLS; the native door can ('make door')"
            )
        addresses = [_address(text) for text in self._config.addresses]
        if not addresses:
            return ()
        server = aio.server(options=_options(self._config))
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(service, methods)
                for service, methods in self._methods().items()
            )
        )
        access = unix_access(self._config.unix_mode, self._config.unix_group)
        bound = tuple(
            _bind_path(server, address, access)
            if address.path
            else _bind(server, address, self._config.reuse_port)
            for address in addresses
        )
        self._server = server
        await server.start()
        return bound

    def announce_stop(self) -> None:
        """See FrontDoor."""
        self._services.announce_stop()

    def admit(self) -> None:
        """See FrontDoor. It takes over no sockets."""

    async def reload(self) -> None:
        """See FrontDoor. There are no certificates."""

    async def drain(self, grace_s: float) -> None:
        """See FrontDoor."""
        self._services.drain()
        if self._server is not None:
            await self._server.stop(grace_s)

    async def close(self) -> None:
        """See FrontDoor."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    def front(self) -> None:
        """See FrontDoor. The library speaks no HTTP/1."""
        return

    def statistics(self) -> DoorStatistics:
        """See FrontDoor."""
        return self._services.statistics()

    def figures(self) -> DoorFigures:
        """See FrontDoor. The library counts nothing that it would tell."""
        return DoorFigures(door=DoorKind.GRPCIO.value, counts={}, limits={})

    # --- RPCs

    def _methods(self) -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
        """Services to their methods."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            path: grpc.unary_unary_rpc_method_handler(_answering(path, answer))
            for path, answer in self._services.unary().items()
        }
        for path, serve in self._services.streaming().items():
            handlers[path] = grpc.stream_stream_rpc_method_handler(self._serving(path, serve))
        for path, slow in self._control.unary().items() if self._control is not None else ():
            handlers[path] = grpc.unary_unary_rpc_method_handler(_awaiting(path, slow))
        handlers[INFER] = grpc.unary_unary_rpc_method_handler(self._infer)
        services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        for path, handler in handlers.items():
            _, service, method = path.split("/")
            services.setdefault(service, {})[method] = handler
        return services

    async def _infer(self, message: bytes, context: Context) -> bytes:
        inference = self._services.inference
        try:
            caller = NOBODY
            if inference.nosy:
                metadata = context.invocation_metadata() or ()
                caller = inference.caller("", INFER, inference.engine.now_ns(), metadata)
            meter = self._meter(context)
            if meter is None:
                return await inference.unary(message, context.time_remaining(), caller)
            meter.enter()
            try:
                return await inference.unary(message, context.time_remaining(), caller)
            finally:
                meter.leave()
        except Refused as refused:
            await _abort(context, refused.status)
        except QuotaExceeded as error:
            inference.tally.requests += 1
            await _abort(context, inference.over_quota(error).status)
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            inference.tally.failed += 1
            await _abort(context, status_for(error, INFER))

    def _meter(self, context: Context) -> ClientMeter | None:
        """What the client of an RPC may still ask; None where nobody is bounded."""
        if self._quotas is None or not self._quotas.on:
            return None
        return ClientMeter(self._quotas, self._quotas.account(_host(context.peer())))

    def _serving(self, path: str, serve: ServeStream) -> StreamBehaviour:
        async def behave(_: object, context: Context) -> None:
            async def read() -> bytes | None:
                message = await context.read()
                return message if isinstance(message, bytes) else None

            deadline_ns = self._services.inference.deadline_ns(context.time_remaining())
            try:
                meter = self._meter(context) if path == INFER_STREAM else None
                metadata = context.invocation_metadata() or ()
                await serve(read, context.write, Terms(deadline_ns, metadata, meter=meter))
            except Exception as error:  # noqa: BLE001  a defect ends its own stream
                await _abort(context, status_for(error, path))

        return behave


class ClientMeter:
    """Meter over quotas."""

    def __init__(self, quotas: Quotas, account: Account) -> None:
        self._quotas = quotas
        self._account = account

    def enter(self) -> bool:
        """See Meter."""
        return self._quotas.enter(self._account)

    def leave(self) -> None:
        """See Meter."""
        self._account.give()


def _host(peer: str) -> str:
    """The network address in ``ipv4:10.0.0.1:5``, ``ipv6:%5B::1%5D:5`` or ``unix:``; "" where there is none."""
    family, _, rest = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return ""
    return unquote(rest).rpartition(":")[0].strip("[]")


def _answering(path: str, answer: AnswerMessage) -> UnaryBehaviour:
    async def behave(message: bytes, context: Context) -> bytes:
        try:
            return answer(message)
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            await _abort(context, status_for(error, path))

    return behave


def _awaiting(path: str, answer: Callable[[bytes], Awaitable[bytes]]) -> UnaryBehaviour:
    async def behave(message: bytes, context: Context) -> bytes:
        try:
            return await answer(message)
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            await _abort(context, status_for(error, path))

    return behave


async def _abort(context: Context, status: Status) -> NoReturn:
    await context.abort(_CODES[status.code.value], status.text, status.metadata)


def _address(text: str) -> Address:
    if inherits(text):
        raise AddressUnavailable(
            f"{EDGE} cannot listen on {text}: the grpcio door takes over no sockets; the native door does ('make door')"
        )
    return parse_address(text)


def _bind_path(server: aio.Server, address: Address, access: UnixAccess) -> str:
    """A Unix socket. The library listens at once: until it belongs to its group it is for its owner alone."""
    try:
        with masked(access.mode if access.group < 0 else access.mode & 0o700):
            bound = _bind(server, address, reuse_port=False)
        give_to_group(address.path, access.group)
        os.chmod(address.path, access.mode)
    except OSError as error:
        raise unavailable(address, EDGE, error.strerror or str(error)) from error
    return bound


def _bind(server: aio.Server, address: Address, reuse_port: bool) -> str:
    if not reuse_port:
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
        # Shared by default, a second server would get half of the clients.
        ("grpc.so_reuseport", int(config.reuse_port)),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        ("grpc.max_metadata_size", config.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", config.max_metadata_bytes),
        ("grpc.keepalive_time_ms", round(config.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(config.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", round(config.handshake_timeout_s * 1000)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(config.client_ping_interval_s * 1000)),
    ]
    if config.max_connection_age_s:
        options.append(("grpc.max_connection_age_ms", round(config.max_connection_age_s * 1000)))
    return options
