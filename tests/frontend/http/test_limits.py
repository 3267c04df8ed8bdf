"""Sockets that misbehave: cut short, too large, too slow, too many, gone. The daemon answers or closes, and goes on."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.frontend.http.infer_request import JSON_BYTES_MAX
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate
from tests.fronts import Sections, native_only, with_front_end

BIG = 3 * 224 * 224 * 4
BODY = JSON_BYTES_MAX + BIG
LIMITS = {
    "max_body_bytes": BODY,
    "max_bodies_bytes": 5 * BODY // 2,
    "head_timeout_s": 0.5,
    "body_timeout_s": 0.5,
    "write_stall_s": 1.0,
    "max_connections": 20,
}
INFER = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\n"
Connect = Callable[[], socket.socket]


@pytest.fixture(scope="module")
def gate_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where that gate is."""
    return tmp_path_factory.mktemp("gate") / "pipe"


@pytest.fixture(scope="module")
def server(
    front_end: Sections, gate_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApplianceProcess]:
    root = tmp_path_factory.mktemp("models")
    for name in ("mlp", "identity_fp32"):
        write_model(name, root)
    write_fake(root, "held", batched=False, gate=gate_path)
    with ApplianceProcess(root, with_front_end(front_end, {**FAKE_SECTIONS, "http": LIMITS})) as process:
        yield process.wait_ready()


@pytest.fixture
def gate(gate_path: Path) -> Gate:
    """Before the runs of the model ``held``."""
    return Gate(gate_path)


@pytest.fixture
def connect(server: ApplianceProcess) -> Iterator[Connect]:
    """Opens raw connections that are closed with the test."""
    opened: list[socket.socket] = []

    def open_one() -> socket.socket:
        host, _, port = server.http.rpartition(":")
        opened.append(socket.create_connection((host, int(port)), timeout=20))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def _to_the_end(connection: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as closed."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def _status(received: bytes) -> int:
    """Status code of the first answer in ``received``."""
    assert received.startswith(b"HTTP/1."), received[:200]
    return int(received.split()[1])


def _reply(connection: socket.socket) -> http.client.HTTPResponse:
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    return reply


def _mlp(**extra: object) -> bytes:
    tensor = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}
    return json.dumps({"inputs": [tensor], **extra}).encode()


def _sized(body: bytes, *headers: bytes, start: bytes = INFER) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return start + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _send_often(connection: socket.socket, request: bytes) -> None:
    for _ in range(1000):
        connection.sendall(request)


def _answers(connect: Connect) -> None:
    connection = connect()
    connection.sendall(_sized(_mlp()))
    assert _reply(connection).status == 200


def test_requests_in_a_pipeline_are_answered_in_order(connect: Connect) -> None:
    connection = connect()
    requests = [_sized(_mlp(id=str(index))) for index in range(5)]
    connection.sendall(b"".join(requests) + _sized(_mlp(id="5"), b"Connection: close"))
    assert re.findall(rb'"id":"(\d)"', _to_the_end(connection)) == [b"%d" % index for index in range(6)]


def test_a_body_without_a_length_comes_in_chunks(connect: Connect) -> None:
    body = _mlp()
    pieces = [body[start : start + 100] for start in range(0, len(body), 100)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    connection = connect()
    connection.sendall(INFER + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert _reply(connection).status == 200


def test_a_client_that_waits_to_be_asked_is_asked(connect: Connect) -> None:
    body = _mlp()
    connection = connect()
    connection.sendall(INFER + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(body)
    assert _reply(connection).status == 200


def test_a_truncated_body_is_408_and_the_end(connect: Connect) -> None:
    connection = connect()
    connection.sendall(_sized(_mlp())[:-10])
    received = _to_the_end(connection)
    assert _status(received) == 408
    assert b"did not arrive within 0.5 s" in received
    _answers(connect)


def test_a_client_that_ends_amid_its_body_harms_nobody(connect: Connect) -> None:
    connection = connect()
    connection.sendall(_sized(_mlp())[:-10])
    connection.shutdown(socket.SHUT_WR)
    _to_the_end(connection)
    _answers(connect)


@pytest.mark.parametrize("pause", [False, True], ids=["at-once", "later"])
def test_a_client_that_says_no_more_is_answered(
    server: ApplianceProcess, connect: Connect, pause: bool
) -> None:
    """Every request that is whole, in order; then the server ends the connection."""
    large = json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 4000], "datatype": "FP32", "data": [7777.0] * 4000}]}
    )
    start = b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\n"
    for round_ in range(4):  # a native front end serves what it saw before by itself
        connection = connect()
        requests = [_sized(_mlp(id=f"{round_}{number}")) for number in range(3)]
        connection.sendall(b"".join(requests) + _sized(large.encode(), start=start))
        if pause:
            server.status()
        connection.shutdown(socket.SHUT_WR)
        received = _to_the_end(connection)
        assert re.findall(rb'"id":"(\d+)"', received) == [b"%d%d" % (round_, number) for number in range(3)]
        assert received.count(b"HTTP/1.1 200") == 4
        assert received.count(b"7777.0") == 4000


@pytest.mark.parametrize("sent", [b"", b"GET /v2 HT", INFER + b"Content-Length: 9\r\n\r\n{}"])
def test_a_client_that_says_no_more_than_a_part_is_let_go(connect: Connect, sent: bytes) -> None:
    connection = connect()
    connection.sendall(sent)
    connection.shutdown(socket.SHUT_WR)
    assert _to_the_end(connection)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 408")


def test_a_malformed_chunk_is_refused_and_the_end(connect: Connect) -> None:
    connection = connect()
    connection.sendall(INFER + b"Transfer-Encoding: chunked\r\n\r\n")
    connection.sendall(b"zz\r\nnot a chunk\r\n")
    assert _status(_to_the_end(connection)) in (400, 408)
    _answers(connect)


@pytest.mark.parametrize("length", [b"-5", b"abc", b"1e3", b"5, 6"])
def test_a_content_length_that_is_none_is_400(connect: Connect, length: bytes) -> None:
    connection = connect()
    connection.sendall(INFER + b"Content-Length: " + length + b"\r\n\r\nxxxxx")
    assert _status(_to_the_end(connection)) == 400


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nbroken header\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nA: b\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_400_and_closed(connect: Connect, head: bytes) -> None:
    connection = connect()
    connection.sendall(head)
    received = _to_the_end(connection)
    assert _status(received) == 400
    assert b'{"error": "malformed HTTP request' in received


@pytest.mark.parametrize("version", [b"2.0", b"0.9"])
def test_another_http_is_505_and_closed(connect: Connect, version: bytes) -> None:
    connection = connect()
    connection.sendall(b"GET /v2 HTTP/%b\r\nHost: x\r\n\r\n" % version)
    received = _to_the_end(connection)
    assert received.startswith(b"HTTP/1.1 505 ")
    assert b'{"error": "HTTP/%b is not spoken here; ask with HTTP/1.1"}' % version in received


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\n" + b"".join(b"X%d: 1\r\n" % index for index in range(200)) + b"\r\n", 400),
    ],
    ids=["request-line", "one-header", "many-headers"],
)
def test_heads_beyond_the_limits_are_refused(connect: Connect, head: bytes, status: int) -> None:
    connection = connect()
    connection.sendall(head)
    assert _status(_to_the_end(connection)) == status
    _answers(connect)


@pytest.mark.parametrize("begin", [b"G", b"GET /v2 HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_never_ends_is_408(connect: Connect, begin: bytes) -> None:
    connection = connect()
    connection.sendall(begin)
    assert _status(_to_the_end(connection)) == 408


def test_a_second_head_that_never_ends_is_408_too(connect: Connect) -> None:
    connection = connect()
    connection.sendall(_sized(_mlp()))
    assert _reply(connection).read()
    connection.sendall(b"GET /v2 HT")
    assert _status(_to_the_end(connection)) == 408


def test_a_body_over_the_limit_is_413_before_it_is_sent(connect: Connect) -> None:
    connection = connect()
    connection.sendall(INFER + b"Content-Length: %d\r\n\r\n" % (1 << 40))
    reply = _reply(connection)
    assert reply.status == 413
    assert "larger than the limit of " in (said := json.loads(reply.read())["error"])
    assert said.endswith("bytes (http.max_body_bytes)")


def test_a_body_over_the_limit_in_chunks_is_413(connect: Connect) -> None:
    connection = connect()
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    connection.sendall(INFER + b"Transfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(3 * BODY // 2 // 65_536):
            connection.sendall(chunk)
    except (ConnectionResetError, BrokenPipeError):
        pass
    assert _status(_to_the_end(connection)) == 413
    _answers(connect)


def test_a_compression_bomb_is_413(connect: Connect) -> None:
    connection = connect()
    connection.sendall(_sized(gzip.compress(bytes(3 * BODY // 2)), b"Content-Encoding: gzip"))
    reply = _reply(connection)
    assert reply.status == 413
    assert "when decompressed" in json.loads(reply.read())["error"]


def test_json_over_its_own_limit_is_413_and_says_what_to_do(connect: Connect) -> None:
    connection = connect()
    connection.sendall(_sized(b" " * (JSON_BYTES_MAX + 1)))
    reply = _reply(connection)
    assert reply.status == 413
    assert "binary tensor data" in json.loads(reply.read())["error"]


def test_all_bodies_together_are_bounded(server: ApplianceProcess, connect: Connect) -> None:
    """Two declared lengths fit, the third does not, whoever is first; when one is gone there is room again."""
    held = [connect() for _ in range(2)]
    for connection in held:
        connection.sendall(INFER + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (BODY))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
    late = connect()
    late.sendall(INFER + b"Content-Length: %d\r\n\r\n" % (BODY))
    reply = _reply(late)
    assert reply.status == 429
    assert reply.headers["Retry-After"] == "1"
    assert "request bodies already hold" in json.loads(reply.read())["error"]
    for connection in held:
        assert _status(_to_the_end(connection)) == 408
    _answers(connect)


def _is_let_in(connection: socket.socket) -> bool:
    """Whether its request was answered; else there were too many connections, so that it was closed."""
    try:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        status = _reply(connection).status
    except OSError:
        return False
    assert status in (200, 503)
    return bool(status == 200)


def test_too_many_connections_are_503_and_room_comes_back(connect: Connect) -> None:
    crowd: list[socket.socket] = []
    end = time.monotonic() + 20
    while len(crowd) < LIMITS["max_connections"]:
        connection = connect()
        if _is_let_in(connection):
            crowd.append(connection)
        assert time.monotonic() < end, "connections of the tests before this one stay"
    refused = connect()
    assert _status(_to_the_end(refused)) == 503
    for connection in crowd:
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
    while True:
        again = connect()
        try:
            again.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            received = _to_the_end(again)
        except BrokenPipeError:
            continue
        if received.startswith(b"HTTP/1.1 200 "):
            return
        assert _status(received) == 503 or not received


@native_only
def test_one_address_has_its_own_bound_and_room_comes_back(
    front_end: Sections, serve: Serve, tmp_path: Path
) -> None:
    server = serve(tmp_path, with_front_end(front_end, {"http": {"max_connections_per_peer": 2}}))
    address = server.http.rpartition(":")[0], int(server.http.rpartition(":")[2])

    def connected(source: str) -> socket.socket:
        return socket.create_connection(address, timeout=20, source_address=(source, 0))

    with connected("127.0.0.2") as one, connected("127.0.0.2") as two:
        assert _is_let_in(one)
        assert _is_let_in(two)
        with connected("127.0.0.2") as refused:
            received = _to_the_end(refused)
        assert (_status(received), b"from this address" in received) == (503, True)
        with connected("127.0.0.3") as other:
            assert _is_let_in(other)
    end = time.monotonic() + 20
    while True:
        with connected("127.0.0.2") as again:
            if _is_let_in(again):
                return
        assert time.monotonic() < end, "no room comes back"


def test_a_client_that_reads_nothing_is_cut_off(server: ApplianceProcess, connect: Connect) -> None:
    """Answers of 600 KB are asked for until they fit nowhere; the server drops the client, not its memory."""
    count = BIG // 4
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": [1, count],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": BIG},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    start = b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\n"
    length = b"Inference-Header-Content-Length: %d" % len(head)
    request = _sized(head + struct.pack(f"<{count}f", *([1.0] * count)), length, start=start)
    connection = connect()
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        _send_often(connection, request)
    server.until(
        "no request left", lambda status: status["running_requests"] + status["queued_requests"] == 0
    )
    server.until("all tensor memory back", lambda status: status["arena_used_bytes"] == 0)
    _answers(connect)


@pytest.mark.parametrize("halves", [False, True], ids=["at-once", "after-its-half"])
def test_a_client_that_goes_takes_its_request_with_it(
    server: ApplianceProcess, connect: Connect, gate: Gate, halves: bool
) -> None:
    """It says so by a reset: who only closes, or says that it will send no more, may yet be listening."""

    def entry(status: Any) -> Any:
        return next(model for model in status["models"] if model["name"] == "held")

    def cancelled(status: Any) -> int:
        return int(entry(status)["requests"]["cancelled"])

    tensor = {"name": "x", "shape": [1, 4], "datatype": "UINT8", "data": [1, 2, 3, 4]}
    request = _sized(
        json.dumps({"inputs": [tensor]}).encode(), start=b"POST /v2/models/held/infer HTTP/1.1\r\nHost: x\r\n"
    )
    before = cancelled(server.status())
    with gate:
        leaving = [connect() for _ in range(3)]
        for connection in leaving:
            connection.sendall(request)
            if halves:
                connection.shutdown(socket.SHUT_WR)
        server.until("all inside", lambda status: entry(status)["queued"] + entry(status)["running"] == 3)
        for connection in leaving:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        server.until("the end of one that waits", lambda status: cancelled(status) > before)
        end = time.monotonic() + 20
        while b"\nappliance_http_connections 1\n" not in server.get("/metrics"):
            assert time.monotonic() < end, "connections stay"
        server.status()  # asked after the front end has told of those that left, and so answered after that was heard
    server.until("the end of those that the worker has", lambda status: cancelled(status) == before + 3)
    server.until("all tensor memory back", lambda status: status["arena_used_bytes"] == 0)
    text = server.get("/metrics").decode()
    assert 'appliance_http_responses_total{code="499"}' in text
    _answers(connect)


def test_a_socket_file_is_served_and_taken_away(front_end: Sections, tmp_path: Path) -> None:
    models = write_model("mlp", tmp_path / "models").parent
    path = tmp_path / "http.sock"
    addresses = ["127.0.0.1:0", f"unix:{path}"]
    with ApplianceProcess(models, with_front_end(front_end, {"http": {"addresses": addresses}})) as process:
        process.wait_ready()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(path))
            connection.sendall(_sized(_mlp()))
            assert _reply(connection).status == 200
        assert process.stop() == 0
    assert not path.exists()


def test_a_port_in_use_is_named(server: ApplianceProcess, front_end: Sections, tmp_path: Path) -> None:
    models = write_model("mlp", tmp_path / "models").parent
    with ApplianceProcess(
        models, with_front_end(front_end, {"http": {"addresses": [server.http]}})
    ) as process:
        assert process.process.wait(30) == 2
        assert f"http cannot listen on {server.http}" in process.log()
        assert "in use" in process.log()
