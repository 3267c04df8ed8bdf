"""Unary calls between real gRPC clients and the front end."""

from __future__ import annotations

import array
import time

import grpc
import pytest
from edge_appliance_native import CALL

from native.tests.host import TALK, Host, start


def test_a_call_is_told_with_all_that_python_needs() -> None:
    with Host() as host:
        before = time.monotonic_ns()
        metadata = [("x-tenant", "a"), ("x-tenant", "b"), ("triton_request", "7"), ("x-bin", b"\x00")]
        future = start(host.channel(), b"hello", timeout=10, metadata=metadata)
        kind, call, method, message, deadline, custom, who, *rest = host.event()
        attempts, client, arrived, user = rest
        assert (kind, method, message, attempts, client, user) == (CALL, 0, b"hello", 0, "", -1)
        assert before <= arrived <= time.monotonic_ns()
        assert isinstance(message, bytes)
        assert before + 9_000_000_000 < deadline <= time.monotonic_ns() + 10_200_000_000  # clients round up
        assert custom == (("x-tenant", "a"), ("x-tenant", "b"), ("triton_request", "7"))
        assert who == "127.0.0.1"
        assert host.server.reply(call, b"world")
        assert future.result() == b"world"


def test_a_call_without_deadline_and_with_an_empty_message() -> None:
    with Host() as host:
        future = start(host.channel(), b"", timeout=None)
        _, call, _, message, deadline, custom, *_ = host.expect(CALL)
        assert (message, deadline, custom) == (b"", 0, ())
        host.server.reply(call, b"")
        assert future.result(timeout=10) == b""


def test_an_answer_may_come_in_pieces_of_any_format() -> None:
    with Host() as host:
        future = start(host.channel(), b"")
        floats = array.array("f", [1.0, 2.0])
        call = host.expect(CALL)[1]
        assert host.server.reply(call, [b"ab", memoryview(floats), memoryview(b""), memoryview(b"xcdx")[1:3]])
        assert future.result() == b"ab" + floats.tobytes() + b"cd"


@pytest.mark.parametrize("message", ["text", 5, [b"a", "b"], [memoryview(b"abcd")[::2]]])
def test_what_is_no_message_is_refused_and_ends_nothing(message: object) -> None:
    with Host() as host:
        future = start(host.channel(), b"")
        call = host.expect(CALL)[1]
        with pytest.raises((TypeError, ValueError, BufferError)):
            host.server.reply(call, message)  # type: ignore[arg-type]
        assert host.server.reply(call, b"ok")
        assert future.result() == b"ok"


def test_a_large_message_is_lent_and_counted_until_it_is_dropped() -> None:
    with Host() as host:
        sent = bytes(range(256)) * (20 << 12)
        future = start(host.channel(), sent)
        event = host.expect(CALL)
        message = memoryview(event[3])
        assert message.readonly
        assert len(event[3]) == len(sent)
        assert host.server.statistics()["bytes_in_flight"] >= len(sent)
        host.server.reply(event[1], message[:1000].tolist() and [message])
        assert future.result() == sent
        assert message == sent, "the message outlives its call"
        del event, message
        assert host.server.statistics()["bytes_in_flight"] == 0


@pytest.mark.parametrize("size", [1, 65_530, 65_531, 65_532, 65_536, 65_537, 1_000_000])
def test_messages_of_every_size_come_whole(size: int) -> None:
    with Host() as host:
        sent = (b"0123456789abcdef!" * (size // 17 + 1))[:size]
        future = start(host.channel(), sent)
        host.echo_until([future])
        assert future.result() == sent


def test_an_error_carries_its_text_and_metadata() -> None:
    with Host() as host:
        future = start(host.channel(), b"")
        call = host.expect(CALL)[1]
        assert host.server.finish(call, 8, "voll: 100 % größer\n", [("retry-after-ms", "5")])
        assert future.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert future.details() == "voll: 100 % größer\n"
        assert ("retry-after-ms", "5") in [tuple(pair) for pair in future.trailing_metadata()]


def test_a_path_that_is_not_known_is_unimplemented() -> None:
    with Host() as host:
        future = start(host.channel(), b"", path="/test.Service/Other")
        assert future.code() == grpc.StatusCode.UNIMPLEMENTED
        assert future.details() == "Method not found!"
        assert host.quiet()


def test_an_ended_call_takes_no_more_orders() -> None:
    with Host() as host:
        future = start(host.channel(), b"")
        call = host.expect(CALL)[1]
        assert host.server.reply(call, b"1")
        assert not host.server.reply(call, b"2")
        assert not host.server.finish(call, 5, "late")
        assert not host.server.read(call + 1000)
        assert future.result() == b"1"
        assert host.quiet()


def test_orders_that_cannot_be_are_errors_and_end_nothing() -> None:
    with Host() as host:
        front_end, channel = host.server, host.channel()
        future = start(channel, b"")
        unary = host.expect(CALL)[1]
        for wrong in (
            lambda: front_end.read(unary),
            lambda: front_end.send(unary, b""),
            lambda: front_end.finish(unary, 0),
            lambda: front_end.finish(unary, 17),
            lambda: front_end.finish(unary, 5, "", [("grpc-status", "0")]),
            lambda: front_end.finish(unary, 5, "", [("x", "line\nfeed")]),
        ):
            with pytest.raises(ValueError, match=r"UNARY|status code|metadata"):
                wrong()
        front_end.reply(unary, b"")
        assert future.result() == b""
        stream = channel.stream_stream(TALK)(iter(()))
        call = host.expect(CALL)[1]
        with pytest.raises(ValueError, match="STREAM"):
            front_end.reply(call, b"")
        front_end.finish(call, 0)
        assert list(stream) == []


def test_many_calls_at_a_time_on_many_connections() -> None:
    with Host() as host:
        channels = [host.channel() for _ in range(4)]
        futures = [start(channels[number % 4], b"%d" % number) for number in range(800)]
        host.echo_until(futures)
        assert [future.result() for future in futures] == [b"%d" % number for number in range(800)]
        assert host.is_counted("calls_open", 0)
        assert host.server.statistics()["calls_total"] == 800
        assert host.server.statistics()["connections_total"] == 4


def test_many_answers_in_one_turn_arrive() -> None:
    with Host() as host:
        channel = host.channel()
        futures = [start(channel, b"%d" % number) for number in range(200)]
        calls = [host.expect(CALL) for _ in futures]
        for _, call, _, message, *_ in reversed(calls):
            assert host.server.reply(call, message)
        assert sorted(future.result() for future in futures) == sorted(
            b"%d" % number for number in range(200)
        )
