"""HTTP as it is answered, wherever connections are accepted: routes to handlers, and one server of the HTTP library's.

A route is a path whose segments in braces stand for one decoded segment each (``router``). It asks the engine through
its port and knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from aiohttp import web

from appliance.config.http import HttpConfig
from appliance.frontend.http.body import BodyReader
from appliance.frontend.http.connection import Connection, Origin
from appliance.frontend.http.figures import FiguresHandler
from appliance.frontend.http.hosts import host_names
from appliance.frontend.http.inference import InferenceHandler, Templates
from appliance.frontend.http.monitoring import MonitoringPort
from appliance.frontend.http.openapi import openapi_document
from appliance.frontend.http.protocol import ProtocolHandler
from appliance.frontend.http.router import Route, Router, Routes
from appliance.frontend.http.server import HttpServer
from appliance.frontend.port import Backend
from appliance.frontend.quotas import Quotas
from appliance.telemetry.snapshot import HttpStatistics

POLL_S: Final = 0.005
SWEEP_S: Final = 1.0


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
        self._bodies = BodyReader(config, backend.turns)
        self._inference = InferenceHandler(backend, config, self._bodies, quotas)
        protocol = ProtocolHandler(backend, self._bodies)
        figures = FiguresHandler(backend)
        routes = [
            ("GET", "/v2/openapi.json", self._describe),
            *_inference_routes(self._inference),
            *_protocol_routes(protocol),
            *_extension_routes(protocol),
            *_figures_routes(figures),
        ]
        self._description = openapi_document((method, path) for method, path, _ in routes)
        self.server = HttpServer(Router(routes, host_names(config)).answer, config)
        self._monitoring = MonitoringPort(backend.metrics.addresses, config, protocol, figures)
        self._adopting: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.TimerHandle | None = None

    async def open(self) -> tuple[str, ...]:
        """Look after connections from here on, and listen for monitoring; gives the addresses for that as bound. Raises
        AddressUnavailable."""
        self._sweep()
        return await self._monitoring.open()

    def use_templates(self, templates: Templates) -> None:
        """Have templates made of what is served once."""
        self._inference.templates = templates

    def adopt(self, descriptor: int, origin: Origin) -> None:
        """Take over a connection that was accepted elsewhere."""
        task = asyncio.get_running_loop().create_task(self._connect(descriptor, origin))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def drain(self, grace_s: float) -> None:
        """Wait, at most ``grace_s``, until no request is being handled."""
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
        await self._monitoring.close()
        self.server.pre_shutdown()
        await self.server.shutdown(0.1)

    def statistics(self) -> HttpStatistics:
        """What was done over HTTP and is open, by the native front end and here, for monitoring as well."""
        tally, aside = self.server.tally, self._monitoring.server
        own = HttpStatistics(
            answers=tuple(sorted((tally.answers + aside.tally.answers).items())),
            connections=tally.connections + aside.tally.connections,
            refused_connections=tally.refused_connections + aside.tally.refused_connections,
            in_flight=self.server.in_flight + aside.in_flight,
            body_bytes=self._bodies.held_bytes,
            answer_bytes=tally.unread.held_bytes,
            refused_answers=tally.unread.refused,
        )
        return own if self._listener is None else _with_listener(own, self._listener())

    def _sweep(self) -> None:
        self.server.sweep()
        self._monitoring.server.sweep()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def _connect(self, descriptor: int, origin: Origin) -> None:
        made: Callable[[], Connection] = partial(self.server.adopt, origin)
        stream = socket.socket(fileno=descriptor)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(made, stream)
        except OSError:
            stream.close()  # what accepted it sees that, and ends the client's connection

    async def _describe(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=self._description, content_type="application/json")


def _with_listener(own: HttpStatistics, listener: ListenerFigures) -> HttpStatistics:
    """The figures of both. What the listener accepted counts there alone."""
    return replace(
        own,
        answers=tuple(sorted((Counter(dict(own.answers)) + Counter(dict(listener.answers))).items())),
        handshakes=listener.handshakes,
        connections=own.connections + listener.connections,
        refused_connections=own.refused_connections + listener.refused_connections,
        in_flight=own.in_flight + listener.serving,
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
    routes: list[Route] = [
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
    device = (protocol.device_regions, protocol.no_device_memory, protocol.unregister_device_region)
    for kind, status, register, unregister in (
        ("systemsharedmemory", protocol.regions, protocol.register, protocol.unregister),
        ("cudasharedmemory", *device),
    ):
        for region in (f"/v2/{kind}", f"/v2/{kind}/region/{{region}}"):
            routes.append(("GET", f"{region}/status", status))
            routes.append(("POST", f"{region}/register", register))
            routes.append(("POST", f"{region}/unregister", unregister))
    return routes


def _figures_routes(figures: FiguresHandler) -> Routes:
    return [
        ("GET", "/", figures.page),
        ("GET", "/models/{model}", figures.model_page),
        ("GET", "/status.json", figures.document),
        ("GET", "/metrics", figures.metrics),
    ]
