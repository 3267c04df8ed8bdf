"""TLS on the HTTP port, whoever listens there: certificates, who may come, what is read again, who may hold what."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.frontend.grpc.certificate_files import Pair, make_authority, make_named, make_signed
from tests.frontend.http.raw_client import TIMEOUT_S, RawClient, binary_request
from tests.frontend.http.tls_client import trusting
from tests.fronts import NATIVE, Sections, native_only, with_front_end

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
MLP = binary_request("mlp", {"x": (1, 64)})
BIG_COUNT = 3 * 224 * 224
MEAN = binary_request("big_mean", {"image": (1, 3, 224, 224)})
BIG = binary_request("identity_fp32", {"x": (1, BIG_COUNT)})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def pair(authority: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The server's."""
    return make_signed(tmp_path_factory.mktemp("server"), "server", authority)


def speaking(front_end: Sections, pair: Pair, **http: object) -> Sections:
    """Sections with TLS on the HTTP port."""
    files = {"tls_certificate": str(pair.certificate), "tls_key": str(pair.key)}
    return with_front_end(front_end, {**FAKE_SECTIONS, "http": {**files, **http}})


@pytest.fixture(scope="module")
def server(
    front_end: Sections, pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApplianceProcess]:
    root = tmp_path_factory.mktemp("models")
    for name in ("mlp", "big_mean", "identity_fp32"):
        write_model(name, root)
    path = tmp_path_factory.mktemp("sockets") / "http"
    sections = speaking(front_end, pair, addresses=["127.0.0.1:0", f"unix:{path}"], write_stall_s=1.0)
    with ApplianceProcess(root, sections) as process:
        yield process.wait_ready()


def text_of(server: ApplianceProcess, tls: ssl.SSLContext, path: str) -> str:
    with RawClient(server, tls) as client:
        client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while piece := client.socket.recv(65_536):
            received += piece
    return received.decode()


def failed_handshakes(server: ApplianceProcess, tls: ssl.SSLContext, reason: str) -> int:
    name = f'appliance_http_failed_handshakes_total{{reason="{reason}"}} '
    (line,) = [line for line in text_of(server, tls, "/metrics").splitlines() if line.startswith(name)]
    return int(line.removeprefix(name))


def answered(server: ApplianceProcess, tls: ssl.SSLContext, status: int) -> int:
    """HTTP answers of that status so far."""
    name = f'appliance_http_responses_total{{code="{status}"}} '
    lines = [line for line in text_of(server, tls, "/metrics").splitlines() if line.startswith(name)]
    return int(lines[0].removeprefix(name)) if lines else 0


def is_served(server: ApplianceProcess, tls: ssl.SSLContext) -> bool:
    """Whether a new client gets an answer; one that may not come gets none, or one that says so."""
    try:
        with RawClient(server, tls) as client:
            return client.ask(GET).status == 200
    except (ssl.SSLError, ConnectionError):
        return False


# --- what goes over it


def test_requests_of_all_kinds(server: ApplianceProcess, front_end: Sections, authority: Pair) -> None:
    with RawClient(server, trusting(authority, None, "h2", "http/1.1")) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.selected_alpn_protocol() == "http/1.1"
        assert client.ask(GET).status == 200
        for request in (MLP, MEAN, BIG):
            first = client.ask(request)
            assert first.status == 200, first
            assert [client.ask(request) for _ in range(5)] == [first] * 5
        assert first.body.endswith(struct.pack("<f", 0.5) * BIG_COUNT)
        client.send(MLP * 3 + GET)
        assert [client.answer().status for _ in range(4)] == [200] * 4
        client.send(
            b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        )
        assert client.answer().status == 400
    status: Any = json.loads(text_of(server, trusting(authority), "/status.json").partition("\r\n\r\n")[2])
    leased = {model["name"]: bool(model["leased"]) for model in status["models"]}
    assert (leased["mlp"], leased["big_mean"]) == (front_end is NATIVE,) * 2


def test_a_request_in_small_pieces(server: ApplianceProcess, authority: Pair) -> None:
    with RawClient(server, trusting(authority)) as client:
        for start in range(0, len(MLP), 7):
            client.send(MLP[start : start + 7])
        assert client.answer().status == 200


def test_a_stranger_is_not_trusted_and_old_tls_not_spoken(
    server: ApplianceProcess, authority: Pair, tmp_path: Path
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        RawClient(server, trusting(make_authority(tmp_path, "stranger")))
    for version, spoken in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)):
        context = trusting(authority)
        context.minimum_version = context.maximum_version = version
        assert is_served(server, context) is spoken


@native_only
def test_who_does_not_speak_tls_is_told(server: ApplianceProcess, authority: Pair) -> None:
    before = failed_handshakes(server, trusting(authority), "plain")
    answers = answered(server, trusting(authority), 400)
    with RawClient(server) as client:
        answer = client.ask(MLP)
        assert (answer.status, answer.document) == (
            400,
            {"error": "this port speaks TLS; ask it with https://"},
        )
        assert client.is_closed()
    assert failed_handshakes(server, trusting(authority), "plain") == before + 1
    assert answered(server, trusting(authority), 400) == answers + 1


def test_who_speaks_tls_to_a_port_in_the_clear_is_told(
    front_end: Sections, authority: Pair, tmp_path: Path
) -> None:
    with (
        ApplianceProcess(tmp_path, front_end) as process,
        pytest.raises(ssl.SSLError, match=r"WRONG_VERSION|RECORD|HTTP"),
    ):
        RawClient(process.wait_ready(), trusting(authority))


def test_a_handshake_that_is_none_fails_alone(
    server: ApplianceProcess, front_end: Sections, authority: Pair
) -> None:
    counts = front_end is NATIVE
    before = failed_handshakes(server, trusting(authority), "failed") if counts else 0
    with RawClient(server) as client:
        client.send(b"\x16\x03\x01\x00\x05junk!")
        while client.socket.recv(100):
            pass
    with RawClient(server):
        pass  # and one that says nothing at all
    assert is_served(server, trusting(authority))
    if counts:
        assert failed_handshakes(server, trusting(authority), "failed") == before + 2


def test_a_unix_socket_is_in_the_clear(server: ApplianceProcess) -> None:
    said = server.wait_for("READY=1")
    path = said.partition("unix:")[2].split()[0]
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(path)
        client.sendall(GET)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def _send_often(client: RawClient, request: bytes) -> None:
    for _ in range(1000):
        client.send(request)


def test_a_client_that_reads_nothing_is_cut_off(server: ApplianceProcess, authority: Pair) -> None:
    with RawClient(server, trusting(authority)) as client, pytest.raises((ConnectionError, ssl.SSLError)):
        _send_often(client, BIG)
    assert is_served(server, trusting(authority))


# --- what is read again


def _reload(process: ApplianceProcess, line: str) -> Any:
    told = process.log().count(line)
    process.signal(signal.SIGHUP)
    end = time.monotonic() + TIMEOUT_S
    while process.log().count(line) == told:
        assert time.monotonic() < end, process.log()
        time.sleep(0.01)
    return json.loads([each for each in process.log().splitlines() if line in each][-1])


def test_certificates_are_read_again_under_live_connections(
    front_end: Sections, authority: Pair, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_model("mlp", models)
    pair = make_signed(tmp_path, "server", authority)
    with (
        ApplianceProcess(models, speaking(front_end, pair)) as process,
        RawClient(process.wait_ready(), trusting(authority)) as old,
    ):
        answer = old.ask(MLP)
        assert answer.status == 200
        successor = make_authority(tmp_path, "successor")
        renewed = make_signed(tmp_path, "renewed", successor)
        pair.certificate.write_bytes(renewed.certificate.read_bytes())
        pair.key.write_bytes(renewed.key.read_bytes())
        told = _reload(process, "certificates were read again")
        assert (told["port"], bool(told["until"])) == ("http", True)
        assert is_served(process, trusting(successor))
        assert not is_served(process, trusting(authority))
        assert old.ask(MLP) == answer, "a connection outlives the certificate that it began with"
        pair.key.write_text("junk")
        told = _reload(process, "certificates cannot be used; the old ones stay")
        assert told["port"] == "http"
        assert "http.tls_certificate: " in told["error"]
        assert is_served(process, trusting(successor))
        assert old.ask(MLP) == answer


# --- who may come


@native_only
def test_only_clients_that_are_named_may_come_and_the_log_says_who(
    front_end: Sections, authority: Pair, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_model("mlp", models)
    write_fake(models, "broken", mode="fail")
    pair = make_signed(tmp_path, "server", authority)
    names = ["spiffe://site/camera", "*.site.example"]
    sections = speaking(front_end, pair, tls_client_ca=str(authority.certificate), tls_client_names=names)
    camera = trusting(
        authority, make_named(tmp_path, "camera", authority, "/CN=x", "URI:spiffe://site/camera")
    )
    with ApplianceProcess(models, sections) as process:
        process.wait_ready()
        with RawClient(process, camera) as client:
            assert {client.ask(MLP).status for _ in range(5)} == {200}
            tensor = {"name": "x", "shape": [1, 4], "datatype": "UINT8", "data": [1, 2, 3, 4]}
            body = json.dumps({"inputs": [tensor]}).encode()
            head = b"POST /v2/models/broken/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            assert client.ask(head + body).status == 500
        process.wait_log("spiffe://site/camera")
        (line,) = [json.loads(line) for line in process.log().splitlines() if "spiffe" in line]
        assert (line["model"], line["outcome"], line["client"]) == (
            "broken",
            "failed",
            "spiffe://site/camera",
        )
        host = make_named(tmp_path, "host", authority, "/CN=a.site.example")
        assert is_served(process, trusting(authority, host))
        for name, subject, alternative in (
            ("other", "/CN=a.site.example.org", ""),
            ("address", "/CN=a.site.example", "IP:127.0.0.1"),
            ("disguised", r"/CN=spiffe:\/\/site\/camera", ""),
        ):
            own = make_named(tmp_path, name, authority, subject, alternative)
            assert not is_served(process, trusting(authority, own)), name
        process.wait_log(
            "a client was turned away: http.tls_client_names has no 'a.site.example.org', from 127"
        )
        assert failed_handshakes(process, camera, "name") == 3
        assert answered(process, camera, 403) == 0, "it is refused in the handshake"
        assert not is_served(process, trusting(authority))
        stranger = make_signed(tmp_path, "stranger", make_authority(tmp_path, "other authority"))
        assert not is_served(process, trusting(authority, stranger))
        assert failed_handshakes(process, camera, "failed") == 2


@native_only
def test_a_quota_is_that_of_the_client_in_the_certificate(
    front_end: Sections, pair: Pair, authority: Pair, tmp_path: Path
) -> None:
    write_model("mlp", tmp_path / "models")
    sections = speaking(front_end, pair, tls_client_ca=str(authority.certificate))
    four = {"requests_per_s": 0.001, "burst": 4}
    odd = MLP.replace(b"Host", b"Connection: close\r\nHost", 1)
    cameras = [
        trusting(authority, make_named(tmp_path, name, authority, "/CN=x", f"DNS:{name}.site.example"))
        for name in ("first", "second")
    ]
    with ApplianceProcess(
        tmp_path / "models", {**sections, 'quotas.clients."*.site.example"': four}
    ) as process:
        server = process.wait_ready()
        for camera in cameras:
            told = []
            for request in (MLP, odd, MLP, MLP, odd, MLP):
                with RawClient(server, camera) as client:
                    told.append(client.ask(request).status)
            assert told == [200] * 4 + [429] * 2, (
                "however its requests travel, and whoever else comes from there"
            )
        server.wait_log("first.site.example")


def test_the_authorities_of_clients_are_read_again(
    front_end: Sections, pair: Pair, authority: Pair, tmp_path: Path
) -> None:
    trusted, successor = (make_authority(tmp_path, name) for name in ("trusted", "successor"))
    before, after = (make_signed(tmp_path, f"of {each.key.stem}", each) for each in (trusted, successor))
    with ApplianceProcess(
        tmp_path, speaking(front_end, pair, tls_client_ca=str(trusted.certificate))
    ) as process:
        process.wait_ready()
        with RawClient(process, trusting(authority, before)) as old:
            assert old.ask(GET).status == 200
            assert not is_served(process, trusting(authority, after))
            trusted.certificate.write_bytes(successor.certificate.read_bytes())
            _reload(process, "certificates were read again")
            assert is_served(process, trusting(authority, after))
            assert not is_served(process, trusting(authority, before))
            assert old.ask(GET).status == 200


def test_clients_must_show_a_certificate_that_is_trusted(
    front_end: Sections, pair: Pair, authority: Pair, tmp_path: Path
) -> None:
    camera = make_signed(tmp_path, "camera", authority)
    stranger = make_signed(tmp_path, "stranger", make_authority(tmp_path, "other authority"))
    sections = speaking(front_end, pair, tls_client_ca=str(authority.certificate))
    with ApplianceProcess(tmp_path, sections) as process:
        process.wait_ready()
        assert is_served(process, trusting(authority, camera))
        assert not is_served(process, trusting(authority))
        assert not is_served(process, trusting(authority, stranger))


# --- who may hold what


@native_only
def test_slow_handshakes_cannot_hold_the_port(
    front_end: Sections, pair: Pair, authority: Pair, tmp_path: Path
) -> None:
    """They count as connections, and end in time; what is too much is closed without a handshake, or told so where
    nobody speaks TLS."""
    models, path = tmp_path / "models", str(tmp_path / "http")
    models.mkdir()
    bounds = {"max_connections": 3, "handshake_timeout_s": 1.0}
    sections = speaking(front_end, pair, addresses=["127.0.0.1:0", f"unix:{path}"], **bounds)
    with ApplianceProcess(models, sections) as process:
        process.wait_ready()
        tls = trusting(authority)
        slow = [RawClient(process) for _ in range(3)]
        slow[1].send(b"\x16")
        slow[2].send(b"\x16\x03\x01\x02\x00\x01\x00")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            RawClient(process, tls)
        with socket.socket(socket.AF_UNIX) as local:
            local.connect(path)
            assert local.recv(4096).startswith(b"HTTP/1.1 503 ")
        for each in slow:
            assert each.is_closed()
            each.close()
        assert is_served(process, tls)
        assert failed_handshakes(process, tls, "late") == 3
        assert "\nappliance_http_refused_connections_total 2\n" in text_of(process, tls, "/metrics")
        assert answered(process, tls, 503) == 1


@native_only
def test_handshakes_of_one_address_are_bounded(
    front_end: Sections, pair: Pair, authority: Pair, tmp_path: Path
) -> None:
    with ApplianceProcess(tmp_path, speaking(front_end, pair, max_connections_per_peer=1)) as process:
        process.wait_ready()
        tls = trusting(authority)
        with RawClient(process), pytest.raises((ssl.SSLError, ConnectionError)):
            RawClient(process, tls)
        end = time.monotonic() + TIMEOUT_S
        while not is_served(process, tls):
            assert time.monotonic() < end, "no room comes back"


def _hello() -> bytes:
    """What a client begins with."""
    asked, context = ssl.MemoryBIO(), ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), asked, server_hostname="localhost").do_handshake()
    return asked.read()


def test_clients_that_vanish_in_their_handshake_leave_nothing(
    front_end: Sections, pair: Pair, authority: Pair, tmp_path: Path
) -> None:
    """At every stage, by a reset or an end, more of them than there may be at a time."""
    hello = _hello()
    peers = {"max_connections_per_peer": 4} if front_end is NATIVE else {}
    sections = speaking(front_end, pair, max_connections=4, **peers)
    with ApplianceProcess(tmp_path, sections) as process:
        process.wait_ready()
        tls = trusting(authority)
        for length in (0, 1, 5, len(hello) // 2, len(hello) - 1, len(hello)):
            for abruptly in (0, 1):
                with RawClient(process) as client:
                    client.send(hello[:length])
                    client.socket.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", abruptly, 0)
                    )
        end = time.monotonic() + TIMEOUT_S
        crowd: list[RawClient] = []
        while len(crowd) < 4:
            try:
                crowd.append(RawClient(process, tls))
            except (ssl.SSLError, ConnectionError):
                assert time.monotonic() < end, "no room comes back"
        assert [client.ask(GET).status for client in crowd] == [200] * 4
        for client in crowd:
            client.close()


def test_a_stop_waits_for_no_handshake(front_end: Sections, pair: Pair, tmp_path: Path) -> None:
    sections = speaking(front_end, pair, handshake_timeout_s=3600.0)
    with ApplianceProcess(tmp_path, sections) as process, RawClient(process.wait_ready()) as client:
        client.send(b"\x16")
        assert process.stop() == 0
        assert client.is_closed()
