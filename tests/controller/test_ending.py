"""The controller ends with all that it had begun, what begins while it ends included."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from appliance.controller.home import Settings, make_home, open_home
from appliance.controller.server import application, end_tasks, server_tls
from tests.controller.api.desk import START_MS


@contextmanager
def half_shaken(port: int) -> Iterator[tuple[socket.socket, bytes]]:
    """A connection on which the client's last bytes of the handshake are not sent yet, and those."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    got, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(got, sent)
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(sent.read())
                got.write(connection.recv(1 << 16))
        yield connection, sent.read()


def unsent(connection: socket.socket) -> int:
    """How many bytes the other end has yet to take (SIOCOUTQ)."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_a_connection_whose_handshake_ends_in_its_last_moment_leaves_no_task(tmp_path: Path) -> None:
    folder = tmp_path / "controller"
    make_home(folder, Settings(url="https://127.0.0.1:1", address="127.0.0.1:0"), (), (), START_MS)
    home = open_home(folder)

    async def serve_and_end() -> set[asyncio.Task[object]]:
        runner = web.AppRunner(application(home), shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_tls(home)).start()
        opened = half_shaken(runner.addresses[0][1])
        connection, last = await asyncio.to_thread(opened.__enter__)
        try:
            await runner.cleanup()
            assert asyncio.all_tasks() - {asyncio.current_task()}, "the connection has not been made"
            connection.sendall(last)
            while unsent(connection):  # not awaited: the loop is to find them after it was told to end
                pass
            await asyncio.sleep(0)
            await end_tasks()
            return asyncio.all_tasks() - {asyncio.current_task()}
        finally:
            opened.__exit__(None, None, None)

    try:
        assert not asyncio.run(serve_and_end())
    finally:
        home.close()
