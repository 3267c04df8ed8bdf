"""The HTTP edge as the daemon sees it: opens addresses, serves, drains, closes.

It asks the engine through its port and knows nothing of the gRPC door.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from aiohttp import web

from appliance.config.http import HttpConfig, HttpNative
from appliance.config.metrics import MetricsConfig
from appliance.domain.errors import ApplianceError, OperatorError
from appliance.domain.identity import SERVER_NAME
from appliance.engine.fastpath.front import FrontFigures, FrontTerms, HttpFront
from appliance.engine.port import EnginePort
from appliance.frontend.http.body import BodyReader
from appliance.frontend.http.connection import (
    SPEAKS_TLS,
    SWEEP_S,
    TOO_MANY_CONNECTIONS,
    TOO_MANY_FROM_PEER,
    Connection,
    ForeignRequest,
    HttpServer,
)
from appliance.frontend.http.control import ControlHandler, LogSettings
from appliance.frontend.http.handshake import Handshakes
from appliance.frontend.http.inference import InferenceHandler
from appliance.frontend.http.metrics import MetricsHandler
from appliance.frontend.http.protocol_api import ProtocolHandler
from appliance.frontend.http.router import RouteHandler, Router
from appliance.frontend.http.status import error_response
from appliance.frontend.http.status_handler import StatusHandler
from appliance.frontend.listening.access import unix_access
from appliance.frontend.listening.certificates import bearer_of, read_certificates, server_context
from appliance.frontend.listening.sockets import Listeners, inherited
from appliance.frontend.quota.quotas import Account, Quotas
from appliance.telemetry.snapshot import HttpStatistics, Snapshot
from appliance.telemetry.trace import Tracer

BACKLOG = 1024
EDGE = "http"
PROTOCOL = "http/1.1"
POLL_S = 0.005


class HttpEdge:
    """Serves HTTP for ``engine``. ``read`` gives the figures of the moment, ``front``
    is what may listen in the edge's place, ``quotas`` what clients may ask. Make and use it on the loop's thread,
    inside the running loop; open once, close once."""

    def __init__(
        self,
        engine: EnginePort,
        config: HttpConfig,
        log: LogSettings,
        *,
        read: Callable[[], Snapshot],
        metrics: MetricsConfig | None = None,
        tracer: Tracer | None = None,
        front: HttpFront | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._config = config
        self._front = front
        self._adopting: set[asyncio.Task[None]] = set()
        self._bodies = BodyReader(config)
        self._protocol = ProtocolHandler(engine)
        self._router = Router(
            [
                *_inference_routes(InferenceHandler(engine, config, self._bodies, tracer, front, quotas)),
                *_protocol_routes(self._protocol),
                *_control_routes(ControlHandler(engine, self._bodies, log, tracer)),
                *_people_routes(StatusHandler(read), MetricsHandler(read, metrics or MetricsConfig())),
            ]
        )
        self._server = HttpServer(self._handle, config)
        self._sockets = Listeners(EDGE, dual_stack=False)
        self._listeners: list[asyncio.Server] = []
        self._handshakes: Handshakes | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    async def open(self) -> tuple[str, ...]:
        """Listen on every configured address; gives them as bound, with real ports. Raises AddressUnavailable, and
        OperatorError for certificates that cannot be used."""
        front = self._front = self._chosen_front()
        terms = _terms(self._config)
        bound = front.open(terms, self._adopt) if front is not None else await self._listen(terms)
        self._sweep()
        return bound

    async def admit(self) -> None:
        """Accept connections on inherited sockets as well, which ``open`` left alone: their first client had this
        process started, waits meanwhile, and shall find its model. Raises OperatorError."""
        if self._front is not None:
            self._front.admit()
            return
        given: list[int] = []
        self._sockets.hand_over_inherited(given.extend)
        await self._serve(given)

    async def reload(self) -> str | None:
        """Read the certificates again and show them from the next connection on; gives until when the server's holds
        ("": no client takes it now), None where there are none. Raises OperatorError, and goes on with the old ones,
        when they cannot be used. The files are read off the loop's thread: a slow disk must not stall requests."""
        if not self._config.tls_certificate or not self._config.addresses:
            return None
        run = partial(asyncio.get_running_loop().run_in_executor, None)
        certificates = await run(read_certificates, self._config, EDGE)
        assert certificates is not None
        if self._front is not None:
            self._front.reload(certificates)
        elif self._handshakes is not None:
            self._handshakes.context = await run(server_context, self._config, PROTOCOL)
        bearer = await run(bearer_of, self._config)
        return bearer.until if bearer else ""

    def announce_stop(self) -> None:
        """Turn readiness off while requests are still served."""
        self._protocol.announced_stop = True

    def stop_accepting(self) -> None:
        """Take no new connections; open ones are still answered."""
        self.announce_stop()
        for listener in self._listeners:
            listener.close()
        if self._handshakes is not None:
            self._handshakes.close()

    async def drain(self, grace_s: float) -> None:
        """Stop accepting and wait, at most ``grace_s``, until no request is being handled."""
        self.stop_accepting()
        try:
            async with asyncio.timeout(grace_s):
                await self._server.idle()
                while self._front is not None and self._front.figures().serving:  # noqa: ASYNC110  it can only be asked
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Close everything; requests still being handled are cut off."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self.stop_accepting()
        self._server.pre_shutdown()
        await self._server.shutdown(0.1)
        if self._front is not None:
            await self._front.end()
        self._sockets.close()

    def statistics(self) -> HttpStatistics:
        """What this edge did and has open."""
        own = HttpStatistics(
            answers=tuple(sorted(self._server.answers.items())),
            handshakes=tuple(self._server.handshakes.items()),
            connections=len(self._server.connections),
            refused_connections=self._server.refused_connections,
            in_flight=self._server.in_flight,
            body_bytes=self._bodies.held_bytes,
            answer_bytes=self._server.unread.held_bytes,
            refused_answers=self._server.unread.refused,
        )
        return own if self._front is None else _with_front(own, self._front.figures())

    def _chosen_front(self) -> HttpFront | None:
        """What listens in the edge's place, if anything does."""
        wanted, front = self._config.native, self._front
        if wanted is HttpNative.OFF or not self._config.addresses:
            return None
        if front is not None and front.available and (front.serves or wanted is HttpNative.ON):
            return front
        if wanted is HttpNative.ON:
            raise OperatorError(
                "http.native is on, but no native gRPC door serves that could listen for HTTP"
            )
        return None

    def _adopt(self, descriptor: int, client: str, attempts: int, name: str, account: Account) -> None:
        """Take a connection over from the front."""
        made = partial(self._server.adopt, client, attempts, name, account)
        task = asyncio.get_running_loop().create_task(self._connect(descriptor, made))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _connect(self, descriptor: int, made: Callable[[], Connection]) -> None:
        stream = socket.socket(fileno=descriptor)
        connect = asyncio.get_running_loop().connect_accepted_socket
        try:
            await connect(made, stream)
        except OSError:
            stream.close()  # the front sees it, and ends the client's connection

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            if isinstance(request, ForeignRequest):
                raise request.refusal()
            handler, names = self._router.match(request.method, request.rel_url.raw_path)
            return await handler(request, *names)
        except ApplianceError as error:
            return error_response(error)

    async def _listen(self, terms: FrontTerms) -> tuple[str, ...]:
        if terms.certificates is not None:
            context = server_context(self._config, PROTOCOL)
            self._handshakes = Handshakes(self._server, terms.handshake_timeout_s, context)
        available = inherited(os.environ, os.getpid())
        bound = self._sockets.open(
            terms.addresses, available, reuse_port=terms.reuse_port, access=terms.access
        )
        await self._serve(self._sockets.hand_over(list))
        return bound

    async def _serve(self, descriptors: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in descriptors:
            listener = socket.socket(fileno=descriptor)
            if listener.family == socket.AF_UNIX:
                server = await loop.create_unix_server(self._server, sock=listener, backlog=BACKLOG)
                self._listeners.append(server)
            elif self._handshakes is not None:
                self._handshakes.listen(listener)
            else:
                server = await loop.create_server(self._server, sock=listener, backlog=BACKLOG)
                self._listeners.append(server)

    def _sweep(self) -> None:
        self._server.sweep()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


def _terms(config: HttpConfig) -> FrontTerms:
    """What whoever listens in the edge's place must keep."""
    return FrontTerms(
        addresses=config.addresses,
        reuse_port=config.reuse_port,
        access=unix_access(config.unix_mode, config.unix_group),
        certificates=read_certificates(config, EDGE) if config.addresses else None,
        client_names=config.tls_client_names,
        handshake_timeout_s=config.handshake_timeout_s,
        max_connections=config.max_connections,
        max_connections_per_peer=config.max_connections_per_peer,
        max_json_bytes=config.max_json_bytes,
        max_body_bytes=config.max_body_bytes,
        max_header_bytes=config.max_header_bytes,
        max_headers=config.max_headers,
        keepalive_s=config.keepalive_s,
        write_stall_s=config.write_stall_s,
        compress_min_bytes=config.compress_min_bytes,
        server=SERVER_NAME,
        full=TOO_MANY_CONNECTIONS,
        crowded=TOO_MANY_FROM_PEER,
        plain=SPEAKS_TLS,
    )


def _with_front(own: HttpStatistics, front: FrontFigures) -> HttpStatistics:
    """The figures of both. A connection that the edge has is one of the front's."""
    return replace(
        own,
        answers=tuple(sorted((Counter(dict(own.answers)) + Counter(dict(front.answers))).items())),
        handshakes=front.handshakes,
        connections=front.connections,
        refused_connections=own.refused_connections + front.refused_connections,
        in_flight=own.in_flight + front.serving,
    )


Routes = list[tuple[str, str, RouteHandler]]


def _inference_routes(inference: InferenceHandler) -> Routes:
    return [
        ("POST", "/v2/models/*/infer", inference.infer),
        ("POST", "/v2/models/*/versions/*/infer", inference.infer),
    ]


def _protocol_routes(protocol: ProtocolHandler) -> Routes:
    return [
        ("GET", "/v2", protocol.server),
        ("GET", "/v2/health/live", protocol.live),
        ("GET", "/v2/health/ready", protocol.ready),
        ("GET", "/v2/models/stats", protocol.statistics),
        ("GET", "/v2/models/*", protocol.model),
        ("GET", "/v2/models/*/ready", protocol.model_ready),
        ("GET", "/v2/models/*/config", protocol.config),
        ("GET", "/v2/models/*/stats", protocol.statistics),
        ("GET", "/v2/models/*/versions/*", protocol.model),
        ("GET", "/v2/models/*/versions/*/ready", protocol.model_ready),
        ("GET", "/v2/models/*/versions/*/config", protocol.config),
        ("GET", "/v2/models/*/versions/*/stats", protocol.statistics),
    ]


def _control_routes(control: ControlHandler) -> Routes:
    routes: Routes = [
        ("POST", "/v2/repository/index", control.index),
        ("POST", "/v2/repository/models/*/load", control.load),
        ("POST", "/v2/repository/models/*/unload", control.unload),
        ("GET", "/v2/logging", control.log_settings),
        ("POST", "/v2/logging", control.update_log),
        ("GET", "/v2/trace/setting", control.trace_settings),
        ("POST", "/v2/trace/setting", control.update_trace),
        ("GET", "/v2/models/*/trace/setting", control.trace_settings),
        ("POST", "/v2/models/*/trace/setting", control.update_trace),
    ]
    for kind in ("systemsharedmemory", "cudasharedmemory"):
        for region in (f"/v2/{kind}", f"/v2/{kind}/region/*"):
            routes.append(("GET", f"{region}/status", control.shared_memory))
            routes.append(("POST", f"{region}/register", control.shared_memory))
            routes.append(("POST", f"{region}/unregister", control.shared_memory))
    return routes


def _people_routes(status: StatusHandler, metrics: MetricsHandler) -> Routes:
    return [
        ("GET", "/", status.page),
        ("GET", "/status.json", status.document),
        ("GET", "/metrics", metrics.metrics),
    ]
