"""Every HTTP answer counts by its status, those with it that no handler gave."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from appliance.config.http import HttpConfig
from appliance.frontend.http.server import Handler, HttpServer
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.fronts import NATIVE, Sections, native_only, with_front_end

LIMITS = {"head_timeout_s": 0.5}
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def server(front_end: Sections, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    peers = {"max_connections_per_peer": 1} if front_end is NATIVE else {}
    sections = with_front_end(front_end, {"http": {**LIMITS, **peers}})
    with ApplianceProcess(tmp_path_factory.mktemp("models"), sections) as process:
        yield process.wait_ready()


def _connect(server: ApplianceProcess, source: str) -> socket.socket:
    host, _, port = server.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0))


def _to_the_end(client: socket.socket) -> bytes:
    received = b""
    try:
        while piece := client.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def _counted(server: ApplianceProcess, status: int) -> int:
    """Answers of that status so far, once the only connection that this address may have is free."""
    end = time.monotonic() + 20
    while True:
        with _connect(server, "127.0.0.9") as client:
            client.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            text = _to_the_end(client)
        if text.startswith(b"HTTP/1.1 200 "):
            found = re.search(rb'appliance_http_responses_total\{code="%d"\} (\d+)' % status, text)
            return int(found[1]) if found else 0
        assert time.monotonic() < end, text


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"GARBAGE\r\n\r\n", 400), (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431), (b"GET /v2 HT", 408)],
    ids=["malformed", "long", "slow"],
)
def test_heads_that_come_to_nothing_count(server: ApplianceProcess, sent: bytes, status: int) -> None:
    before = _counted(server, status)
    with _connect(server, "127.0.0.2") as client:
        client.sendall(sent)
        assert _to_the_end(client).startswith((b"HTTP/1.0 %d " % status, b"HTTP/1.1 %d " % status))
    assert _counted(server, status) == before + 1


def test_connections_beyond_all_count(front_end: Sections, serve: Serve, tmp_path: Path) -> None:
    server = serve(tmp_path, with_front_end(front_end, {"http": {"max_connections": 1}}))
    with _connect(server, "127.0.0.3") as first:
        first.sendall(GET)
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")
        for _ in range(3):
            with _connect(server, "127.0.0.3") as refused:
                assert _to_the_end(refused).startswith(b"HTTP/1.1 503 ")
    assert _counted(server, 503) >= 3


@native_only
def test_connections_of_one_address_that_are_not_let_in_count(server: ApplianceProcess) -> None:
    with _connect(server, "127.0.0.3") as first:
        first.sendall(GET)
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")
        before = _counted(server, 503)
        for number in range(1, 4):
            with _connect(server, "127.0.0.3") as refused:
                assert _to_the_end(refused).startswith(b"HTTP/1.1 503 ")
            assert _counted(server, 503) == before + number


# --- defects, of which a daemon has none to show


async def _fails(request: web.BaseRequest) -> web.StreamResponse:
    raise KeyError("a defect")


async def _fails_amid_its_answer(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"well, ")
    raise KeyError("a defect")


async def _writes_for_ever(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    assert request.transport is not None
    request.transport.abort()
    while True:
        await response.write(bytes(1 << 20))


@pytest.mark.parametrize(
    ("handler", "begins", "counted", "told"),
    [
        (_fails, b"HTTP/1.1 500 ", {500: 1}, True),
        (_fails_amid_its_answer, b"HTTP/1.1 200 ", {500: 1}, True),
        (_writes_for_ever, b"", {499: 1}, False),
    ],
)
async def test_what_a_handler_does_not_answer_counts_as_what_it_is(
    handler: Handler, begins: bytes, counted: dict[int, int], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = HttpServer(handler, HttpConfig())
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        with contextlib.suppress(ConnectionResetError):
            received = await reader.read()
        writer.close()
        await server.idle()
        assert received.startswith(begins)
        assert dict(server.tally.answers) == counted
        assert ("Error handling request" in caplog.text) is told
    finally:
        listener.close()
        await server.shutdown(0.1)
