"""The server that makes a Connection for each client, counts what is handled, and sweeps connections; and its listening
with asyncio, which also speaks TLS, where no other front end accepts connections.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from appliance.config.http import HttpConfig
from appliance.frontend.http.connection import (
    Connection,
    ForeignRequest,
    Origin,
    Request,
    ServerTally,
    connection_of,
)
from appliance.frontend.listening.certificates import (
    read_certificates,
    reread_certificates,
    server_context,
)
from appliance.frontend.listening.sockets import Listeners, unix_access
from appliance.frontend.port import HEADER_BYTES_MAX, HEADERS_MAX
from appliance.frontend.statuses import CLIENT_CLOSED_REQUEST

LINGER_S: Final = 2.0
"""How long the rest of a refused body is read and thrown away, so that the client gets to read the answer."""
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpServer(web.Server):
    """Owns the counts of requests being handled and of answers. Owner: the event loop's thread."""

    def __init__(self, handler: Handler, config: HttpConfig, *, per_peer: int = 0) -> None:
        """``per_peer``: see ServerTally."""
        super().__init__(
            self._handled,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=config.keepalive_s,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            auto_decompress=False,
            lingering_time=LINGER_S,
            access_log=None,
        )
        self._handler = handler
        self._config = config
        self.tally = ServerTally(config, per_peer)
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __call__(self) -> Connection:
        return Connection(self, self._config, self.tally, loop=self._loop, **self._kwargs)

    def adopt(self, origin: Origin) -> Connection:
        """A connection that was accepted elsewhere."""
        return Connection(self, self._config, self.tally, origin, loop=self._loop, **self._kwargs)

    def _request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
    ) -> web.BaseRequest:
        protocol.begun = payload
        kind = Request if message.version.major == 1 else ForeignRequest
        return kind(message, payload, protocol, writer, task, self._loop)

    async def idle(self) -> None:
        """Return once no request is being handled."""
        await self._idle.wait()

    def sweep(self) -> None:
        """Look at every connection once."""
        now = self._loop.time()
        for connection in self.connections:
            if isinstance(connection, Connection):
                connection.sweep(now)

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = connection_of(request)
        connection.busy = True
        connection.begun = None
        connection.head_since = 0.0
        if connection.said_all and connection.is_last:
            connection.close()
        self.in_flight += 1
        self._idle.clear()
        try:
            response = await self._handler(request)
        except BaseException as error:
            connection.count_unread(0)
            if isinstance(error, asyncio.CancelledError):
                self.tally.answers[CLIENT_CLOSED_REQUEST] += 1
            raise
        finally:
            connection.busy = False
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()
        self.tally.answers[response.status] += 1
        return response


SECTION: Final = "http"
PROTOCOL: Final = "http/1.1"
BACKLOG: Final = 1024


class HttpListener:
    """Accepts connections for ``server``, as the ``section`` of the configuration says. Owner: the event loop's
    thread."""

    def __init__(self, server: HttpServer, config: HttpConfig, section: str = SECTION) -> None:
        self._server = server
        self._config = config
        self._listeners = Listeners(section, dual_stack=False)
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Server] = []

    async def open(self) -> tuple[str, ...]:
        """Listen; gives the addresses as bound. Raises AddressUnavailable, and OperatorError for certificates that
        cannot be used."""
        config = self._config
        if not config.addresses:
            return ()
        context = None if read_certificates(config, SECTION) is None else server_context(config, PROTOCOL)
        access = unix_access(config.unix_mode, config.unix_group)
        bound = self._listeners.open(config.addresses, (), reuse_port=config.reuse_port, access=access)
        self._sockets = [socket.socket(fileno=each) for each in self._listeners.hand_over(list)]
        await self._accept(context)
        return bound

    async def reload(self) -> str | None:
        """See FrontEnd."""
        if not self._config.tls_certificate or not self._sockets:
            return None
        until = await reread_certificates(self._config, SECTION)
        await self._accept(await asyncio.to_thread(server_context, self._config, PROTOCOL))
        return until

    def stop(self) -> None:
        """Take no new connections; open ones are still served. May be called twice."""
        for each in self._accepting:
            each.close()
        for listener in self._sockets:
            listener.close()
        self._accepting, self._sockets = [], []

    def close(self) -> None:
        """Stop, and remove the files of Unix sockets."""
        self.stop()
        self._listeners.close()

    async def _accept(self, context: ssl.SSLContext | None) -> None:
        """Accept on every socket with ``context``, over TCP, and no longer with the one before."""
        loop, before = asyncio.get_running_loop(), self._accepting
        timeout_s = None if context is None else self._config.handshake_timeout_s
        accepting: list[asyncio.Server] = []
        for listener in self._sockets:
            again = listener.dup()
            if listener.family == socket.AF_UNIX:
                accepting.append(await loop.create_unix_server(self._server, sock=again, backlog=BACKLOG))
            else:
                accepting.append(
                    await loop.create_server(
                        self._server,
                        sock=again,
                        backlog=BACKLOG,
                        ssl=context,
                        ssl_handshake_timeout=timeout_s,
                    )
                )
        self._accepting = accepting
        for each in before:
            each.close()
