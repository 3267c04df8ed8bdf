"""Listening for HTTP with asyncio, which also speaks TLS. Sockets are opened as everywhere."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from typing import Final

from appliance.config.http import HttpConfig
from appliance.frontend.http.server import HttpServer
from appliance.frontend.listening.access import unix_access
from appliance.frontend.listening.certificates import bearer_of, read_certificates, server_context
from appliance.frontend.listening.sockets import Listeners

SECTION: Final = "http"
PROTOCOL: Final = "http/1.1"
BACKLOG: Final = 1024


class HttpListener:
    """Accepts connections for ``server``. Owner: the event loop's thread."""

    def __init__(self, server: HttpServer, config: HttpConfig) -> None:
        self._server = server
        self._config = config
        self._listeners = Listeners(SECTION, dual_stack=False)
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
        """Read the certificates again and show them from the next connection on; gives until when the server's holds
        ("": no client takes it now), None where there are none. Raises OperatorError, and goes on with the old ones,
        when they cannot be used. The files are read off the loop's thread: a slow disk must not stall requests."""
        if not self._config.tls_certificate or not self._sockets:
            return None
        run = partial(asyncio.get_running_loop().run_in_executor, None)
        await run(read_certificates, self._config, SECTION)
        await self._accept(await run(server_context, self._config, PROTOCOL))
        bearer = await run(bearer_of, self._config)
        return bearer.until if bearer else ""

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
