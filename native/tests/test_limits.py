"""Each limit of the front end: it strikes, it is counted, and others go on."""

from __future__ import annotations

import contextlib
import re
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from edge_appliance_native import CALL, GONE, LIMITS, MESSAGE, SENT

from native.tests.host import TALK, Host, listening, start, unix_listener
from native.tests.raw_client import (
    ACK,
    CANCEL,
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawClient,
    framed,
    request,
)

DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = "4", "8"
CONTRACT = Path(__file__).parents[1] / "python" / "edge_appliance_native" / "__init__.pyi"


def serves(host: Host, target: str = "") -> bool:
    """Whether a call over a new connection is answered."""
    future = start(host.channel(target), b"")
    host.echo_until([future])
    return bool(future.code() == grpc.StatusCode.OK)


def test_every_count_is_in_the_contract() -> None:
    text = CONTRACT.read_text().partition("def statistics")[2].partition('."""')[0]
    with Host() as host:
        assert set(host.server.statistics()) - set(LIMITS) <= set(re.findall(r"``(\w+)``", text))


def test_message_bytes() -> None:
    with Host(message_bytes=1000) as host:
        channel = host.channel()
        fits, too_large = start(channel, bytes(1000)), start(channel, bytes(1001))
        host.echo_until([fits, too_large])
        assert fits.code() == grpc.StatusCode.OK
        assert too_large.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1001 bytes" in too_large.details()
        assert host.is_counted("message_bytes", 1)


def test_refused_messages_do_not_use_up_the_window_of_their_connection() -> None:
    with Host(message_bytes=1000) as host:
        channel = host.channel()
        for _ in range(20):  # together more than the 32 MiB that a connection may have under way
            assert start(channel, bytes(8 << 20)).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        fits = start(channel, bytes(1000))
        host.echo_until([fits])
        assert fits.code() == grpc.StatusCode.OK
        assert host.server.statistics()["connections_total"] == 1


def test_message_bytes_of_a_stream() -> None:
    with Host(message_bytes=1000) as host:
        stream = host.channel().stream_stream(TALK)(iter([bytes(1001)]))
        call = host.expect(CALL)[1]
        host.server.read(call)
        assert host.expect(GONE)[1] == call
        assert stream.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("size", [2000, 20_000])
def test_metadata_bytes(size: int) -> None:
    with Host(metadata_bytes=1000) as host, RawClient(host.addresses[0]) as client:
        headers = [*request(), *((f"x-{number}", "v" * 100) for number in range(size // 100))]
        client.call(1, framed(b""), headers)
        if size == 2000:
            assert client.answer(1)[0]["grpc-status"] == RESOURCE_EXHAUSTED
        else:  # far beyond: nothing of it is taken apart any more
            assert client.end() == ENHANCE_YOUR_CALM
        assert host.is_counted("metadata_bytes", 1)
        assert serves(host)


def test_streams_per_connection() -> None:
    with Host(streams_per_connection=2) as host, RawClient(host.addresses[0]) as client:
        client.receive_kind(SETTINGS)
        client.send(SETTINGS, ACK, 0)
        for stream in (1, 3, 5):
            client.call(stream, framed(b""))
        refused = client.receive_kind(RST_STREAM)
        assert (refused.stream, int.from_bytes(refused.payload)) == (5, 7)
        assert host.is_counted("streams_per_connection", 1)
        calls = [host.expect(CALL), host.expect(CALL)]
        for call in calls:
            host.echo(call)
        assert client.answer(3)[0]["grpc-status"] == "0"


def test_clients_keep_the_bound_of_streams_by_themselves() -> None:
    with Host(streams_per_connection=5) as host:
        channel = host.channel()
        futures = [start(channel, b"%d" % number) for number in range(100)]
        host.echo_until(futures)
        assert all(future.code() == grpc.StatusCode.OK for future in futures)


def test_calls_of_one_client_over_all_its_connections(tmp_path: Path) -> None:
    """They say nothing and end never; whoever else comes is served."""
    most, connections = 32_768, 4
    with Host(listening(), unix_listener(tmp_path), streams_per_connection=most) as host:
        for opened in (1, 2):
            with ExitStack() as stack:
                clients = [stack.enter_context(RawClient(host.addresses[0])) for _ in range(connections)]
                for client in clients:
                    stream = range(1, 2 * most // connections, 2)
                    client.socket.sendall(b"".join(client.head(number) for number in stream))
                assert host.is_counted("calls_open", most)
                assert host.is_counted("calls_refused", opened - 1)
                clients[0].socket.sendall(clients[0].head(2 * most + 1))
                answer, _ = clients[0].answer(2 * most + 1)
                assert (answer["grpc-status"], answer["grpc-message"]) == ("8", "too many RPCs are under way")
                assert host.is_counted("calls_refused", opened)
                assert serves(host, f"unix:{tmp_path}/grpc")
            assert host.is_counted("calls_open", 0)
        assert serves(host)


def test_connections() -> None:
    with Host(connections=2) as host:
        with RawClient(host.addresses[0]), RawClient(host.addresses[0]):
            assert host.is_counted("connections_open", 2)
            with RawClient(host.addresses[0]) as third:
                assert third.end() is None
            assert host.is_counted("connections", 1)
            assert host.is_counted("connections_refused", 1)
        assert host.is_counted("connections_open", 0)
        assert serves(host)


def test_connections_per_peer() -> None:
    with Host(connections_per_peer=1) as host:
        with RawClient(host.addresses[0]):
            assert host.is_counted("connections_open", 1)
            with RawClient(host.addresses[0]) as second:
                assert second.end() is None
            assert host.is_counted("connections_per_peer", 1)
        assert host.is_counted("connections_open", 0)
        assert serves(host)


def test_bytes_in_flight() -> None:
    with Host(message_bytes=1 << 20, bytes_in_flight=1 << 20) as host:
        channel = host.channel()
        first = start(channel, bytes(600_000))
        held = host.expect(CALL)
        second = start(channel, bytes(600_000))
        assert second.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert host.is_counted("bytes_in_flight_refused", 1)
        host.echo(held)
        assert first.result() == bytes(600_000)
        del held
        third = start(channel, bytes(600_000))
        host.echo_until([third])
        assert third.code() == grpc.StatusCode.OK
        assert host.is_counted("bytes_in_flight", 0)


def test_one_connection_may_hold_half_of_the_bytes_in_flight() -> None:
    with Host(message_bytes=1 << 20, bytes_in_flight=4 << 20) as host:
        channel = host.channel()
        futures = [start(channel, bytes(1_000_000)) for _ in range(2)]
        held = [host.expect(CALL), host.expect(CALL)]
        third = start(channel, bytes(1_000_000))
        assert third.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "one connection" in third.details()
        assert "(grpc.max_messages_bytes)" in third.details()
        assert host.is_counted("connection_bytes_refused", 1)
        assert host.server.statistics()["bytes_in_flight_refused"] == 0
        other = start(host.channel(), bytes(1_000_000))
        held.append(host.expect(CALL))
        while held:
            host.echo(held.pop())
        assert all(len(future.result()) == 1_000_000 for future in [*futures, other])
        assert host.is_counted("bytes_in_flight", 0)


def test_metadata_is_memory_as_long_as_its_call() -> None:
    with (
        Host(message_bytes=64 << 10, bytes_in_flight=128 << 10) as host,
        RawClient(host.addresses[0]) as client,
    ):
        for stream in range(1, 31, 2):
            client.socket.sendall(client.head(stream, [*request(TALK), ("x", "v" * 8000)]))
        refused = client.receive_kind(HEADERS).stream
        assert 10 < refused < 20, "half of it holds seven such calls"
        assert host.is_counted("connection_bytes_refused", lambda count: count >= 7)
        assert host.is_counted("bytes_in_flight", lambda count: 7 * 8000 < count <= 64 << 10)
        assert serves(host), "another connection has its own half"
    assert host.is_counted("bytes_in_flight", 0)


def test_a_message_that_is_only_announced_takes_little() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(client.head(1))
        client.send(DATA, 0, 1, b"\0" + (60 << 20).to_bytes(4) + b"x" * 1000)
        assert host.is_counted("bytes_in_flight", lambda count: count > 0)
        assert host.server.statistics()["bytes_in_flight"] <= 64 << 10
    assert host.is_counted("bytes_in_flight", 0)


def test_windows_begin_small_and_grow_for_large_messages() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        begin = client.receive_kind(WINDOW_UPDATE)
        assert (begin.stream, int.from_bytes(begin.payload)) == (0, (1 << 20) - 65_535)
        client.socket.sendall(client.head(1))
        client.send(DATA, 0, 1, bytes([0]) + (2 << 20).to_bytes(4) + b"x")
        grown = client.receive_kind(WINDOW_UPDATE)
        assert grown.stream == 0
        assert int.from_bytes(grown.payload) >= (8 << 20) - (1 << 20)


def test_a_silent_connection_is_pinged_and_stays_while_it_answers() -> None:
    with Host(keepalive_ms=20) as host, RawClient(host.addresses[0]) as client:
        for _ in range(3):
            ping = client.receive_kind(PING)
            assert ping.flags == 0
            client.send(PING, ACK, 0, ping.payload)
        assert host.server.statistics()["keepalive_timeout_ms"] == 0
        assert host.is_counted("keepalive_ms", lambda count: count >= 3)


def test_a_connection_that_does_not_answer_pings_is_closed() -> None:
    with (
        Host(keepalive_ms=20, keepalive_timeout_ms=20) as host,
        RawClient(host.addresses[0], preface=b"") as client,
    ):
        client.begin(client.head(1) + client.frame(DATA, END_STREAM, 1, framed(b"")))
        call = host.expect(CALL)[1]
        assert client.end() == 0
        assert host.expect(GONE)[1] == call
        assert host.is_counted("keepalive_timeout_ms", 1)
        assert host.is_counted("connections_open", 0)


def test_an_old_connection_is_asked_to_leave_and_finishes_its_calls() -> None:
    with Host(connection_age_ms=50) as host:
        channel = host.channel()
        first = start(channel, b"first")
        event = host.expect(CALL)
        assert host.is_counted("connection_age_ms", lambda count: count >= 1)
        host.echo(event)
        assert first.result() == b"first"
        second = start(channel, b"second")
        host.echo_until([second])
        assert second.result() == b"second"
        assert host.is_counted("connections_total", lambda count: count >= 2)


@pytest.mark.parametrize("preface", [b"", b"PRI * HTTP/2.0\r\n"])
def test_a_connection_that_does_not_begin_is_closed(preface: bytes) -> None:
    with Host(handshake_ms=30) as host, RawClient(host.addresses[0], preface=preface) as client:
        client.end()
        assert host.is_counted("handshake_ms", 1)
        assert host.is_counted("connections_open", 0)


@pytest.mark.parametrize("body", [b"", b"\0\0", framed(b"hello")[:-1], framed(b"hello")])
def test_a_body_that_stands_still_is_cut(body: bytes) -> None:
    with Host(idle_body_ms=30) as host, RawClient(host.addresses[0]) as client:
        client.call(1, body, flags=0)
        answer, _ = client.answer(1)
        assert answer["grpc-status"] == DEADLINE_EXCEEDED
        assert "30 ms" in answer["grpc-message"]
        assert host.is_counted("idle_body_ms", 1)
        assert host.quiet()


def test_a_body_that_trickles_is_cut() -> None:
    with Host(idle_body_ms=100) as host, RawClient(host.addresses[0]) as client:
        client.receive_kind(SETTINGS)
        client.call(1, (1 << 20).to_bytes(5), flags=0)
        while not host.server.statistics()["idle_body_ms"]:  # each byte comes long before the time is over
            client.send(DATA, 0, 1, bytes(1))
            time.sleep(0.005)
        assert client.answer(1)[0]["grpc-status"] == DEADLINE_EXCEEDED
        assert host.is_counted("bytes_in_flight", 0)


def test_a_body_that_does_not_arrive_before_its_deadline_is_answered_by_the_front_end() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.call(1, b"\0", request(grpc_timeout="30m"), flags=0)
        assert client.answer(1)[0]["grpc-status"] == DEADLINE_EXCEEDED
        assert host.server.statistics()["idle_body_ms"] == 0


def test_a_stream_may_stand_still_between_messages_but_not_within_one() -> None:
    with Host(idle_body_ms=30) as host, RawClient(host.addresses[0]) as client:
        client.call(1, b"", request(TALK), flags=0)
        call = host.expect(CALL)[1]
        host.server.read(call)
        client.call(3, b"", flags=0)  # a unary body that is cut shows that the time has passed
        client.answer(3)
        client.send(DATA, 0, 1, framed(b"one") + b"\0")
        assert host.expect(MESSAGE)[2] == b"one"
        host.server.read(call)
        assert host.expect(GONE)[1] == call
        assert client.answer(1)[0]["grpc-status"] == DEADLINE_EXCEEDED


def test_an_answer_without_window_is_cut() -> None:
    with Host(write_stall_ms=30) as host, RawClient(host.addresses[0]) as client:
        client.call(1, framed(b""))
        assert host.server.reply(
            host.expect(CALL)[1], bytes(100_000)
        )  # the window is 65535 and is never renewed
        reset = client.receive_kind(RST_STREAM)
        assert int.from_bytes(reset.payload) == ENHANCE_YOUR_CALM
        assert host.is_counted("write_stall_ms", 1)
        assert host.quiet(), "Python has ended the call"


def test_answers_that_nobody_takes_are_bounded() -> None:
    with Host(message_bytes=1 << 20, bytes_in_flight=4 << 20) as host:
        no_window = (4).to_bytes(2) + (0).to_bytes(4)
        with RawClient(host.addresses[0], settings=no_window) as client:
            for stream in (1, 3, 5):
                client.call(stream, framed(b""))
                assert host.server.reply(host.expect(CALL)[1], bytes(900_000))
            assert host.server.statistics()["answer_bytes"] == 2 * 900_005
            assert host.server.statistics()["answer_bytes_refused"] == 1
            assert client.answer(5)[0]["grpc-status"] == RESOURCE_EXHAUSTED
            assert serves(host), "another connection has its own half"
        assert host.is_counted("answer_bytes", 0)


def test_a_stream_whose_answer_finds_no_room_is_gone() -> None:
    with Host(message_bytes=1 << 20, bytes_in_flight=1 << 20) as host:
        with RawClient(host.addresses[0]) as client:
            client.call(1, b"", request(TALK), flags=0)
            call = host.expect(CALL)[1]
            assert host.server.send(call, bytes(2 << 20))
            assert host.expect(GONE)[1] == call
            assert client.answer(1)[0]["grpc-status"] == RESOURCE_EXHAUSTED
            assert not host.server.send(call, b"")
        assert host.is_counted("answer_bytes", 0)


def test_an_answer_that_is_taken_byte_by_byte_is_cut() -> None:
    with Host(write_stall_ms=100) as host, RawClient(host.addresses[0]) as client:
        client.call(1, framed(b""))
        assert host.server.reply(host.expect(CALL)[1], bytes(100_000))  # the window is 65535
        while not host.server.statistics()["write_stall_ms"]:  # each byte comes long before the time is over
            client.send(WINDOW_UPDATE, 0, 1, (1).to_bytes(4))
            client.send(WINDOW_UPDATE, 0, 0, (1).to_bytes(4))
            time.sleep(0.005)
        assert int.from_bytes(client.receive_kind(RST_STREAM).payload) == ENHANCE_YOUR_CALM
        assert host.is_counted("answer_bytes", 0)


def test_a_stream_that_is_not_taken_is_gone() -> None:
    with Host(write_stall_ms=30) as host, RawClient(host.addresses[0]) as client:
        client.call(1, b"", request(TALK), flags=0)
        call = host.expect(CALL)[1]
        host.server.send(call, bytes(50_000))
        assert host.expect(SENT)[1] == call
        host.server.send(call, bytes(50_000))
        assert host.expect(GONE)[1] == call


def test_a_client_that_takes_nothing_from_its_socket_is_cut() -> None:
    with Host(write_stall_ms=200) as host:
        window = (5).to_bytes(2) + (16_384).to_bytes(4) + (4).to_bytes(2) + (0x7FFF_FFFF).to_bytes(4)
        with RawClient(host.addresses[0], settings=window) as client:
            client.send(WINDOW_UPDATE, 0, 0, (0x7000_0000).to_bytes(4))
            client.call(1, framed(b""))
            assert host.server.reply(host.expect(CALL)[1], bytes(60 << 20))
            assert host.is_counted(
                "write_stall_ms", lambda count: count >= 1
            )  # the answer, and then the connection
            assert host.is_counted("connections_open", 0)


def test_resets_per_connection() -> None:
    with Host(resets_per_connection=10) as host, RawClient(host.addresses[0]) as client:
        with contextlib.suppress(ConnectionError):  # the front end may cut it before the last of them is sent
            for stream in range(1, 41, 2):
                client.call(stream, framed(b""))
                client.send(RST_STREAM, 0, stream, CANCEL.to_bytes(4))
        assert client.end() == ENHANCE_YOUR_CALM
        assert host.is_counted("resets_per_connection", 1)
        assert host.is_counted("connections_open", 0)
        assert serves(host)


def test_many_resets_at_once_close_the_connection() -> None:
    with Host(resets_per_connection=10) as host, RawClient(host.addresses[0]) as client:
        flood = b"".join(
            client.head(stream) + client.frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4))
            for stream in range(1, 201, 2)
        )
        client.socket.sendall(flood)
        assert client.end() == ENHANCE_YOUR_CALM
        assert host.is_counted("resets_per_connection", 1)
        assert host.is_counted("calls_open", 0)


def test_pings_per_connection() -> None:
    with Host(pings_per_connection=5) as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(b"".join(client.frame(PING, 0, 0, bytes(8)) for _ in range(20)))
        assert client.end() == ENHANCE_YOUR_CALM
        assert host.is_counted("pings_per_connection", 1)


def test_pings_that_answer_data_are_free() -> None:
    with Host(pings_per_connection=5) as host, RawClient(host.addresses[0]) as client:
        for stream in range(1, 41, 2):
            client.call(stream, framed(b""))
            host.echo(host.expect(CALL))
            assert client.answer(stream)[0]["grpc-status"] == "0"
            client.send(PING, 0, 0, bytes(8))
        assert host.server.statistics()["pings_per_connection"] == 0
        assert client.receive_kind(PING).flags == ACK


def test_cutting_one_connection_leaves_the_others() -> None:
    with Host(pings_per_connection=5) as host, RawClient(host.addresses[0]) as good:
        with RawClient(host.addresses[0]) as bad:
            bad.socket.sendall(b"".join(bad.frame(PING, 0, 0, bytes(8)) for _ in range(20)))
            assert bad.receive_kind(GOAWAY)
        good.call(1, framed(b""))
        host.echo(host.expect(CALL))
        assert good.receive_kind(HEADERS)
