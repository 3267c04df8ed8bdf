"""HTTP by the native front end: it listens, serves what it has templates of, and hands all else to the application in
Python, over a socket for each connection."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Sequence
from typing import Final

from edge_appliance_native import FastPath, NativeServer, Tls

from appliance.config.http import HttpConfig
from appliance.domain.errors import OperatorError
from appliance.domain.inference import RequestPlan
from appliance.domain.protocol import SERVER_NAME
from appliance.domain.tensor import Datatype
from appliance.engine.fastpath.direct import DirectEngine
from appliance.frontend.http.application import Adopt, ListenerFigures
from appliance.frontend.http.compression import COMPRESS_MIN_BYTES
from appliance.frontend.http.connection import TOO_MANY_CONNECTIONS, Origin
from appliance.frontend.http.status import plain_answer
from appliance.frontend.http.templates import Wording
from appliance.frontend.listening.access import unix_access
from appliance.frontend.listening.certificates import bearer_of, read_certificates
from appliance.frontend.listening.sockets import Listeners, inherited
from appliance.frontend.native.templates import Texts, keep
from appliance.frontend.port import HEADER_BYTES_MAX, HEADERS_MAX
from appliance.frontend.quota.quotas import Account
from appliance.workers.port import Shape

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
    """The HTTP side of the native front end, and TemplateKeeper for the application. Owner: the event loop's thread."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._listeners = Listeners(SECTION, dual_stack=False)
        self._server: NativeServer | None = None
        self._direct: DirectEngine | None = None
        self._fast_path: FastPath | None = None
        self._adopt: Adopt | None = None
        self._tls: Tls | None = None

    def attach(self, server: NativeServer, direct: DirectEngine | None) -> None:
        """``server`` serves from here on; with ``direct``, what it has templates of by itself."""
        self._server = server
        self._direct = direct
        self._fast_path = server.fast_path()

    def open(self, adopt: Adopt) -> tuple[str, ...]:
        """Listen; gives the addresses as bound. Connections with anything that it does not serve by itself are given to
        ``adopt``. Raises AddressUnavailable and OperatorError."""
        config, server = self._config, self._server
        if not config.addresses:
            return ()
        assert server is not None, "HTTP without a server"
        self._adopt = adopt
        certificates = read_certificates(config, SECTION)
        bound = self._listeners.open(
            config.addresses,
            inherited(os.environ, os.getpid()),
            reuse_port=config.reuse_port,
            access=unix_access(config.unix_mode, config.unix_group),
        )
        try:
            if certificates is not None:
                self._tls = Tls(*certificates, config.tls_client_names, PROTOCOL)
            self._listeners.hand_over(
                lambda listeners: server.serve_http(
                    listeners=listeners,
                    limits=_limits(config),
                    server=SERVER_NAME,
                    full=TOO_MANY_CONNECTIONS,
                    crowded=TOO_MANY_FROM_PEER,
                    plain=SPEAKS_TLS,
                    tls=self._tls,
                )
            )
        except (OSError, ValueError) as error:
            self._listeners.close()
            raise OperatorError(f"the native front end cannot listen for HTTP: {error}") from error
        return bound

    def admit(self) -> None:
        """Accept connections on inherited sockets as well, which ``open`` left alone. Raises OperatorError."""
        server = self._server
        if server is not None and self._adopt is not None:
            try:
                self._listeners.hand_over_inherited(lambda listeners: server.listen_http(listeners=listeners))
            except OSError as error:
                raise OperatorError(f"the native front end cannot take over the sockets: {error}") from error

    async def reload(self) -> str | None:
        """Show the certificates as they are now from the next connection on; as NativeGrpc's."""
        if self._tls is None:
            return None
        run = asyncio.get_running_loop().run_in_executor
        certificates = await run(None, read_certificates, self._config, SECTION)
        assert certificates is not None
        try:
            self._tls.reload(*certificates)
        except ValueError as error:
            raise OperatorError(f"the native front end refuses the certificates: {error}") from error
        bearer = await run(None, bearer_of, self._config)
        return bearer.until if bearer else ""

    def adopted(self, descriptor: int, client: str, attempts: int, name: str, account: Account) -> None:
        """The server has handed a connection over."""
        assert self._adopt is not None, "a connection before anybody listened"
        self._adopt(descriptor, Origin(client, attempts, name, account))

    def head_of(self, target: str, text: bytes) -> bytes | None:
        """See TemplateKeeper."""
        return None if self._fast_path is None else self._fast_path.http_head(target, text)

    def keep(
        self,
        head: bytes,
        plan: RequestPlan,
        shapes: Sequence[Shape],
        sizes: Sequence[int],
        wording: Wording,
    ) -> None:
        """See TemplateKeeper."""
        template = None if self._direct is None else self._direct.template_of(plan, shapes)
        if template is None or self._fast_path is None:
            return
        described, *following = wording.pieces
        closing = following.pop() if following else b""
        between = iter(
            [b"", *following]
        )  # what stands before each output that is JSON, but for what all begins with
        pieces = [b"" if datatype is None else next(between) for datatype in wording.outputs]
        texts = Texts(_codes(wording.inputs), _codes(wording.outputs))
        keep(self._fast_path, head, template, wording.opening, described, pieces, sizes, closing, texts)

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
        if server is None or self._adopt is None:
            return
        server.end_http()
        end = time.monotonic() + FLUSH_S
        while _busy(server.statistics()) and time.monotonic() < end:  # noqa: ASYNC110  the server can only be asked
            await asyncio.sleep(POLL_S)
        self._listeners.close()


def _busy(counts: dict[str, int]) -> bool:
    return bool(counts["http_listeners"] or counts["http_connections_open"])


def _codes(datatypes: Sequence[Datatype | None]) -> list[str]:
    """Format characters of ``struct``; empty for what is binary."""
    return ["" if datatype is None else datatype.code for datatype in datatypes]


def _limits(config: HttpConfig) -> dict[str, int]:
    """By the server's names."""
    return {
        "connections": config.max_connections,
        "connections_per_peer": config.max_connections_per_peer,
        "line_bytes": HEADER_BYTES_MAX,
        "headers": HEADERS_MAX,
        "json_bytes": config.max_json_bytes,
        "body_bytes": config.max_body_bytes,
        "keepalive_ms": math.ceil(config.keepalive_s * 1000),
        "handshake_ms": math.ceil(config.handshake_timeout_s * 1000),
        "write_stall_ms": math.ceil(config.write_stall_s * 1000),
        "compress_bytes": COMPRESS_MIN_BYTES,
    }
