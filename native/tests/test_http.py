"""HTTP through the front end, with the test itself as the edge: what passes, what ends when, and who may hold what."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from edge_appliance_native import HTTP, TURNED_AWAY, FastPath, Tls

from native.tests.host import PATIENCE_S, Host, listening
from tests.frontend.grpc.certificate_files import make_authority, make_named, make_signed
from tests.frontend.http.tls_client import trusting

LIMITS = {
    "connections": 4,
    "connections_per_peer": 1000,
    "line_bytes": 1024,
    "headers": 8,
    "json_bytes": 1 << 20,
    "body_bytes": 1 << 20,
    "keepalive_ms": 60_000,
    "handshake_ms": 60_000,
    "write_stall_ms": 60_000,
    "compress_bytes": 1024,
}
FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PLAIN = FULL.replace(b"503", b"400")
CROWDED = FULL.replace(b"503", b"599")
GET = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v2/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SOME = 1 << 20


class HttpHost(Host):
    """A front end that listens for HTTP, over TCP or on the Unix socket ``path``; connections of clients and of the
    edge end with it."""

    def __init__(self, path: Path | None = None, *, http_tls: Tls | None = None, **limits: int) -> None:
        super().__init__()
        self._path = path
        self._http_tls = http_tls
        self.name = ""
        self._limits = LIMITS | limits
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> HttpHost:
        super().__enter__()
        listener = listening(socket.AF_UNIX, str(self._path)) if self._path else listening()
        self.http: tuple[str, int] | str = listener.getsockname()
        self.server.serve_http(
            listeners=[],
            hosts=None,
            limits=self._limits,
            server="s",
            full=FULL,
            crowded=CROWDED,
            plain=PLAIN,
            tls=self._http_tls,
        )
        self.server.listen_http(listeners=[listener.detach()])
        return self

    def __exit__(self, *how: object) -> None:
        super().__exit__(*how)  # type: ignore[arg-type]
        for each in self._sockets:
            each.close()

    def client(self, sent: bytes = b"") -> socket.socket:
        """A client that has sent something."""
        client = socket.socket(socket.AF_UNIX if self._path else socket.AF_INET)
        self._sockets.append(client)
        client.settimeout(PATIENCE_S)
        client.connect(self.http)
        client.sendall(sent)
        return client

    def edge(self) -> socket.socket:
        """The edge's end of the next connection that it is handed."""
        _, descriptor, client, attempts, self.name, account, user = self.expect(HTTP)
        assert account.client == (self.name or client or "unix")
        assert (client, attempts) == ("" if self._path else "127.0.0.1", 0)
        assert user == (os.getuid() if self._path else -1)
        edge = socket.socket(fileno=descriptor)
        self._sockets.append(edge)
        edge.settimeout(PATIENCE_S)
        return edge

    def until(self, name: str, count: int) -> None:
        """Wait until the front end has counted so."""
        end = time.monotonic() + PATIENCE_S
        while self.server.statistics()[name] != count:
            assert time.monotonic() < end, (name, self.server.statistics()[name])
            time.sleep(0.005)


@pytest.fixture
def host() -> Iterator[HttpHost]:
    with HttpHost() as host:
        yield host


def exactly(stream: socket.socket, expected: bytes) -> None:
    """Just that comes next."""
    received = b""
    while len(received) < len(expected):
        piece = stream.recv(len(expected) - len(received))
        assert piece, f"the end after {received!r}"
        received += piece
    assert received == expected


def nothing(stream: socket.socket, seconds: float = 0.1) -> None:
    """Nothing comes for now."""
    stream.settimeout(seconds)
    with pytest.raises(TimeoutError):
        stream.recv(1)
    stream.settimeout(PATIENCE_S)


def ended(stream: socket.socket) -> None:
    """The other side has ended it."""
    with suppress(ConnectionResetError, ssl.SSLError):
        assert stream.recv(1) == b""


def _sent(writer: socket.socket) -> int:
    """How much goes until nothing goes any more."""
    sent = 0
    with suppress(TimeoutError):
        while sent < 64 * SOME:
            sent += writer.send(bytes(65_536))
    return sent


def test_requests_pass_one_by_one_over_one_connection_to_the_edge(host: HttpHost) -> None:
    client = host.client(GET + POST + GET)
    edge = host.edge()
    for request in (GET, POST, GET):
        exactly(edge, request)
        nothing(edge)
        edge.sendall(OK)
        exactly(client, OK)
    host.until("http_passed", 3)
    assert host.server.statistics()["http_tunnels"] == 0
    assert host.quiet()


@pytest.mark.parametrize(
    "odd",
    [
        b"HEAD /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v2 HTTP/1.0\r\nHost: x\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\n folded: x\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 1024 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\n",
    ],
)
def test_what_is_odd_and_all_after_it_is_the_edges_byte_for_byte(host: HttpHost, odd: bytes) -> None:
    client = host.client(GET)
    edge = host.edge()
    exactly(edge, GET)
    edge.sendall(OK)
    exactly(client, OK)
    client.sendall(odd + GET)
    exactly(edge, odd + GET)
    edge.sendall(b"whatever")
    exactly(client, b"whatever")
    client.sendall(b"more")
    exactly(edge, b"more")
    edge.close()
    ended(client)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"no HTTP at all\r\n\r\n",
    ],
)
def test_a_response_whose_end_is_not_known_makes_a_tunnel(host: HttpHost, response: bytes) -> None:
    client = host.client(GET + GET)
    edge = host.edge()
    exactly(edge, GET)
    edge.sendall(response)
    exactly(client, response)
    exactly(edge, GET)
    edge.close()
    ended(client)
    host.until("http_tunnels", 1)
    host.until("http_connections_open", 0)


def test_an_answer_may_come_before_all_of_the_request(host: HttpHost) -> None:
    client = host.client(POST[:-2])
    edge = host.edge()
    exactly(edge, POST[:-2])
    edge.sendall(OK)
    exactly(client, OK)
    client.sendall(POST[-2:] + GET)
    exactly(edge, POST[-2:] + GET)


def test_a_head_that_is_not_whole_is_soon_the_edges(host: HttpHost) -> None:
    client = host.client(GET[:9])
    edge = host.edge()
    exactly(edge, GET[:9])
    client.sendall(GET[9:])
    exactly(edge, GET[9:])


def test_a_client_that_goes_is_gone_for_the_edge(host: HttpHost) -> None:
    for closes in (True, False):
        client = host.client(GET)
        edge = host.edge()
        exactly(edge, GET)
        if closes:
            client.close()
        else:
            client.shutdown(socket.SHUT_WR)
        ended(edge)
        edge.sendall(OK)  # it may still answer one who only said that he is done
        edge.close()
    exactly(client, OK)
    ended(client)
    host.until("http_connections_open", 0)


@pytest.mark.parametrize("family", ["tcp", "unix"])
@pytest.mark.parametrize("halves", [True, False], ids=["after-its-half", "at-once"])
def test_a_client_that_is_gone_altogether_is_not_waited_for(
    family: str, halves: bool, tmp_path: Path
) -> None:
    """The close of a Unix socket, or a reset: also after the client said that it will send no more."""
    with HttpHost(tmp_path / "http" if family == "unix" else None) as host:
        client = host.client(GET)
        edge = host.edge()
        exactly(edge, GET)
        if halves:
            client.shutdown(socket.SHUT_WR)
            ended(edge)
            nothing(client)
            host.until("http_connections_open", 1)
        if family == "tcp":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        host.until("http_connections_open", 0)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            edge.sendall(OK)


def test_an_edge_that_vanishes_ends_the_connection(host: HttpHost) -> None:
    client = host.client(POST[:-2])
    edge = host.edge()
    exactly(edge, POST[:-2])
    edge.sendall(OK[:-1])
    edge.close()
    exactly(client, OK[:-1])
    ended(client)
    client.close()
    host.until("http_connections_open", 0)


def test_an_edge_that_refuses_while_much_is_being_sent_is_heard(host: HttpHost) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    client = host.client(b"POST /v2/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
    edge = host.edge()
    edge.sendall(refusal)
    edge.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(bytes(64 * SOME))
    exactly(client, refusal)


def test_who_does_not_read_holds_up_who_writes(host: HttpHost) -> None:
    """Both ways: what is under way is bounded, whatever is sent."""
    client = host.client(b"POST /v2/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
    edge = host.edge()
    for writer, reader in ((client, edge), (edge, client)):
        writer.settimeout(0.3)
        assert _sent(writer) < 16 * SOME
        writer.settimeout(PATIENCE_S)
        reader.settimeout(PATIENCE_S)
        assert reader.recv(10), "what was sent before"


def test_a_client_that_takes_nothing_is_cut_off() -> None:
    with HttpHost(write_stall_ms=200) as host:
        host.client(GET)
        edge = host.edge()
        exactly(edge, GET)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            edge.sendall(bytes(64 * SOME))
        host.until("http_stalled", 1)
        host.until("http_connections_open", 0)


def test_a_connection_too_many_is_told_so(host: HttpHost) -> None:
    crowd = [host.client() for _ in range(LIMITS["connections"])]
    host.until("http_connections_open", len(crowd))
    refused = host.client()
    exactly(refused, FULL)
    ended(refused)
    host.until("http_connections_refused", 1)
    host.until("http_unavailable", 1)
    crowd[0].close()
    host.until("http_connections_open", len(crowd) - 1)
    host.client(GET)
    exactly(host.edge(), GET)


def test_a_connection_too_many_from_one_address_is_told_so() -> None:
    with HttpHost(connections_per_peer=2) as host:
        held = [host.client() for _ in range(2)]
        host.until("http_connections_open", 2)
        refused = host.client()
        exactly(refused, CROWDED)
        ended(refused)
        host.until("http_connections_per_peer", 1)
        host.until("http_unavailable", 1)
        held[0].close()
        host.until("http_connections_open", 1)
        host.client(GET)
        exactly(host.edge(), GET)


def test_a_connection_that_waits_too_long_is_closed() -> None:
    with HttpHost(keepalive_ms=300) as host:
        client = host.client(GET)
        edge = host.edge()
        exactly(edge, GET)
        started = time.monotonic()
        edge.sendall(OK)
        exactly(client, OK)
        ended(client)
        assert time.monotonic() - started >= 0.3, "it was not given its time"


def test_at_the_end_who_waits_is_let_go_and_who_is_served_is_answered(host: HttpHost) -> None:
    waiting, served = host.client(), host.client(GET)
    edge = host.edge()
    exactly(edge, GET)
    host.until("http_connections_open", 2)
    host.server.end_http()
    ended(waiting)
    host.until("http_listeners", 0)
    with pytest.raises(ConnectionRefusedError):
        host.client()
    edge.sendall(OK)
    exactly(served, OK)
    ended(served)
    host.until("http_connections_open", 0)


def test_idle_connections_need_no_edge(host: HttpHost) -> None:
    host.client()
    host.until("http_connections_open", 1)
    assert host.quiet()


def test_limits_and_listeners_that_cannot_be_are_refused() -> None:
    with Host() as host:
        arguments = {"hosts": None, "server": "s", "full": FULL, "crowded": CROWDED}
        for wrong in ({"headers": 0}, {"speed": 1}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                host.server.serve_http(listeners=[], limits=LIMITS | wrong, **arguments)  # type: ignore[arg-type]
        reading, writing = os.pipe()
        with pytest.raises(OSError, match=f"descriptor {reading}"):
            host.server.serve_http(listeners=[reading], limits=LIMITS, **arguments)  # type: ignore[arg-type]
        os.close(reading)
        os.close(writing)
    with pytest.raises(RuntimeError):
        host.server.serve_http(listeners=[], limits=LIMITS, **arguments)  # type: ignore[arg-type]


def test_requests_are_recognised_without_their_id() -> None:
    target = "/v2/models/m/infer"
    heads = {FastPath.http_head(target, b'{"id":"%d","inputs":[]}' % number) for number in range(3)}
    assert len(heads) == 1
    assert None not in heads
    assert FastPath.http_head(target, b' { "id" : "x" ,\n\t"inputs": [ ] } ') in heads, (
        "white space is no part of it"
    )
    assert FastPath.http_head(target, b'{"inputs":[]}') not in heads
    assert FastPath.http_head("/v2/models/n/infer", b'{"id":"0","inputs":[]}') not in heads
    for other, text in (("/v2", b"{}"), (target, b'{"id":7}'), (target, b"[]")):
        assert FastPath.http_head(other, text) is None


def test_over_tls_the_edge_is_told_who_a_client_is(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    server = make_signed(tmp_path, "server", authority)
    pem = [path.read_bytes() for path in (*server, authority.certificate)]
    camera = make_named(tmp_path, "camera", authority, "/CN=x", "URI:spiffe://site/camera")
    with HttpHost(http_tls=Tls(*pem, ["spiffe://site/camera"], "http/1.1")) as host:
        with trusting(authority, camera).wrap_socket(host.client(), server_hostname="localhost") as client:
            client.sendall(GET)
            edge = host.edge()
            assert host.name == "spiffe://site/camera"
            exactly(edge, GET)
            large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SOME + bytes(SOME)
            sending = threading.Thread(target=edge.sendall, args=(large,))
            sending.start()
            exactly(client, large)
            sending.join()
            client.sendall(GET)
            exactly(edge, GET)
        ended(edge)
        with trusting(authority, server).wrap_socket(host.client(), server_hostname="localhost") as other:
            ended(other)
        event = host.expect(TURNED_AWAY)
        assert event[1:] == ("127.0.0.1", "localhost", "http")
        assert host.server.statistics()["http_clients_refused"] == 1
        plain = host.client(GET)
        exactly(plain, PLAIN)
        ended(plain)
