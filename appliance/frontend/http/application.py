"""HTTP as it is answered, wherever connections are accepted: routes to handlers, and one server of the HTTP library's.

A route is a path whose segments in braces stand for one decoded segment each. It asks the engine through its port and
knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from appliance.config.http import HttpConfig
from appliance.domain.errors import ApplianceError
from appliance.frontend.http.body import BodyReader
from appliance.frontend.http.connection import Connection, ForeignRequest, Origin, connection_of
from appliance.frontend.http.figures import FiguresHandler
from appliance.frontend.http.hosts import check_host, check_sender, host_names
from appliance.frontend.http.inference import InferenceHandler, Templates
from appliance.frontend.http.openapi import openapi_document
from appliance.frontend.http.protocol import ProtocolHandler
from appliance.frontend.http.server import HttpServer
from appliance.frontend.http.status import HttpRefusal, error_response
from appliance.frontend.port import Backend
from appliance.frontend.quotas import Quotas
from appliance.frontend.turns import CLIENT
from appliance.telemetry.snapshot import HttpStatistics

POLL_S: Final = 0.005
SWEEP_S: Final = 1.0

RouteHandler = Callable[..., Awaitable[web.StreamResponse]]
Routes = list[tuple[str, str, RouteHandler]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFigures:
    """What the native front end did of HTTP by itself and has open: ``answers`` are pairs of status and count,
    ``serving`` counts requests that it is serving now; ``handshakes`` are pairs of why and how many TLS handshakes came
    to nothing."""

    connections: int
    refused_connections: int
    serving: int
    answers: tuple[tuple[int, int], ...]
    handshakes: tuple[tuple[str, int], ...]


class HttpApplication:
    """Answers HTTP for ``backend``. Where the front end accepts connections by itself, ``listener`` gives what it did
    with them, and ``quotas`` are what clients may ask. Make and use it on the loop's thread, inside the running
    loop."""

    def __init__(
        self,
        backend: Backend,
        config: HttpConfig,
        *,
        listener: Callable[[], ListenerFigures] | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._listener = listener
        self._hosts = host_names(config)
        self._bodies = BodyReader(config, backend.turns)
        self._inference = InferenceHandler(backend, config, self._bodies, quotas)
        self._protocol = ProtocolHandler(backend, self._bodies)
        routes = [
            ("GET", "/v2/openapi.json", self._describe),
            *_inference_routes(self._inference),
            *_protocol_routes(self._protocol),
            *_extension_routes(self._protocol),
            *_figures_routes(FiguresHandler(backend.read, backend.recent, backend.metrics, backend.turns)),
        ]
        self._router = Router(routes)
        self._description = openapi_document((method, path) for method, path, _ in routes)
        self.server = HttpServer(self._handle, config)
        self._adopting: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look after connections from here on."""
        self.server.sweep()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self.start)

    def use_templates(self, templates: Templates) -> None:
        """Have templates made of what is served once."""
        self._inference.templates = templates

    def adopt(self, descriptor: int, origin: Origin) -> None:
        """Take over a connection that was accepted elsewhere."""
        task = asyncio.get_running_loop().create_task(self._connect(descriptor, origin))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    def announce_stop(self) -> None:
        """Turn readiness off while requests are still served."""
        self._protocol.announced_stop = True

    async def drain(self, grace_s: float) -> None:
        """Wait, at most ``grace_s``, until no request is being handled."""
        self.announce_stop()
        try:
            async with asyncio.timeout(grace_s):
                await self.server.idle()
                while self._listener is not None and self._listener().serving:  # noqa: ASYNC110  it can only be asked
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Close every connection; requests still being handled are cut off."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self.announce_stop()
        self.server.pre_shutdown()
        await self.server.shutdown(0.1)

    def statistics(self) -> HttpStatistics:
        """What was done over HTTP and is open, by the native front end and here."""
        tally = self.server.tally
        own = HttpStatistics(
            answers=tuple(sorted(tally.answers.items())),
            connections=tally.connections,
            refused_connections=tally.refused_connections,
            in_flight=self.server.in_flight,
            body_bytes=self._bodies.held_bytes,
            answer_bytes=tally.unread.held_bytes,
            refused_answers=tally.unread.refused,
        )
        return own if self._listener is None else _with_listener(own, self._listener())

    async def _connect(self, descriptor: int, origin: Origin) -> None:
        made: Callable[[], Connection] = partial(self.server.adopt, origin)
        stream = socket.socket(fileno=descriptor)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(made, stream)
        except OSError:
            stream.close()  # what accepted it sees that, and ends the client's connection

    async def _describe(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=self._description, content_type="application/json")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            if isinstance(request, ForeignRequest):
                raise request.refusal()
            connection = connection_of(request)
            CLIENT.set(connection.sender)
            if connection.peername:  # no browser comes over a Unix socket
                check_host(request, self._hosts)
            if request.method == "POST":
                check_sender(request)
            handler, names = self._router.match(request.method, request.rel_url.raw_path)
            return await handler(request, *names)
        except ApplianceError as error:
            return error_response(error)


def _with_listener(own: HttpStatistics, listener: ListenerFigures) -> HttpStatistics:
    """The figures of both. Every connection here is one of the listener's."""
    return replace(
        own,
        answers=tuple(sorted((Counter(dict(own.answers)) + Counter(dict(listener.answers))).items())),
        handshakes=listener.handshakes,
        connections=listener.connections,
        refused_connections=listener.refused_connections,
        in_flight=own.in_flight + listener.serving,
    )


class Router:
    """A fixed table of routes; the first that fits wins, so literal ones are listed first."""

    def __init__(self, routes: Iterable[tuple[str, str, RouteHandler]]) -> None:
        self._methods: dict[str, dict[str, RouteHandler]] = {}
        for method, path, handler in routes:
            pattern = re.sub(r"\\{\w+\\}", "([^/]*)", re.escape(path.strip("/")))
            self._methods.setdefault(pattern, {})[method] = handler

    def match(self, method: str, raw_path: str) -> tuple[RouteHandler, tuple[str, ...]]:
        """The handler and the segments for its braces; raises HttpRefusal 404 or 405."""
        path = raw_path.strip("/")
        for pattern, methods in self._methods.items():
            if found := re.fullmatch(pattern, path):
                handler = methods.get("GET" if method == "HEAD" else method)
                if handler is None:
                    raise _wrong_method(method, raw_path, methods)
                return handler, tuple(map(unquote, found.groups()))
        raise HttpRefusal(HTTPStatus.NOT_FOUND, f"there is nothing at '{raw_path}' here")


def _wrong_method(method: str, raw_path: str, methods: Iterable[str]) -> HttpRefusal:
    allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
    return HttpRefusal(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"'{raw_path}' does not take {method}; it takes {allowed}",
        {"Allow": allowed},
    )


def _inference_routes(inference: InferenceHandler) -> Routes:
    return [
        ("POST", "/v2/models/{model}/infer", inference.infer),
        ("POST", "/v2/models/{model}/versions/{version}/infer", inference.infer),
    ]


def _protocol_routes(protocol: ProtocolHandler) -> Routes:
    return [
        ("GET", "/v2", protocol.server),
        ("GET", "/v2/health/live", protocol.live),
        ("GET", "/v2/health/ready", protocol.ready),
        ("GET", "/v2/models/stats", protocol.statistics),
        ("GET", "/v2/models/{model}", protocol.model),
        ("GET", "/v2/models/{model}/ready", protocol.model_ready),
        ("GET", "/v2/models/{model}/config", protocol.config),
        ("GET", "/v2/models/{model}/stats", protocol.statistics),
        ("GET", "/v2/models/{model}/versions/{version}", protocol.model),
        ("GET", "/v2/models/{model}/versions/{version}/ready", protocol.model_ready),
        ("GET", "/v2/models/{model}/versions/{version}/config", protocol.config),
        ("GET", "/v2/models/{model}/versions/{version}/stats", protocol.statistics),
    ]


def _extension_routes(protocol: ProtocolHandler) -> Routes:
    routes: Routes = [
        ("POST", "/v2/repository/index", protocol.index),
        ("POST", "/v2/repository/models/{model}/load", protocol.load),
        ("POST", "/v2/repository/models/{model}/unload", protocol.unload),
        ("GET", "/v2/logging", protocol.log_settings),
        ("POST", "/v2/logging", protocol.update_log),
        ("GET", "/v2/trace/setting", protocol.trace_settings),
        ("POST", "/v2/trace/setting", protocol.update_trace),
        ("GET", "/v2/models/{model}/trace/setting", protocol.trace_settings),
        ("POST", "/v2/models/{model}/trace/setting", protocol.update_trace),
    ]
    for kind in ("systemsharedmemory", "cudasharedmemory"):
        for region in (f"/v2/{kind}", f"/v2/{kind}/region/{{region}}"):
            routes.append(("GET", f"{region}/status", protocol.shared_memory))
            routes.append(("POST", f"{region}/register", protocol.shared_memory))
            routes.append(("POST", f"{region}/unregister", protocol.shared_memory))
    return routes


def _figures_routes(figures: FiguresHandler) -> Routes:
    return [
        ("GET", "/", figures.page),
        ("GET", "/models/{model}", figures.model_page),
        ("GET", "/status.json", figures.document),
        ("GET", "/metrics", figures.metrics),
    ]
