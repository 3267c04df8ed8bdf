"""Floods of HTTP/2 frames against a daemon on the native front end: each ends its own connection and is counted by the
setting that bounds it, while others are served. What clients do who only do much of it is no flood."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from appliance.frontend.grpc.services import INFER, INFER_STREAM
from native.tests.raw_client import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawClient,
    request,
)
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.faults.fake_models import write_fake
from tests.faults.leased import NATIVE_FAKES, message, teach, until_empty
from tests.faults.stream_client import StreamClient
from tests.fronts import needs_native

pytestmark = needs_native
FRONT_END = NATIVE_FAKES
WIDE = 600 << 10
FRAME = RawClient.frame
NOTHING, UPLOAD = range(2)
CONTROL = "max_control_frames_per_10s"
FLOODS = {
    "settings": (NOTHING, FRAME(SETTINGS, 0, 0), CONTROL),
    "window updates": (NOTHING, FRAME(WINDOW_UPDATE, 0, 0, (1).to_bytes(4)), CONTROL),
    "window updates of a call": (UPLOAD, FRAME(WINDOW_UPDATE, 0, 1, (1).to_bytes(4)), CONTROL),
    "priorities": (NOTHING, FRAME(PRIORITY, 0, 1, (3).to_bytes(4) + b"\x10"), CONTROL),
    "empty data": (UPLOAD, FRAME(DATA, 0, 1), CONTROL),
    "frames of no known type": (NOTHING, FRAME(77, 0, 0), CONTROL),
    "answers to no ping": (NOTHING, FRAME(PING, ACK, 0, bytes(8)), CONTROL),
    "pings": (NOTHING, FRAME(PING, 0, 0, bytes(8)), "client_ping_interval_s"),
    "continuations": (NOTHING, FRAME(HEADERS, 0, 1) + FRAME(CONTINUATION, 0, 1) * 9, "max_metadata_bytes"),
}
COUNT = 12_000


def enforced(daemon: ApplianceProcess) -> dict[str, int]:
    """How often each bound of the front end was enforced."""
    found = re.findall(
        r'^appliance_front_end_limits_total\{limit="(\w+)"\} (\d+)$',
        daemon.get("/metrics").decode(),
        re.MULTILINE,
    )
    return {limit: int(count) for limit, count in found}


def connect(daemon: ApplianceProcess, settings: bytes = b"") -> RawClient:
    """A connection that says only what it is told to."""
    host, port = daemon.grpc.rsplit(":", 1)
    return RawClient((host, int(port)), settings)


def calm(client: RawClient) -> bytes:
    """The words with which the front end takes its leave."""
    frame = client.receive_kind(GOAWAY)
    assert int.from_bytes(frame.payload[4:8]) == ENHANCE_YOUR_CALM
    return frame.payload[8:]


def test_floods_end_their_connection_and_nothing_else(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path)
    teach(daemon, "m")
    with StreamClient(daemon.grpc, "m", depth=4) as other:
        other.wait_for(50)
        for kind, (before, unit, limit) in FLOODS.items():
            counted = enforced(daemon)
            with connect(daemon) as client:
                if before == UPLOAD:
                    client.call(1, (1 << 20).to_bytes(5), request(INFER), flags=0)
                with contextlib.suppress(
                    ConnectionError
                ):  # the front end may cut it before the last of them is sent
                    client.socket.sendall(unit * COUNT)
                assert calm(client).startswith(b"too_many_"), kind
            goal = {**counted, limit: counted[limit] + 1}
            daemon.until(f"{kind} counted", lambda _, goal=goal: enforced(daemon) == goal)
            other.wait_for(10)
    assert (other.end, other.unanswered, other.wrong, set(other.outcomes)) == ("OK", 0, 0, {"OK"})
    until_empty(daemon)


def test_broken_http2_is_counted(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, {"grpc": {"max_concurrent_streams": 1, "max_metadata_bytes": 1024}})
    assert set(enforced(daemon).values()) == {0}
    with connect(daemon) as client:
        client.send(PING, 0, 0, bytes(7))
        assert client.end() == 1
    with connect(daemon) as client:
        client.call(1, b"", request(INFER), flags=0)
        client.receive_kind(SETTINGS)
        client.send(SETTINGS, ACK, 0)
        client.send(WINDOW_UPDATE, 0, 1, (0x7FFF_FFFF).to_bytes(4))
        assert int.from_bytes(client.receive_kind(RST_STREAM).payload) == 3
        client.call(3, b"", request(INFER), flags=0)
        client.call(5, b"", request(INFER), flags=0)
        assert int.from_bytes(client.receive_kind(RST_STREAM).payload) == 7
    with connect(daemon) as client:
        client.call(1, b"", [*request(INFER), ("x", "v" * 6000)], flags=END_STREAM | END_HEADERS)
        assert client.receive_kind(RST_STREAM).stream == 1
    goal = {"http2_protocol": 1, "http2_window": 1, "max_concurrent_streams": 1, "max_metadata_bytes": 1}
    daemon.until(
        "all of it", lambda _: {key: count for key, count in enforced(daemon).items() if count} == goal
    )


def test_a_client_that_opens_no_window_is_cut_and_holds_nothing(serve: Serve, tmp_path: Path) -> None:
    """Many calls whose answers find a window of one byte, and a stream of which nothing is taken."""
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, {"grpc": {"write_stall_s": 0.3}})
    teach(daemon, "m")
    count = 100
    body = message("m").SerializeToString()
    framed = b"\0" + len(body).to_bytes(4) + body
    with connect(daemon, settings=(4).to_bytes(2) + (1).to_bytes(4)) as client:
        client.socket.sendall(
            b"".join(
                client.head(stream, request(INFER)) + client.frame(DATA, END_STREAM, stream, framed)
                for stream in range(1, 2 * count, 2)
            )
            + client.head(2 * count + 1, request(INFER_STREAM))
            + client.frame(DATA, 0, 2 * count + 1, framed)
        )
        daemon.until("all of them cut", lambda _: enforced(daemon)["write_stall_s"] == count + 1)
        with Stub(daemon.grpc) as stub:
            assert stub.infer(message("m"))
    until_empty(daemon)
    assert re.search(rb"^appliance_front_end_answer_bytes 0$", daemon.get("/metrics"), re.MULTILINE)


def test_what_clients_do_is_no_flood(serve: Serve, tmp_path: Path) -> None:
    """A stream of 10,000 requests, and large tensors both ways, over one connection each."""
    write_fake(tmp_path, "m")
    write_fake(tmp_path, "wide", width=WIDE)
    daemon = serve(tmp_path)
    count = 10_000
    with Stub(daemon.grpc) as stub:
        asked = message("m")
        assert sum(not answer.error_message for answer in stub.stream(asked for _ in range(count))) == count
    with Stub(daemon.grpc) as stub:
        for _ in range(40):
            assert len(stub.infer(message("wide", width=WIDE)).raw_output_contents[0]) == WIDE
    assert {key: count for key, count in enforced(daemon).items() if count} == {}
