"""What scrapes at an address of its own gets metrics and health without a certificate, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config.http import HttpConfig
from appliance.frontend.http.connection import ServerTally
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.frontend.grpc.certificate_files import make_authority, make_signed
from tests.fronts import FRONT_ENDS, Sections, needs_native, with_front_end

CONNECTIONS = 3


@pytest.fixture(scope="module")
def daemon(front_end: Sections, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """Clients need a certificate; what monitors does not."""
    folder = tmp_path_factory.mktemp("monitored")
    write_model("mlp", folder / "models")
    authority = make_authority(folder, "authority")
    pair = make_signed(folder, "server", authority)
    http = {
        "tls_certificate": str(pair.certificate),
        "tls_key": str(pair.key),
        "tls_client_ca": str(authority.certificate),
        "max_connections": CONNECTIONS,
        "head_timeout_s": 0.5,
    }
    sections: Sections = {
        "http": http,
        "metrics": {"addresses": ["127.0.0.1:0", f"unix:{folder}/monitoring"]},
    }
    with ApplianceProcess(folder / "models", with_front_end(front_end, sections)) as process:
        yield process.wait_ready()


def _connect(daemon: ApplianceProcess) -> socket.socket:
    host, _, port = daemon.metrics.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def _answer(daemon: ApplianceProcess, request: bytes) -> bytes:
    """All that comes back until the connection ends."""
    with _connect(daemon) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


def _ask(daemon: ApplianceProcess, method: str, path: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""]
    return _answer(daemon, "\r\n".join(lines).encode())


@pytest.mark.parametrize("path", ["/metrics", "/v2/health/live", "/v2/health/ready"])
def test_metrics_and_health_are_there_without_a_certificate(daemon: ApplianceProcess, path: str) -> None:
    assert _ask(daemon, "GET", path).startswith(b"HTTP/1.1 200 ")
    head = _ask(daemon, "HEAD", path)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/status.json", 404),
        ("GET", "/models/mlp", 404),
        ("GET", "/v2", 404),
        ("GET", "/v2/models/mlp", 404),
        ("GET", "/v2/models/mlp/config", 404),
        ("GET", "/v2/models/stats", 404),
        ("POST", "/v2/models/mlp/infer", 404),
        ("POST", "/v2/models/mlp/versions/1/infer", 404),
        ("POST", "/v2/repository/index", 404),
        ("POST", "/v2/repository/models/mlp/unload", 404),
        ("POST", "/v2/logging", 404),
        ("GET", "/v2/trace/setting", 404),
        ("GET", "/metrics/../v2/models/mlp", 404),
        ("GET", "/metrics/..%2fv2", 404),
        ("GET", "//v2/models/mlp", 404),
        ("GET", "http://127.0.0.1/v2/models/mlp", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/v2/health/live", 405),
        ("CONNECT", "127.0.0.1:80", 404),
    ],
)
def test_nothing_else_is_reachable(daemon: ApplianceProcess, method: str, path: str, status: int) -> None:
    answer = _ask(daemon, method, path, "Content-Length: 0")
    assert int(answer.split(b" ", 2)[1]) in {status, 400}, answer[:200]


def test_no_other_protocol_gets_through(daemon: ApplianceProcess) -> None:
    upgrade = _ask(daemon, "GET", "/v2/models/mlp", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    assert upgrade.startswith(b"HTTP/1.1 404 ")
    assert not _answer(daemon, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    smuggled = b"GET /v2/models/mlp HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    behind = b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(smuggled), smuggled)
    assert b"HTTP/1.1 200 " not in _answer(daemon, behind + smuggled)


def test_names_of_strangers_are_no_hosts_there(daemon: ApplianceProcess) -> None:
    assert _ask(daemon, "GET", "/metrics", host="evil.example").startswith(b"HTTP/1.1 403 ")
    assert _ask(daemon, "GET", "/metrics", host="box:9100").startswith(b"HTTP/1.1 200 ")


def test_its_bounds_are_those_of_http_and_its_own(daemon: ApplianceProcess) -> None:
    silent = [_connect(daemon) for _ in range(CONNECTIONS)]
    try:
        for each in silent:
            each.sendall(b"GET /metrics HTTP/1.1\r\n")
        with _connect(daemon) as further:
            assert further.recv(100).startswith(b"HTTP/1.1 503 ")
        for each in silent:
            assert each.recv(100).startswith(b"HTTP/1.1 408 ")
    finally:
        for each in silent:
            each.close()


@needs_native
def test_one_client_leaves_room_for_others(tmp_path: Path) -> None:
    write_model("mlp", tmp_path / "models")
    sections: Sections = {"http": {"max_connections_per_peer": 2}, "metrics": {"addresses": ["127.0.0.1:0"]}}
    with ApplianceProcess(tmp_path / "models", with_front_end(FRONT_ENDS["native"], sections)) as daemon:
        daemon.wait_ready()
        host, _, port = daemon.metrics.rpartition(":")
        with _connect(daemon), _connect(daemon):
            with _connect(daemon) as third:
                assert third.recv(100).startswith(b"HTTP/1.1 503 ")
            with socket.create_connection((host, int(port)), 20, ("127.0.0.2", 0)) as other:
                other.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert other.recv(100).startswith(b"HTTP/1.1 200 ")


def test_connections_that_ended_count_no_longer_for_their_client() -> None:
    tally = ServerTally(HttpConfig(max_connections=3), 2)
    assert [tally.accept(peer) for peer in ("a", "a", "a", "b", "c")] == [True, True, False, True, False]
    tally.forget("a")
    assert [tally.accept(peer) for peer in ("b", "a")] == [True, False]
    assert (tally.connections, tally.refused_connections) == (3, 3)


def test_what_is_answered_there_counts(daemon: ApplianceProcess) -> None:
    def refused() -> int:
        text = _ask(daemon, "GET", "/metrics").decode()
        return sum(
            int(line.split()[1]) for line in text.splitlines() if 'responses_total{code="405"}' in line
        )

    before = refused()
    _ask(daemon, "POST", "/metrics", "Content-Length: 0")
    assert refused() == before + 1


def test_it_is_there_without_http_and_while_the_appliance_drains(front_end: Sections, tmp_path: Path) -> None:
    sections: Sections = {
        "http": {"addresses": []},
        "metrics": {"addresses": ["127.0.0.1:0"]},
        "daemon": {"drain_notice_s": 30.0},
    }
    write_model("mlp", tmp_path / "models")
    with ApplianceProcess(tmp_path / "models", with_front_end(front_end, sections)) as process:
        process.wait_ready()
        assert _ask(process, "GET", "/v2/health/ready").startswith(b"HTTP/1.1 200 ")
        process.process.terminate()
        process.wait_for("STOPPING=1")
        process.wait_log("draining")
        assert _ask(process, "GET", "/v2/health/live").startswith(b"HTTP/1.1 200 ")
        assert _ask(process, "GET", "/v2/health/ready").startswith(b"HTTP/1.1 503 ")
        assert b"\nappliance_accepting 0\n" in _ask(process, "GET", "/metrics")
        process.process.terminate()  # no more notice is needed
        assert process.process.wait(30) == 0
