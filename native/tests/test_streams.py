"""Streaming calls: one message at a time in each direction."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from edge_appliance_native import CALL, GONE, MESSAGE, SENT

from native.tests.host import PATIENCE_S, TALK, Host, start
from native.tests.raw_client import ACK, DATA, PING, WINDOW_UPDATE, RawClient, framed, request


def test_messages_go_both_ways_in_order() -> None:
    with Host() as host:
        stream = host.channel().stream_stream(TALK)(iter([b"a", b"", b"c" * 100_000]), timeout=PATIENCE_S)
        call = host.expect(CALL)[1]
        before_ns = 0
        for expected in (b"a", b"", b"c" * 100_000):
            assert host.server.read(call)
            _, told, message, attempts, deadline_ns, _, arrived_ns = host.expect(MESSAGE)
            assert (attempts, deadline_ns) == (0, 0)
            assert before_ns <= arrived_ns <= (before_ns := time.monotonic_ns())
            assert told == call
            assert memoryview(message) == expected
            assert host.server.send(call, [b"<", memoryview(message), b">"])
            assert host.expect(SENT)[1] == call
            assert next(stream) == b"<" + expected + b">"
        for _ in range(2):
            assert host.server.read(call)
            assert host.expect(MESSAGE)[2] is None
        assert host.server.finish(call, 0, "", [("x-count", "3")])
        assert list(stream) == []
        assert ("x-count", "3") in [tuple(pair) for pair in stream.trailing_metadata()]


def test_a_call_comes_before_any_message() -> None:
    with Host() as host:
        waiting = iter(lambda: b"", None)  # never asked for: the front end reads nothing by itself
        stream = host.channel().stream_stream(TALK)(itertools.islice(waiting, 1))
        event = host.expect(CALL)
        assert event[2:4] == (1, None)
        host.server.finish(event[1], 9, "not now")
        assert stream.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert stream.details() == "not now"


def test_one_read_and_one_message_at_a_time() -> None:
    asked = threading.Event()
    with Host() as host:
        stream = host.channel().stream_stream(TALK)(b"1" for _ in range(1) if asked.wait(PATIENCE_S))
        call = host.expect(CALL)[1]
        host.server.read(call)
        with pytest.raises(ValueError, match="MESSAGE"):
            host.server.read(call)
        asked.set()
        assert host.expect(MESSAGE)[2] == b"1"
        large = bytes(32 << 20)  # more than the client takes before it is asked for it
        host.server.send(call, large)
        with pytest.raises(ValueError, match="SENT"):
            host.server.send(call, b"y")
        assert next(stream) == large
        host.expect(SENT)
        host.server.send(call, b"z")
        assert host.server.finish(call, 0), "a message that is being sent is sent before the end"
        assert list(stream) == [b"z"]


def test_a_client_is_no_further_ahead_than_the_windows() -> None:
    size = 1 << 20
    asked = itertools.count()
    ahead = 0

    def messages() -> Iterator[bytes]:
        nonlocal ahead
        for number in asked:
            ahead = number
            yield bytes(size)

    with Host() as host:
        stream = host.channel().stream_stream(TALK)(messages())
        call = host.expect(CALL)[1]
        for _ in range(30):
            host.server.read(call)
            assert len(host.expect(MESSAGE)[2]) == size
        # 8 MiB of window, and what the client and the kernel hold.
        assert host.server.statistics()["bytes_in_flight"] <= 4 * size
        assert ahead < 30 + 40
        host.server.finish(call, 0)
        assert stream.code() == grpc.StatusCode.OK


def given_back(client: RawClient) -> int:
    """How much of its window the connection is given back now: that has been said by the second pong."""
    given = 0
    for _ in range(2):
        client.send(PING, 0, 0, bytes(8))
        while (frame := client.receive()) and (frame.kind, frame.flags) != (PING, ACK):
            if (frame.kind, frame.stream) == (WINDOW_UPDATE, 0):
                given += int.from_bytes(frame.payload)
        assert frame
    return given


@pytest.mark.parametrize("ends", [False, True])
def test_what_is_read_with_a_message_is_the_clients_until_it_is_asked_for_or_its_stream_ends(
    ends: bool,
) -> None:
    frame = framed(b"1") + framed(bytes((64 << 10) - len(framed(b"1")) - len(framed(b""))))
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.widen()
        given = 0
        for turn in range(4):  # together twice the window
            calls = []
            for stream in range(1 + 16 * turn, 17 + 16 * turn, 2):
                client.socket.sendall(
                    client.head(stream, request(TALK)) + client.frame(DATA, 0, stream, frame)
                )
                calls.append(host.expect(CALL)[1])
                host.server.read(calls[-1])
                assert host.expect(MESSAGE)[2] == b"1"
            given += given_back(client)
            assert given <= turn * 8 * len(frame), "it is given back before it was asked for"
            for call in calls:
                if not ends:
                    host.server.read(call)
                    assert len(host.expect(MESSAGE)[2]) > 60_000
                host.server.finish(call, 0)
            given += given_back(client)
            assert given > turn * 8 * len(frame)


def test_a_slow_client_holds_up_only_its_own_stream() -> None:
    with Host() as host:
        slow = host.channel(**{"http2.lookahead_bytes": 65_536, "http2.bdp_probe": 0}).stream_stream(TALK)(
            iter(())
        )
        call = host.expect(CALL)[1]
        assert host.server.send(call, bytes(32 << 20))
        future = host.channel().unary_unary("/test.Service/Echo").future(b"quick", timeout=PATIENCE_S)
        host.echo_until([future])
        assert future.result() == b"quick"
        assert len(next(slow)) == 32 << 20
        host.server.finish(call, 0)


def test_a_cancelled_stream_is_gone() -> None:
    with Host() as host:
        stream = host.channel().stream_stream(TALK)(iter(lambda: b"x", b"y"))
        call = host.expect(CALL)[1]
        stream.cancel()
        assert host.expect(GONE)[1] == call
        assert not host.server.read(call)
        assert not host.server.send(call, b"")
        assert not host.server.finish(call, 0)
        assert host.is_counted("resets", 1)


def test_a_stream_of_which_no_more_is_read_ends_for_its_server() -> None:
    with Host() as host:
        stream = host.channel().stream_stream(TALK)(iter(lambda: b"x", b"y"))
        call = host.expect(CALL)[1]
        host.server.read(call)
        assert host.expect(MESSAGE)[2] == b"x"
        assert host.server.stop_reading(call)
        for _ in range(2):
            assert host.server.read(call)
            assert host.expect(MESSAGE)[2:6] == (None, 0, 0, None)
        host.server.finish(call, 14, "enough")
        assert stream.code() == grpc.StatusCode.UNAVAILABLE
        assert not host.server.stop_reading(call)


def test_a_read_that_waits_is_told_when_no_more_is_read() -> None:
    with Host() as host:
        asked = threading.Event()
        stream = host.channel().stream_stream(TALK)(b"1" for _ in range(1) if asked.wait(PATIENCE_S))
        call = host.expect(CALL)[1]
        host.server.read(call)
        host.server.stop_reading(call)
        assert host.expect(MESSAGE)[2] is None
        host.server.finish(call, 0)
        assert list(stream) == []
        asked.set()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_message_that_has_begun_to_come_is_read_to_its_end_when_no_more_is_read(ahead: bool) -> None:
    message = bytes(range(250)) * 40
    begun, rest = framed(message)[:5000], framed(message)[5000:]
    with Host() as host, RawClient(host.addresses[0]) as client:
        if ahead:
            host.server.fast_path().serve_stream(1, 4, 1 << 20)
        client.socket.sendall(client.head(1, request(TALK)) + client.frame(DATA, 0, 1, begun))
        call = host.expect(CALL)[1]
        assert host.server.read(call)
        assert host.is_counted("bytes_in_flight", lambda count: count > 0)
        assert host.server.stop_reading(call)
        given_back(client)
        assert host.quiet(), "it is told of before it has come"
        client.send(DATA, 0, 1, rest + framed(b"more"))
        assert host.expect(MESSAGE)[2] == message
        assert host.server.read(call)
        assert host.expect(MESSAGE)[2] is None
        assert host.server.finish(call, 0)
        assert client.answer(1)[0]["grpc-status"] == "0"


def test_the_streaming_method_is_named_once() -> None:
    with Host() as host:
        fast_path = host.server.fast_path()
        fast_path.serve_stream(1, 4, 1 << 20)
        with pytest.raises(ValueError, match="already"):
            fast_path.serve_stream(1, 4, 1 << 20)


@pytest.mark.parametrize(
    ("window", "requests", "nbytes"), [(1, 1, 1 << 20), (3, 3, 1 << 20), (3, 20, 3), (1, 20, 1)]
)
def test_the_front_end_reads_ahead_of_its_server_by_no_more_than_the_window(
    window: int, requests: int, nbytes: int
) -> None:
    """There is no template: all messages, of one byte, are the server's, one for each that it asks for."""
    with Host() as host:
        host.server.fast_path().serve_stream(1, requests, nbytes)
        sent = [bytes([number]) for number in range(20)]
        stream = host.channel().stream_stream(TALK)(iter(sent), timeout=PATIENCE_S)
        call = host.expect(CALL)[1]
        for message in sent[:window]:
            assert host.server.read(call)
            assert host.expect(MESSAGE)[2:6] == (message, 0, 0, None)
        host.server.read(call)
        other = start(host.channel(), b"other")
        host.echo(host.expect(CALL))  # and no MESSAGE
        assert other.result() == b"other"
        for message, following in itertools.pairwise(sent[window - 1 :]):
            host.server.send(call, message)
            told = {event[0]: event for event in (host.event(), host.event())}
            assert told[MESSAGE][2:6] == (following, 0, 0, None)
            assert told[SENT] == (SENT, call)
            assert next(stream) == message
            host.server.read(call)
        host.server.finish(call, 0)
        assert list(stream) == []
