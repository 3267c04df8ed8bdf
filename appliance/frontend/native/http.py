"""HTTP by the native front end: it listens, serves what it has templates of, and hands all else to the application in
Python, over a socket for each connection."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

from edge_appliance_native import NativeServer

from appliance.config.http import HttpConfig
from appliance.domain.protocol import SERVER_NAME
from appliance.frontend.http.application import HttpApplication, ListenerFigures
from appliance.frontend.http.compression import COMPRESS_MIN_BYTES
from appliance.frontend.http.connection import TOO_MANY_CONNECTIONS, Origin
from appliance.frontend.http.hosts import host_names
from appliance.frontend.http.infer_request import JSON_BYTES_MAX
from appliance.frontend.http.status import plain_answer
from appliance.frontend.native.kept import KeptSockets
from appliance.frontend.native.ports import NativePort
from appliance.frontend.native.templates import HttpTemplates
from appliance.frontend.port import HEADER_BYTES_MAX, HEADERS_MAX
from appliance.frontend.quotas import Account

POLL_S: Final = 0.005
FLUSH_S: Final = 0.5
"""How long clients get to take their last answers."""

STATUSES: Final = (
    (200, ("http_answered",)),
    (429, ("http_late", "http_over_quota")),
    (504, ("http_expired",)),
    (400, ("http_handshakes_plain",)),
    (503, ("http_unavailable",)),
)
"""The answers that the server makes to requests and to connections, and under which names it counts them."""

HANDSHAKES: Final = (
    ("failed", "http_handshakes_failed"),
    ("late", "http_handshakes_late"),
    ("name", "http_clients_refused"),
    ("plain", "http_handshakes_plain"),
)
"""Why handshakes come to nothing, and under which names it counts them."""
PROTOCOL: Final = "http/1.1"
SECTION: Final = "http"
TOO_MANY_FROM_PEER: Final = plain_answer(
    "503 Service Unavailable", "too many connections from this address; try again later"
)
SPEAKS_TLS: Final = plain_answer("400 Bad Request", "this port speaks TLS; ask it with https://")


class NativeHttp:
    """The HTTP side of the native front end. Owner: the event loop's thread."""

    def __init__(self, config: HttpConfig, kept: KeptSockets) -> None:
        self._config = config
        self._port = NativePort(SECTION, config, kept, protocol=PROTOCOL, dual_stack=False)
        self._server: NativeServer | None = None
        self._templates: HttpTemplates | None = None
        self._application: HttpApplication | None = None

    def attach(self, server: NativeServer, templates: HttpTemplates | None) -> None:
        """``server`` serves from here on; with ``templates``, what it has one of by itself."""
        self._server = server
        self._templates = templates

    def open(self, application: HttpApplication) -> tuple[str, ...]:
        """Listen; gives the addresses as bound. Connections with anything that it does not serve by itself are given to
        ``application``. Raises AddressUnavailable and OperatorError."""
        config, server = self._config, self._server
        if not config.addresses:
            return ()
        assert server is not None, "HTTP without a server"
        self._application = application
        if self._templates is not None:
            application.use_templates(self._templates)
        bound, _ = self._port.open(
            lambda listeners, tls: server.serve_http(
                listeners=listeners,
                limits=_limits(config),
                hosts=host_names(config),
                server=SERVER_NAME,
                full=TOO_MANY_CONNECTIONS,
                crowded=TOO_MANY_FROM_PEER,
                plain=SPEAKS_TLS,
                tls=tls,
            )
        )
        return bound

    def admit(self) -> None:
        """Accept connections on inherited sockets as well, which ``open`` left alone. Raises OperatorError."""
        server = self._server
        if server is not None and self._application is not None:
            self._port.admit(lambda listeners: server.listen_http(listeners=listeners))

    async def reload(self) -> str | None:
        """See FrontEnd."""
        return await self._port.reload()

    def adopted(
        self, descriptor: int, client: str, attempts: int, name: str, account: Account, user: int
    ) -> None:
        """The server has handed a connection over."""
        assert self._application is not None, "a connection before anybody listened"
        self._application.adopt(descriptor, Origin(client, attempts, name, account, user))

    def figures(self) -> ListenerFigures:
        """A value to show."""
        counts = {} if self._server is None else self._server.statistics()
        answers = [(status, sum(counts.get(name, 0) for name in names)) for status, names in STATUSES]
        return ListenerFigures(
            connections=counts.get("http_connections_open", 0),
            refused_connections=counts.get("http_connections_refused", 0)
            + counts.get("http_connections_per_peer", 0),
            serving=counts.get("http_serving", 0),
            answers=tuple((status, count) for status, count in answers if count),
            handshakes=tuple((why, counts.get(name, 0)) for why, name in HANDSHAKES),
        )

    async def end(self) -> None:
        """Take no more connections, let clients take what they were sent, and close those that wait. May be called
        twice, and without ``open``."""
        server = self._server
        if server is None or self._application is None:
            return
        server.end_http()
        end = time.monotonic() + FLUSH_S
        while _busy(server.statistics()) and time.monotonic() < end:  # noqa: ASYNC110  the server can only be asked
            await asyncio.sleep(POLL_S)
        self._port.close()


def _busy(counts: dict[str, int]) -> bool:
    return bool(counts["http_listeners"] or counts["http_connections_open"])


def _limits(config: HttpConfig) -> dict[str, int]:
    """By the server's names."""
    return {
        "connections": config.max_connections,
        "connections_per_peer": config.max_connections_per_peer,
        "line_bytes": HEADER_BYTES_MAX,
        "headers": HEADERS_MAX,
        "json_bytes": JSON_BYTES_MAX,
        "body_bytes": config.max_body_bytes,
        "keepalive_ms": math.ceil(config.keepalive_s * 1000),
        "handshake_ms": math.ceil(config.handshake_timeout_s * 1000),
        "write_stall_ms": math.ceil(config.write_stall_s * 1000),
        "compress_bytes": COMPRESS_MIN_BYTES,
    }
