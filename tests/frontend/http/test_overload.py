"""Under overload and at the end: what cannot be done is refused at once with a time to come back; what was accepted is
answered."""

from __future__ import annotations

import json
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.fronts import Sections, with_front_end

CROWD = 40


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_model("burn_10ms", root)
    return root


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    """Connections that are closed with the test."""
    opened: list[socket.socket] = []
    yield opened
    for one in opened:
        one.close()


def _request(server: ApplianceProcess, **parameters: object) -> bytes:
    metadata = json.loads(server.get("/v2/models/burn_10ms"))["inputs"][0]
    shape = [1 if dimension < 0 else dimension for dimension in metadata["shape"]]
    count = 1
    for dimension in shape:
        count *= dimension
    tensor = {**metadata, "shape": shape, "data": [0.0] * count}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    head = b"POST /v2/models/burn_10ms/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body


def _send_at_once(server: ApplianceProcess, crowd: list[socket.socket], request: bytes) -> None:
    host, _, port = server.http.rpartition(":")
    crowd.extend(socket.create_connection((host, int(port)), timeout=30) for _ in range(CROWD))
    for connection in crowd:
        connection.sendall(request)


def _replies(crowd: list[socket.socket]) -> list[tuple[int, str, str | None]]:
    """(status, error text, Retry-After) of each."""
    found = []
    for connection in crowd:
        reply = HTTPResponse(connection)
        reply.begin()
        document = json.loads(reply.read())
        found.append((reply.status, document.get("error", ""), reply.headers["Retry-After"]))
    return found


def test_a_full_queue_is_429_with_a_time_to_come_back(
    models: Path, front_end: Sections, crowd: list[socket.socket]
) -> None:
    with ApplianceProcess(
        models, with_front_end(front_end, {"scheduling": {"max_queued_requests": 4}})
    ) as server:
        server.wait_ready()
        _send_at_once(server, crowd, _request(server))
        replies = _replies(crowd)
        statuses = Counter(status for status, _, _ in replies)
        assert set(statuses) == {200, 429}
        for status, text, retry_after in replies:
            if status == 429:
                assert "Exceeds maximum queue size" in text
                assert retry_after is not None
                assert int(retry_after) >= 1


def test_what_cannot_be_in_time_is_429_or_504_and_never_late(
    models: Path, front_end: Sections, crowd: list[socket.socket]
) -> None:
    with ApplianceProcess(models, front_end) as server:
        server.wait_ready()
        _send_at_once(server, crowd, _request(server))
        assert {status for status, _, _ in _replies(crowd)} == {200}
        for connection in crowd:
            connection.sendall(_request(server, timeout=1_000))
        for status, text, _ in _replies(crowd):
            assert (status, "deadline" in text or "timeout" in text) in ((429, True), (504, True))


def test_what_was_accepted_is_answered_after_sigterm(
    models: Path, front_end: Sections, crowd: list[socket.socket]
) -> None:
    with ApplianceProcess(models, front_end) as server:
        server.wait_ready()
        _send_at_once(server, crowd, _request(server))

        def taken(status: Any) -> bool:
            model = status["models"][0]
            return bool(model["queued"] + model["running"] + model["requests"]["success"] == CROWD)

        server.until("all requests accepted", taken)
        server.signal(signal.SIGTERM)
        assert Counter(status for status, _, _ in _replies(crowd)) == {200: CROWD}
        assert server.process.wait(30) == 0


def test_while_draining_new_requests_are_503_and_readiness_is_gone(
    models: Path, front_end: Sections, crowd: list[socket.socket]
) -> None:
    with ApplianceProcess(models, with_front_end(front_end, {"daemon": {"drain_notice_s": 20.0}})) as server:
        server.wait_ready()
        assert server.get("/v2/health/ready") == b'{"ready":true}'
        server.signal(signal.SIGTERM)
        server.wait_for("STOPPING=1")
        host, _, port = server.http.rpartition(":")
        crowd.append(socket.create_connection((host, int(port)), timeout=30))
        crowd[0].sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert _replies(crowd) == [(503, "Server is stopping", None)]
        crowd[0].sendall(_request(server))
        assert _replies(crowd)[0][0] == 200
        server.signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
