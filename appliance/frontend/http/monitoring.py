"""The addresses for monitoring alone: metrics and the probes of health over plain HTTP, so that what scrapes needs no
certificate where clients do, and reaches nothing else.

Bounds and names of the server are those of ``[http]``. It listens with asyncio whatever front end serves, and for
longer than that: who asks while the appliance drains is told so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from appliance.config.http import HttpConfig
from appliance.frontend.http.figures import FiguresHandler
from appliance.frontend.http.hosts import host_names
from appliance.frontend.http.protocol import ProtocolHandler
from appliance.frontend.http.router import Router, Routes
from appliance.frontend.http.server import HttpListener, HttpServer

SECTION: Final = "metrics"


class MonitoringPort:
    """Listens at ``addresses`` and is otherwise as ``http`` says; no addresses turn it off. Make and use it on the
    loop's thread, inside the running loop."""

    def __init__(
        self, addresses: tuple[str, ...], http: HttpConfig, protocol: ProtocolHandler, figures: FiguresHandler
    ) -> None:
        config = replace(
            http,
            addresses=addresses,
            reuse_port=False,  # a scrape must not be dealt out to another appliance
            tls_certificate="",
            tls_key="",
            tls_client_ca="",
            tls_client_names=(),
        )
        router = Router(_routes(protocol, figures), host_names(config))
        self.server = HttpServer(router.answer, config, per_peer=config.max_connections_per_peer)
        self._listener = HttpListener(self.server, config, SECTION)

    async def open(self) -> tuple[str, ...]:
        """Listen; gives the addresses as bound. Raises AddressUnavailable."""
        return await self._listener.open()

    async def close(self) -> None:
        """Close every connection, and listen no more. May be called twice, and without ``open``."""
        self._listener.close()
        self.server.pre_shutdown()
        await self.server.shutdown(0.1)


def _routes(protocol: ProtocolHandler, figures: FiguresHandler) -> Routes:
    return [
        ("GET", "/metrics", figures.metrics),
        ("GET", "/v2/health/live", protocol.live),
        ("GET", "/v2/health/ready", protocol.ready),
    ]
