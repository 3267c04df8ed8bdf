"""The server that makes a Connection for each client, counts what is handled, and sweeps connections."""

from __future__ import annotations

import asyncio
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
from appliance.frontend.http.status import CLIENT_CLOSED_REQUEST
from appliance.frontend.port import HEADER_BYTES_MAX, HEADERS_MAX

LINGER_S: Final = 2.0
"""How long the rest of a refused body is read and thrown away, so that the client gets to read the answer."""
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpServer(web.Server):
    """Owns the counts of requests being handled and of answers. Owner: the event loop's thread."""

    def __init__(self, handler: Handler, config: HttpConfig) -> None:
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
        self.tally = ServerTally(config)
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
