"""Floods of frames that carry nothing, broken HTTP/2 and windows that nobody opens: who sends them is cut and counted,
others go on. Clients that only do much of what is right are never cut."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from edge_appliance_native import CALL, MESSAGE, SENT

from native.tests.host import TALK, Host
from native.tests.raw_client import (
    ACK,
    CANCEL,
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
    Frame,
    RawClient,
    framed,
    request,
)
from native.tests.test_limits import serves

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 1, 3, 6
UNKNOWN = 77
BOUND = 500
FRAME = RawClient.frame


def window_of(size: int) -> bytes:
    """The setting of an initial window."""
    return (4).to_bytes(2) + size.to_bytes(4)


def goaway(client: RawClient) -> Frame:
    """The first GOAWAY."""
    return client.receive_kind(GOAWAY)


def idle(_: Host, __: RawClient) -> None:
    """No call."""


def upload(host: Host, client: RawClient) -> None:
    """A call whose message is coming."""
    client.call(1, (1 << 20).to_bytes(5), flags=0)
    assert host.is_counted("calls_open", 1)


def ended(host: Host, client: RawClient) -> None:
    """A call that was answered."""
    client.call(1, framed(b""))
    host.echo(host.expect(CALL))
    client.answer(1)


def reset(host: Host, client: RawClient) -> None:
    """A call that the front end has reset, and still remembers."""
    client.call(1, (1 << 30).to_bytes(5), flags=0)
    client.receive_kind(RST_STREAM)
    assert host.is_counted("message_bytes", 1)


Before = Callable[[Host, RawClient], None]
FLOODS: dict[str, tuple[Before, bytes]] = {
    "settings": (idle, FRAME(SETTINGS, 0, 0)),
    "settings that move windows": (
        upload,
        FRAME(SETTINGS, 0, 0, window_of(0)) + FRAME(SETTINGS, 0, 0, window_of(9)),
    ),
    "window updates": (idle, FRAME(WINDOW_UPDATE, 0, 0, (1).to_bytes(4))),
    "window updates of a call": (upload, FRAME(WINDOW_UPDATE, 0, 1, (1).to_bytes(4))),
    "window updates of an ended call": (ended, FRAME(WINDOW_UPDATE, 0, 1, (1).to_bytes(4))),
    "priorities": (idle, FRAME(PRIORITY, 0, 1, (3).to_bytes(4) + b"\x10")),
    "empty data": (upload, FRAME(DATA, 0, 1)),
    "padded empty data": (upload, FRAME(DATA, 8, 1, b"\x02\0\0")),
    "bytes one by one": (upload, FRAME(DATA, 0, 1, b"\0")),
    "data after the end": (reset, FRAME(DATA, END_STREAM, 1)),
    "headers after the end": (reset, FRAME(HEADERS, END_STREAM | END_HEADERS, 1, b"\x82")),
    "resets of an ended call": (ended, FRAME(RST_STREAM, 0, 1, CANCEL.to_bytes(4))),
    "frames of no known type": (idle, FRAME(UNKNOWN, 0, 0)),
    "answers to no ping": (idle, FRAME(PING, ACK, 0, bytes(8))),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of(kind: str) -> None:
    before, unit = FLOODS[kind]
    with Host(control_frames_per_connection=BOUND) as host, RawClient(host.addresses[0]) as client:
        before(host, client)
        with contextlib.suppress(ConnectionError):  # the front end may cut it before the last of them is sent
            client.socket.sendall(unit * (BOUND + 100))
        end = goaway(client)
        assert int.from_bytes(end.payload[4:8]) == ENHANCE_YOUR_CALM
        assert end.payload[8:] in {b"too_many_control_frames", b"too_many_data_frames"}
        assert host.is_counted("control_frames_per_connection", 1)
        assert host.is_counted("connections_open", 0)
        assert serves(host)


def test_a_flood_of_continuations() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(client.frame(HEADERS, 0, 1) + client.frame(CONTINUATION, 0, 1) * 100)
        assert goaway(client).payload[8:] == b"too_many_continuations"
        assert host.is_counted("metadata_bytes", 1)
        assert serves(host)


def test_a_header_list_without_end_of_which_nothing_is_taken_apart() -> None:
    with Host(metadata_bytes=1000) as host, RawClient(host.addresses[0]) as client:
        half = client.head(1, [*request(), ("x", "v" * 3000), ("y", "v" * 3000)])[9:]
        client.socket.sendall(client.frame(HEADERS, 0, 1, half + b"\x00\x7f\xff\xff"))
        client.socket.sendall(client.frame(CONTINUATION, 0, 1, bytes(4000)) * 4)
        assert client.end() in {ENHANCE_YOUR_CALM, 9}
        assert host.is_counted("metadata_bytes", 1)


def test_calls_that_only_end_in_errors_are_a_flood() -> None:
    with Host(control_frames_per_connection=BOUND, streams_per_connection=1) as host:
        with RawClient(host.addresses[0]) as client:
            upload(host, client)
            client.receive_kind(SETTINGS)
            client.send(SETTINGS, ACK, 0)
            frames = b"".join(client.head(stream, flags=END_STREAM) for stream in range(3, 4 * BOUND, 2))
            reset = b"".join(
                client.frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4)) for stream in range(3, 999, 2)
            )
            with contextlib.suppress(ConnectionError):
                client.socket.sendall(frames + reset)
            assert goaway(client).payload[8:] == b"too_many_control_frames"
            assert host.is_counted("control_frames_per_connection", 1)
            assert host.is_counted("streams_per_connection", lambda count: count > 10)
        assert serves(host)


def test_a_flood_of_pings_is_told_as_clients_of_grpc_understand_it() -> None:
    with Host(pings_per_connection=5) as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(client.frame(PING, 0, 0, bytes(8)) * 20)
        end = goaway(client)
        assert (int.from_bytes(end.payload[4:8]), end.payload[8:]) == (ENHANCE_YOUR_CALM, b"too_many_pings")
        assert client.end() == ENHANCE_YOUR_CALM


def test_what_answers_justify_is_no_flood() -> None:
    """Two window updates and a ping for each DATA frame, as some clients do; the bound does for start and end."""
    with Host(control_frames_per_connection=40) as host, RawClient(host.addresses[0]) as client:
        client.receive_kind(SETTINGS)
        client.send(SETTINGS, ACK, 0)
        for stream in range(1, 21, 2):
            client.call(stream, framed(b""))
            assert host.server.reply(host.expect(CALL)[1], bytes(100_000))
            left = 100_005
            while left:
                frame = client.receive_kind(DATA)
                left -= len(frame.payload)
                more = max(len(frame.payload), 1).to_bytes(4)
                updates = [client.frame(WINDOW_UPDATE, 0, target, more) for target in (0, stream)]
                client.socket.sendall(b"".join(updates) + client.frame(PING, 0, 0, bytes(8)))
        assert client.receive_kind(PING).flags == ACK
        assert host.server.statistics()["control_frames_per_connection"] == 0


def test_late_frames_of_refused_messages_do_not_end_a_connection() -> None:
    """Under overload a client has sent more of what was refused already, and the front end cannot remember all of
    it."""
    count = 1400
    with (
        Host(message_bytes=1000, streams_per_connection=2 * count) as host,
        RawClient(host.addresses[0]) as client,
    ):
        for first in range(1, 2 * count, 200):
            streams = range(first, first + 200, 2)
            for stream in streams:
                client.call(stream, (1 << 20).to_bytes(5), flags=0)
            for _ in streams:
                client.receive_kind(RST_STREAM)
        for stream in range(1, 2 * count, 2):
            client.send(DATA, 0, stream, bytes(20))
        client.call(2 * count + 1, framed(b""))
        host.echo(host.expect(CALL))
        assert client.receive_kind(DATA).stream == 2 * count + 1
        assert host.server.statistics()["protocol_errors"] == 0


def test_a_stream_that_nobody_reads_may_fill_the_least_window_with_small_messages() -> None:
    count = 1800
    with Host(message_bytes=1 << 20, bytes_in_flight=3 << 20) as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(
            client.head(1, request(TALK)) + client.frame(DATA, 0, 1, framed(bytes(30))) * count
        )
        client.send(DATA, END_STREAM, 1)
        call = host.expect(CALL)[1]
        client.send(PING, 0, 0, bytes(8))
        assert client.receive_kind(PING).flags == ACK, "all of it is there"
        for _ in range(count):
            host.server.read(call)
            assert host.expect(MESSAGE)[2] == bytes(30)


# --- windows


def test_a_client_that_sends_beyond_its_window() -> None:
    with Host(message_bytes=1 << 20, bytes_in_flight=1 << 20) as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(client.head(1, request(TALK)))
        host.expect(CALL)
        piece = client.frame(DATA, 0, 1, framed(bytes(16_000)))
        with contextlib.suppress(ConnectionError):
            client.socket.sendall(piece * 5)
        assert client.end() == FLOW_CONTROL_ERROR
        assert host.is_counted("window_errors", 1)
        assert serves(host)


@pytest.mark.parametrize("stream", [0, 1])
def test_a_client_that_widens_its_own_window_beyond_all_bounds(stream: int) -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        upload(host, client)
        client.socket.sendall(client.frame(WINDOW_UPDATE, 0, stream, (0x7FFF_FFFF).to_bytes(4)) * 2)
        end = client.receive_kind(RST_STREAM if stream else GOAWAY)
        assert int.from_bytes(end.payload[-4:]) == FLOW_CONTROL_ERROR
        assert host.is_counted("window_errors", 1)
        assert host.is_counted("calls_open", 0)


def test_settings_that_move_a_window_beyond_all_bounds() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        upload(host, client)
        client.send(WINDOW_UPDATE, 0, 1, (0x7000_0000).to_bytes(4))
        client.send(SETTINGS, 0, 0, window_of(0x7FFF_FFFF))
        assert client.end() == FLOW_CONTROL_ERROR
        assert host.is_counted("window_errors", 1)


def test_a_window_update_of_nothing() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.send(WINDOW_UPDATE, 0, 0, bytes(4))
        assert client.end() == PROTOCOL_ERROR
        assert host.is_counted("protocol_errors", 1)


@pytest.mark.parametrize("window", [0, 1])
def test_many_calls_whose_answers_find_no_window_are_cut_and_hold_nothing(window: int) -> None:
    count = 300
    with (
        Host(write_stall_ms=100) as host,
        RawClient(host.addresses[0], settings=window_of(window)) as client,
    ):
        client.socket.sendall(
            b"".join(
                client.head(stream) + client.frame(DATA, END_STREAM, stream, framed(b""))
                for stream in range(1, 2 * count, 2)
            )
        )
        for _ in range(count):
            assert host.server.reply(host.expect(CALL)[1], bytes(10_000))
        assert host.is_counted("write_stall_ms", count)
        assert host.is_counted("calls_open", 0)
        assert host.is_counted("answer_bytes", 0)
        assert host.is_counted("bytes_in_flight", 0)


def test_a_stream_of_answers_into_a_window_of_one_byte_is_cut() -> None:
    with (
        Host(write_stall_ms=100) as host,
        RawClient(host.addresses[0], settings=window_of(1)) as client,
    ):
        client.call(1, b"", request(TALK), flags=0)
        call = host.expect(CALL)[1]
        host.server.send(call, bytes(1000))
        assert client.receive_kind(DATA).payload == b"\0"
        reset = client.receive_kind(RST_STREAM)
        assert int.from_bytes(reset.payload) == ENHANCE_YOUR_CALM
        assert SENT not in [event[0] for event in host.server.poll()]
        assert host.is_counted("answer_bytes", 0)


# --- what is no HTTP/2


@pytest.mark.parametrize(
    ("bytes_sent", "reason"),
    [
        (FRAME(PING, 0, 0, bytes(7)), PROTOCOL_ERROR),
        (FRAME(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
        (FRAME(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
        (FRAME(CONTINUATION, 0, 1, b"x"), PROTOCOL_ERROR),
        (FRAME(HEADERS, END_HEADERS, 2, b"\x82"), PROTOCOL_ERROR),
        (b"\xff\xff\xff" + FRAME(DATA, 0, 1)[3:], FRAME_SIZE_ERROR),
    ],
    ids=["ping", "data of no call", "data of a call to come", "continuation", "even call", "length"],
)
def test_broken_frames_are_counted(bytes_sent: bytes, reason: int) -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.receive_kind(SETTINGS)
        client.socket.sendall(bytes_sent)
        assert client.end() == reason
        assert host.is_counted("protocol_errors", 1)
        assert serves(host)


def test_a_client_that_speaks_something_else_is_counted() -> None:
    with Host() as host, RawClient(host.addresses[0], preface=b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") as client:
        client.end()
        assert host.is_counted("protocol_errors", 1)
        assert host.is_counted("connections_open", 0)


def test_a_call_with_broken_headers_is_counted() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(client.head(1, [*request(), ("content-length", "x")]))
        assert int.from_bytes(client.receive_kind(RST_STREAM).payload) == PROTOCOL_ERROR
        assert host.is_counted("protocol_errors", 1)
        client.call(3, framed(b""))
        host.echo(host.expect(CALL))
        assert client.answer(3)[0]["grpc-status"] == "0"
