"""gRPC by the gRPC library's server: the only file of the daemon that knows it.

Every message passes as bytes, never as protobuf objects, to what serves it (``services``). Keeps to what costs little
per request: one future, no task, no metadata unless there is an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn
from urllib.parse import unquote

# The library's newer listener passes each event on between threads once more than the older one, which at concurrency 1
# costs a request a quarter of its time. Read when the library is imported; an operator's own setting wins.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
# What this process forks is at once another program; the library would look after its threads each time, and complain.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# What the library writes by itself, past the log and its bounds, clients choose: how much, and some of the words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from grpc import aio

from appliance.config.grpc import KEEPALIVE_TIMEOUT_S, GrpcConfig
from appliance.domain.address import UNIX, Address, address_of, check_free, parse_address, unavailable
from appliance.domain.errors import AddressUnavailable
from appliance.frontend.grpc.control import ControlHandlers
from appliance.frontend.grpc.inference import Caller
from appliance.frontend.grpc.services import INFER, TELL_OF_ALL, AnswerMessage, ServeStream, Services, Terms
from appliance.frontend.grpc.status import Refused, Status, status_for
from appliance.frontend.listening.certificates import Certificates, read_certificates, reread_certificates
from appliance.frontend.listening.sockets import UnixAccess, give_to_group, masked, unix_access
from appliance.frontend.port import Backend
from appliance.frontend.regions.users import UNKNOWN_USER
from appliance.frontend.turns import CLIENT

Context = aio.ServicerContext[Any, Any]
UnaryBehaviour = Callable[[bytes, Context], Awaitable[bytes]]
StreamBehaviour = Callable[[Any, Context], Awaitable[None]]

_CODES = {code.value[0]: code for code in grpc.StatusCode}

SECTION: Final = "grpc"
CONTROL: Final = "control"
RPCS_MAX: Final = 131_072
"""Under way at a time, of all clients, as many as the native front end has at most; more are RESOURCE_EXHAUSTED."""
BROKEN_S: Final = 0.5
"""How long a server that broke may go unnoticed."""


class GrpcServer:
    """Serves gRPC with the library's server. Make and use it on the event loop's thread, inside the running loop."""

    def __init__(self, backend: Backend, config: GrpcConfig, control: ControlHandlers | None = None) -> None:
        """``control`` makes it the operator's."""
        self._config = config
        self._control = control
        self._edge = SECTION if control is None else CONTROL
        self._services = Services(backend, config, for_operator=control is not None)
        self._server: aio.Server | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._shown: _Shown | None = None

    async def open(self) -> tuple[str, ...]:
        """Listen; gives the addresses as bound. Raises AddressUnavailable, and OperatorError for certificates that
        cannot be used."""
        config = self._config
        if not config.addresses:
            return ()
        if (certificates := read_certificates(config, SECTION)) is not None:
            self._shown = _Shown(certificates)
        bound = await self._listen(config.addresses)
        self._keeping = asyncio.create_task(self._keep(bound))
        return bound

    async def _listen(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Have a server there; gives where it is."""
        config = self._config
        server = aio.server(options=_options(config), maximum_concurrent_rpcs=RPCS_MAX)
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(service, methods)
                for service, methods in self._methods().items()
            )
        )
        access = unix_access(config.unix_mode, config.unix_group)
        bound = tuple(
            _bind_path(server, address, access, self._edge)
            if address.path
            else self._bind_port(server, address)
            for address in map(parse_address, addresses)
        )
        self._server = server
        await server.start()
        return bound

    async def _keep(self, bound: Sequence[str]) -> None:
        """Put another server in the place of one that broke: the library's ends for good at a path that is not UTF-8,
        and says so only to those who ask."""
        while (server := self._server) is not None:
            try:
                if not await server.wait_for_termination(BROKEN_S):
                    return
            except Exception:  # noqa: BLE001  whatever broke it, and the library has logged it
                with suppress(TimeoutError):
                    async with asyncio.timeout(BROKEN_S):
                        await server.stop(None)
                with suppress(AddressUnavailable):  # tried again: what broke stays broken
                    await self._listen(bound)

    async def reload(self) -> str | None:
        """See FrontEnd."""
        shown = self._shown
        return await reread_certificates(self._config, SECTION, shown.replace) if shown else None

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, wait up to ``grace_s`` seconds for those under way, then cut the rest."""
        self._services.drain()
        if self._server is not None:
            await self._server.stop(grace_s)

    async def close(self) -> None:
        """Close at once what is still open. May be called twice, and without ``open``."""
        server, self._server = self._server, None
        if self._keeping is not None:
            self._keeping.cancel()
        if server is not None:
            await server.stop(None)

    def _bind_port(self, server: aio.Server, address: Address) -> str:
        credentials = None if self._shown is None else self._shown.credentials()
        return _bind(server, address, self._config.reuse_port, credentials, self._edge)

    # --- RPCs

    def _methods(self) -> dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]:
        """Services to their methods."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            path: grpc.unary_unary_rpc_method_handler(self._answering(path, answer))
            for path, answer in self._services.unary().items()
        }
        for path, answer_user in self._services.unary_of_users().items():
            # The library does not tell whose a connection is.
            nobody = partial(answer_user, UNKNOWN_USER)
            handlers[path] = grpc.unary_unary_rpc_method_handler(self._answering(path, nobody))
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
            caller = _sender(context)
            if inference.nosy:
                metadata = context.invocation_metadata() or ()
                caller = inference.caller(caller, INFER, inference.engine.now_ns(), metadata)
            return await inference.unary(message, context.time_remaining(), caller)
        except Refused as refused:
            await _abort(context, refused.status)
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            inference.tally.failed += 1
            await _abort(context, status_for(error, INFER))

    def _answering(self, path: str, answer: AnswerMessage) -> UnaryBehaviour:
        turns = self._services.inference.turns if path in TELL_OF_ALL else None

        async def behave(message: bytes, context: Context) -> bytes:
            try:
                if turns is not None:
                    CLIENT.set(_sender(context).account)
                    await turns.next()
                return answer(message)
            except Exception as error:  # noqa: BLE001  a defect ends its own request
                await _abort(context, status_for(error, path))

        return behave

    def _serving(self, path: str, serve: ServeStream) -> StreamBehaviour:
        async def behave(_: object, context: Context) -> None:
            async def read() -> bytes | None:
                message = await context.read()
                return message if isinstance(message, bytes) else None

            deadline_ns = self._services.inference.deadline_ns(context.time_remaining())
            try:
                metadata = context.invocation_metadata() or ()
                await serve(read, context.write, Terms(deadline_ns, metadata, _sender(context)))
            except Exception as error:  # noqa: BLE001  a defect ends its own stream
                await _abort(context, status_for(error, path))

        return behave


def _sender(context: Context) -> Caller:
    """The client at the other end, by its address as the library writes it: "ipv4:10.0.0.1:5", "ipv6:[::1]:5"."""
    kind, _, rest = unquote(context.peer()).partition(":")
    host = rest.rpartition(":")[0].strip("[]") if kind != UNIX else UNIX
    return Caller(account=address_of(host) or "")


class _Shown:
    """Certificates that the library shows: before each handshake it asks, from a thread of its own, for others."""

    def __init__(self, certificates: Certificates) -> None:
        self._next = certificates
        self._told: Certificates | None = None

    def replace(self, certificates: Certificates) -> None:
        """Show these from the next handshake on."""
        self._next = certificates

    def credentials(self) -> grpc.ServerCredentials:
        """Make what a port is opened with."""
        first = _configured(self._next)
        ask: Any = self._changed  # None says that nothing changed, of which its annotations know nothing
        return grpc.dynamic_ssl_server_credentials(first, ask, bool(self._next.client_ca))

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        certificates = self._next
        if certificates is self._told:
            return None
        self._told = certificates
        return _configured(certificates)


def _configured(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    pair = (certificates.key, certificates.certificate)
    return grpc.ssl_server_certificate_configuration([pair], certificates.client_ca or None)


def _awaiting(path: str, answer: Callable[[bytes], Awaitable[bytes]]) -> UnaryBehaviour:
    async def behave(message: bytes, context: Context) -> bytes:
        try:
            return await answer(message)
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            await _abort(context, status_for(error, path))

    return behave


async def _abort(context: Context, status: Status) -> NoReturn:
    await context.abort(_CODES[status.code.value], status.text, status.metadata)


def _bind_path(server: aio.Server, address: Address, access: UnixAccess, edge: str) -> str:
    """A Unix socket. The library listens at once: until it belongs to its group it is for its owner alone."""
    try:
        with masked(access.mode if access.group < 0 else access.mode & 0o700):
            bound = _bind(server, address, False, None, edge)
        give_to_group(address.path, access.group)
        os.chmod(address.path, access.mode)
    except OSError as error:
        raise unavailable(address, edge, error) from error
    return bound


def _bind(
    server: aio.Server,
    address: Address,
    reuse_port: bool,
    credentials: grpc.ServerCredentials | None,
    edge: str,
) -> str:
    if not reuse_port:
        check_free(address, edge)
    target = address.with_port(address.port)
    try:
        port = (
            server.add_secure_port(target, credentials) if credentials else server.add_insecure_port(target)
        )
    except RuntimeError as error:
        raise unavailable(address, edge, str(error)) from error
    if port == 0:
        raise unavailable(address, edge, "the gRPC library could not bind it")
    return address.with_port(port)


def _options(config: GrpcConfig) -> list[tuple[str, int]]:
    options = [
        # Shared by default, a second server would get half of the clients.
        ("grpc.so_reuseport", int(config.reuse_port)),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        ("grpc.max_metadata_size", config.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", config.max_metadata_bytes),
        ("grpc.keepalive_time_ms", round(config.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", round(config.handshake_timeout_s * 1000)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(config.client_ping_interval_s * 1000)),
    ]
    if config.max_connection_age_s:
        options.append(("grpc.max_connection_age_ms", round(config.max_connection_age_s * 1000)))
    return options
