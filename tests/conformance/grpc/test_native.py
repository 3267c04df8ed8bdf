"""What only the native front end does: names of clients, sockets of the service manager, bounds that libraries lack."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conformance.grpc.streaming import Sending, ask
from tests.conformance.grpc.stub import Stub, failure_of
from tests.conformance.grpc.tls import infer, mutual_tls, over_tls
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.faults.leased import leased_of
from tests.frontend.grpc.certificate_files import Pair, make_authority, make_named, make_signed
from tests.fronts import NATIVE, Sections, needs_native, with_front_end

NATIVE_FAKES = with_front_end(NATIVE, FAKE_SECTIONS)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
FRAME_HEADER = 9
GOAWAY = 7
PING = 6
ENHANCE_YOUR_CALM = 11
EX_SOFTWARE = 70

pytestmark = needs_native


@pytest.fixture
def front_end() -> Sections:
    """In the place of every front end."""
    return NATIVE_FAKES


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory with one model, ``m``."""
    write_fake(tmp_path / "models", "m")
    return tmp_path / "models"


@pytest.fixture
def authority(tmp_path: Path) -> Pair:
    return make_authority(tmp_path, "authority")


def native(**settings: Any) -> Mapping[str, Mapping[str, Any]]:
    """Sections that select the native front end with ``settings``."""
    return with_front_end({"grpc": settings}, NATIVE_FAKES)


# --- TLS


def test_handshakes_that_come_to_nothing_are_counted_and_some_are_told(
    serve: Serve, models: Path, tmp_path: Path, authority: Pair
) -> None:
    daemon = serve(models, native(**mutual_tls(tmp_path, authority)))
    stranger = make_signed(tmp_path, "stranger", make_authority(tmp_path, "other"))
    for own in (None, stranger):
        with over_tls(daemon.grpc, authority, own) as channel, pytest.raises(grpc.RpcError):
            infer(channel)
    with grpc.insecure_channel(daemon.grpc) as channel, pytest.raises(grpc.RpcError):
        infer(channel)
    daemon.wait_log("a TLS handshake at the gRPC port came to nothing (failed): ")
    daemon.wait_log("(plain): the client does not speak TLS, from ipv4:127.0.0.1:")
    metrics = daemon.get("/metrics").decode()
    counted = dict(
        re.findall(
            r'^appliance_front_end_failed_handshakes_total\{reason="(\w+)"\} (\d+)$', metrics, re.MULTILINE
        )
    )
    assert (counted["late"], counted["name"]) == ("0", "0")
    assert int(counted["failed"]) >= 2
    assert int(counted["plain"]) >= 1
    told = [line for line in daemon.log().splitlines() if "came to nothing" in line]
    assert len(told) == 2, "more of them are only counted"


def test_only_clients_that_are_named_may_come_and_the_log_says_who(
    serve: Serve, models: Path, tmp_path: Path, authority: Pair
) -> None:
    write_fake(models, "broken", mode="fail")
    settings = {
        **mutual_tls(tmp_path, authority),
        "tls_client_names": ["spiffe://site/camera", "*.site.example"],
    }
    daemon = serve(models, native(**settings))
    camera = make_named(tmp_path, "camera", authority, "/CN=x", "URI:spiffe://site/camera")
    with over_tls(daemon.grpc, authority, camera) as channel:
        for _ in range(20):
            assert infer(channel)
        assert leased_of(daemon, "m") > 0
        with pytest.raises(grpc.RpcError):
            infer(channel, "broken")
    daemon.wait_log("spiffe://site/camera")
    (line,) = [json.loads(line) for line in daemon.log().splitlines() if "spiffe" in line]
    assert (line["model"], line["outcome"], line["client"]) == ("broken", "failed", "spiffe://site/camera")
    with over_tls(
        daemon.grpc, authority, make_named(tmp_path, "host", authority, "/CN=a.site.example")
    ) as channel:
        assert infer(channel)
    for name, subject, alternative in (
        ("other", "/CN=a.site.example.org", ""),
        ("address", "/CN=a.site.example", "IP:127.0.0.1"),
        ("disguised", r"/CN=spiffe:\/\/site\/camera", ""),
    ):
        other = make_named(tmp_path, name, authority, subject, alternative)
        with over_tls(daemon.grpc, authority, other) as channel, pytest.raises(grpc.RpcError) as refused:
            infer(channel)
        assert failure_of(refused.value).code == "UNAVAILABLE", name
    daemon.wait_log(
        "a client was turned away: grpc.tls_client_names has no 'a.site.example.org', from ipv4:127"
    )
    assert "appliance_front_end_refused_clients_total 0" not in daemon.get("/metrics").decode()


def test_a_quota_is_that_of_the_client_in_the_certificate_from_one_address(
    serve: Serve, models: Path, tmp_path: Path, authority: Pair
) -> None:
    settings = mutual_tls(tmp_path, authority)
    four = {"requests_per_s": 0.001, "burst": 4}
    daemon = serve(models, {**native(**settings), 'quotas.clients."*.site.example"': four})
    cameras = [make_named(tmp_path, name, authority, "/CN=x", f"DNS:{name}.site.example") for name in "ab"]
    with ExitStack() as stack:
        one, again, other = (
            stack.enter_context(over_tls(daemon.grpc, authority, own)) for own in (cameras[0], *cameras)
        )
        for _ in range(2):
            assert infer(one)
            assert infer(again)
        for channel in (one, again):
            with pytest.raises(grpc.RpcError) as refused:
                infer(channel)
            text = "Exceeds the quota of '*.site.example': 0.001 requests per second, at most 4 at once"
            assert failure_of(refused.value).text == f"[request id: <id_unknown>] {text}"
        assert all(infer(other) for _ in range(4)), "each that fits the name has a quota of its own"
    daemon.wait_log("over its quota")
    (line,) = [json.loads(line) for line in daemon.log().splitlines() if "over its quota" in line]
    assert line["client"] == "a.site.example"
    label = 'client="*.site.example",reason="rate"'
    assert f"appliance_quota_refused_total{{{label}}} 2" in daemon.get("/metrics").decode()


# --- sockets of the service manager

LAUNCHER = """
import os, sys
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="grpc:local")
os.dup2(int(sys.argv[1]), 103); os.dup2(int(sys.argv[2]), 104)
os.dup2(103, 3); os.dup2(104, 4)
os.execv(sys.executable, [sys.executable, "-c",
    "import sys; from appliance.cli.main import main; sys.exit(main())", *sys.argv[3:]])
"""


def test_sockets_from_the_service_manager(models: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[frontend]\nkind = "native"\n[grpc]\naddresses = ["systemd:grpc", "systemd:local"]\n[http]\naddresses = []\n'
        '[repository]\nruntimes = ["onnx", "fake"]\n[daemon]\ndrain_notice_s = 0.0\n'
    )
    path = str(tmp_path / "s")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(path)
        unix.listen()
        handed = (tcp.fileno(), unix.fileno())
        words = ["serve", "--models", str(models), "--config", str(config)]
        address = f"127.0.0.1:{tcp.getsockname()[1]}"
        activating = Stub(address)
        first = activating.begin("ModelInfer", ask("m", "first"), timeout_s=60.0)
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *map(str, handed), *words],
            pass_fds=handed,
            stdout=subprocess.PIPE,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert (
            f"Serving gRPC on {address} unix:{path}, HTTP on (off) (native front end)"
            in process.stdout.readline()
        )
        with activating:
            assert b"first" in first.result(), "who had it started is answered"
        for where in (address, f"unix:{path}"):
            with Stub(where) as stub:
                assert stub.infer(ask("m", "a")).id == "a"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0
    assert os.path.exists(path), "the service manager's file is the service manager's"


# --- failure

FAILING = """
import sys
from appliance.frontend.native.dispatch import Dispatch

def start(dispatch, start=Dispatch.start):
    start(dispatch)
    poll = dispatch._poll
    def failed():
        poll()
        raise RuntimeError("made up")
    dispatch._poll = failed

Dispatch.start = start
from appliance.cli.main import main
sys.exit(main())
"""


def test_a_front_end_that_fails_ends_the_daemon_for_the_service_manager_to_start_again(
    models: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[frontend]\nkind = "native"\n[grpc]\naddresses = ["127.0.0.1:0"]\n[http]\naddresses = []\n'
        '[repository]\nruntimes = ["onnx", "fake"]\n'
    )
    words = ["serve", "--models", str(models), "--config", str(config)]
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(line.split()[3].rstrip(",") for line in lines if line.startswith("Serving gRPC on "))
        with Stub(address) as stub:
            assert stub.refusal(b"").code == "UNAVAILABLE"
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == EX_SOFTWARE
    assert "the native front end failed; stopping" in said
    assert "made up" in said


# --- bounds


def test_connections_are_bounded(serve: Serve, models: Path) -> None:
    daemon = serve(models, native(max_connections=3))
    host, port = daemon.grpc.rsplit(":", 1)
    held = [_connection(host, int(port)) for _ in range(3)]
    for connection in held:
        connection.sendall(PREFACE)
        assert connection.recv(FRAME_HEADER)
    with _connection(host, int(port)) as refused:
        assert refused.recv(1) == b""
    for connection in held:
        connection.close()
    with Stub(daemon.grpc) as stub:
        grpc.channel_ready_future(stub.channel).result(timeout=30)
        assert stub.infer(ask("m", "a")).id == "a"


def test_who_says_nothing_is_disconnected(serve: Serve, models: Path) -> None:
    daemon = serve(models, native(handshake_timeout_s=0.2))
    host, port = daemon.grpc.rsplit(":", 1)
    with _connection(host, int(port)) as silent, silent.makefile("rb") as said:
        said.read()  # until the server closes; times out when it does not


def test_who_pings_too_often_is_disconnected(serve: Serve, models: Path) -> None:
    daemon = serve(models, native(client_ping_interval_s=10))
    host, port = daemon.grpc.rsplit(":", 1)
    ping = struct.pack(">I", 8)[1:] + bytes((PING, 0)) + bytes(4) + bytes(8)
    with _connection(host, int(port)) as restless:
        restless.sendall(PREFACE + ping * 50)
        assert (GOAWAY, ENHANCE_YOUR_CALM) in list(_frames(restless))


def test_requests_in_memory_are_bounded(serve: Serve, models: Path) -> None:
    daemon = serve(models, native(max_message_bytes=1 << 20, max_messages_bytes=1 << 20))
    with Stub(daemon.grpc) as stub:
        failure = stub.refusal(bytes(1 << 21))
        assert failure.code == "RESOURCE_EXHAUSTED"
        assert stub.infer(ask("m", "a")).id == "a"


def test_a_stream_may_be_silent_for_longer_than_a_body_may(serve: Serve, models: Path) -> None:
    """A client that thinks between two messages has begun none."""
    daemon = serve(models, native(body_stall_s=0.1, keepalive_s=1))
    with Stub(daemon.grpc) as stub:
        sending = Sending(ask("m", "a"))
        answers = stub.stream(sending)
        assert next(answers).infer_response.id == "a"
        with pytest.raises(TimeoutError):
            # Nothing may end the stream meanwhile; a second is ten times the bound.
            _ended(answers).result(timeout=1.0)
        sending.send(ask("m", "b"))
        assert next(answers).infer_response.id == "b"
        sending.end()
        assert list(answers) == []


def test_the_log_and_the_welcome_name_the_front_end(serve: Serve, models: Path) -> None:
    daemon = serve(models, NATIVE_FAKES)
    assert daemon.stop() == 0
    daemon.wait_log('"front_end": "native"')
    daemon.wait_log(f"Serving gRPC on {daemon.grpc}, HTTP on {daemon.http} (native front end)")


def _connection(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=20)


def _ended(call: Any) -> Future[None]:
    """Resolves when ``call`` ends."""
    future: Future[None] = Future()
    call.add_callback(lambda: future.set_result(None))
    return future


def _frames(connection: socket.socket) -> Iterator[tuple[int, int]]:
    """Kind of each frame, with the error code of a GOAWAY, until the end of the connection."""
    stream = connection.makefile("rb")
    while len(header := stream.read(FRAME_HEADER)) == FRAME_HEADER:
        payload = stream.read(int.from_bytes(header[:3], "big"))
        yield header[3], int.from_bytes(payload[4:8], "big") if header[3] == GOAWAY else 0
