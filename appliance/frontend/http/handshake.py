"""TLS on the edge's own addresses: handshakes in bounded number and time, before anything of HTTP is read.

asyncio takes in any number of them and counts none, so connections are accepted here and become the server's when their
handshake is through. A client that does not speak TLS is told so, in the clear.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from typing import Final

from appliance.frontend.http.connection import SPEAKS_TLS, HttpServer

BREATHER_S: Final = 0.05
"""How long to wait when the system has no connection to give, for instance for want of descriptors."""
LINGER_S: Final = 1.0
"""How long a client that does not speak TLS may still send while it gets to read why it is not served."""
LINGER_BYTES: Final = 1 << 16
TLS_RECORD: Final = b"\x16"
"""The first byte of whoever speaks TLS."""


class Handshakes:
    """Accepts on TCP sockets for ``server``. ``context`` is what new connections are served with, and may be replaced.
    Owner: the event loop's thread."""

    def __init__(self, server: HttpServer, timeout_s: float, context: ssl.SSLContext) -> None:
        self.context = context
        self._server = server
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, listener: socket.socket) -> None:
        """Accept on ``listener``, which does not block, until ``close``."""
        self._spawn(self._accept(listener))

    def close(self) -> None:
        """Accept no more, and cut handshakes under way. May be called twice."""
        for task in tuple(self._tasks):
            task.cancel()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    stream, address = await loop.sock_accept(listener)
                except ConnectionAbortedError:
                    continue
                except OSError:
                    await asyncio.sleep(BREATHER_S)
                    continue
                self._welcome(stream, str(address[0]))

    def _welcome(self, stream: socket.socket, host: str) -> None:
        """No handshake is made for a connection too many: it is closed."""
        if self._server.expect(host):
            self._spawn(self._shake(stream, host))
        else:
            stream.close()

    async def _shake(self, stream: socket.socket, host: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        connection = self._server.expected(host)
        try:
            async with asyncio.timeout_at(until):
                if await _first_byte(stream) != TLS_RECORD:
                    self._server.handshakes["plain"] += 1
                    self._server.count_plain(SPEAKS_TLS)
                    await _refuse(stream)
                else:
                    await loop.connect_accepted_socket(
                        lambda: connection, stream, ssl=self.context, ssl_handshake_timeout=self._timeout_s
                    )
        except OSError:  # of which TimeoutError and what ssl raises are some
            self._server.handshakes["late" if loop.time() >= until else "failed"] += 1
        finally:
            self._server.met(connection)
            if not connection.is_made:
                stream.close()


async def _first_byte(stream: socket.socket) -> bytes:
    """What the client begins with, left where it is; TLS's where it says nothing before it ends."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(stream, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(stream)
    return stream.recv(1, socket.MSG_PEEK) or TLS_RECORD


async def _refuse(stream: socket.socket) -> None:
    """Tell why, and read on for a moment: a connection that is closed on unread bytes takes its last ones back."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(stream, SPEAKS_TLS)
    stream.shutdown(socket.SHUT_WR)
    read = 0
    try:
        async with asyncio.timeout(LINGER_S):
            while read < LINGER_BYTES and (piece := await loop.sock_recv(stream, LINGER_BYTES)):
                read += len(piece)
    except TimeoutError:
        pass
