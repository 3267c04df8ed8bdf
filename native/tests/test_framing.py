"""What is on the wire, byte by byte, and what a hostile or broken client may put there."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import grpc
import pytest
from edge_appliance_native import CALL, GONE, MESSAGE

from native.tests.host import PATIENCE_S, TALK, Host, start
from native.tests.raw_client import (
    CANCEL,
    DATA,
    END_STREAM,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Headers,
    RawClient,
    framed,
    request,
)

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = "3", "8", "12", "13"


def refusal(body: bytes, headers: Headers | None = None, **limits: int) -> dict[str, str]:
    """The headers of the answer to a call that Python never hears of; the connection serves on."""
    with Host(**limits) as host, RawClient(host.addresses[0]) as client:
        client.call(1, body, headers)
        answer, data = client.answer(1)
        assert data == b""
        client.call(3, framed(b"next"))
        event = host.expect(CALL)
        assert event[3] == b"next"
        host.echo(event)
        assert client.answer(3)[0]["grpc-status"] == "0"
        assert host.is_counted("bytes_in_flight", 0)
        return answer


def test_a_good_answer_on_the_wire() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.call(1, framed(b"hello"))
        host.echo(host.expect(CALL))
        headers, data = client.answer(1)
        assert data == framed(b"hello")
        assert headers == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}


def test_a_request_may_come_byte_by_byte() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        sent = PREFACE + client.frame(SETTINGS, 0, 0) + client.head(1)
        for byte in framed(b"slow"):
            sent += client.frame(DATA, 0, 1, bytes([byte])) + client.frame(DATA, 0, 1)
        sent += client.frame(DATA, END_STREAM, 1)
        with RawClient(host.addresses[0], preface=b"") as slow:
            for byte in sent:
                slow.socket.sendall(bytes([byte]))
            assert host.expect(CALL)[3] == b"slow"


def test_messages_of_a_stream_may_share_frames_and_span_them() -> None:
    messages = [b"one", b"", b"three" * 5000]
    body = b"".join(map(framed, messages))
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(client.head(1, request(TALK)))
        for start_at in range(0, len(body), 11_000):
            client.send(DATA, 0, 1, body[start_at : start_at + 11_000])
        client.send(DATA, END_STREAM, 1)
        call = host.expect(CALL)[1]
        for expected in [*messages, None]:
            host.server.read(call)
            assert host.expect(MESSAGE)[2] == expected


@pytest.mark.parametrize(
    "headers",
    [
        request(method="GET"),
        request(content_type="text/plain"),
        request(content_type="application/grpc-web"),
        request(content_type=""),
    ],
)
def test_what_is_not_grpc_is_told_so(headers: Headers) -> None:
    assert refusal(b"", headers)[":status"] == "415"


@pytest.mark.parametrize("content_type", ["application/grpc+proto", "application/grpc;charset=utf-8"])
def test_the_content_type_may_name_a_format(content_type: str) -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.call(1, framed(b"hello"), request(content_type=content_type))
        host.echo(host.expect(CALL))
        assert client.answer(1)[0]["grpc-status"] == "0"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", INTERNAL, "no message"),
        (framed(b"a") + framed(b"b"), INTERNAL, "more than one message"),
        (framed(b"abc")[:-1], INTERNAL, "ended within a message"),
        (b"\0\0\0", INTERNAL, "ended within a message"),
        (framed(b"a", flag=2), INTERNAL, "flag"),
        (framed(gzip.compress(b"a", mtime=0), flag=1), INTERNAL, "grpc-encoding"),
    ],
)
def test_a_malformed_request_is_told_what_is_wrong(body: bytes, status: str, text: str) -> None:
    answer = refusal(body)
    assert answer["grpc-status"] == status
    assert text in answer["grpc-message"]


def test_a_malformed_message_ends_a_stream() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.call(1, framed(b"a", flag=3), request(TALK))
        call = host.expect(CALL)[1]
        host.server.read(call)
        assert host.expect(GONE)[1] == call
        assert client.answer(1)[0]["grpc-status"] == INTERNAL


@pytest.mark.parametrize("value", ["1", "1.5S", "-1S", "123456789S", "1s"])
def test_a_malformed_timeout_is_refused(value: str) -> None:
    answer = refusal(framed(b""), request(grpc_timeout=value))
    assert (answer["grpc-status"], "grpc-timeout" in answer["grpc-message"]) == (INVALID_ARGUMENT, True)


def test_an_encoding_that_is_not_spoken_names_those_that_are() -> None:
    answer = refusal(framed(b"", flag=1), request(grpc_encoding="snappy"))
    assert answer["grpc-status"] == UNIMPLEMENTED
    assert answer["grpc-accept-encoding"] == "identity,deflate,gzip"


def test_the_name_of_an_encoding_is_escaped_once() -> None:
    answer = refusal(framed(b"", flag=1), request(grpc_encoding="100%"))
    assert answer["grpc-message"] == "grpc-encoding '100%25' is not supported"


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_request_arrives_plain(compression: grpc.Compression) -> None:
    with Host() as host:
        sent = b"compress me " * 10_000
        future = start(host.channel(), sent, compression=compression)
        host.echo_until([future])
        assert future.result() == sent
        stream = host.channel().stream_stream(TALK)(iter([sent]), timeout=PATIENCE_S, compression=compression)
        call = host.expect(CALL)[1]
        host.server.read(call)
        assert memoryview(host.expect(MESSAGE)[2]) == sent
        host.server.finish(call, 0)
        assert stream.code() == grpc.StatusCode.OK
        assert host.is_counted("bytes_in_flight", 0)


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_bomb_is_refused_at_the_bound(coding: str, compress: Callable[[bytes], bytes]) -> None:
    bomb = compress(bytes(50 << 20))
    answer = refusal(framed(bomb, flag=1), request(grpc_encoding=coding), message_bytes=1 << 20)
    assert answer["grpc-status"] == RESOURCE_EXHAUSTED
    assert "1048576" in answer["grpc-message"]


def test_gzip_that_makes_nothing_does_not_keep_others_waiting() -> None:
    four_empty_blocks = sum(0b10 << 10 * place for place in range(4)).to_bytes(5, "little")
    nothing = gzip.compress(b"")[:10] + four_empty_blocks * 45_000 + b"\3\0" + bytes(8)
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.widen()
        sent = client.head(1, request(grpc_encoding="gzip"))
        body = framed(nothing, flag=1)
        for at in range(0, len(body), 16_384):
            sent += client.frame(DATA, 0, 1, body[at : at + 16_384])
        sent += client.frame(DATA, END_STREAM, 1)
        sent += client.head(3) + client.frame(DATA, END_STREAM, 3, framed(b"small"))
        client.socket.sendall(sent)
        assert host.expect(CALL)[3] == b"small"
        assert host.expect(CALL)[3] == b""


def test_a_call_that_is_reset_while_it_is_decompressed_is_never_told() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.call(1, framed(gzip.compress(bytes(50 << 20)), flag=1), request(grpc_encoding="gzip"))
        assert host.is_counted("bytes_in_flight", lambda count: count > 1 << 20)
        client.send(RST_STREAM, 0, 1, CANCEL.to_bytes(4))
        assert host.is_counted("calls_open", 0)
        assert host.is_counted("bytes_in_flight", 0)
        assert host.quiet()


@pytest.mark.parametrize(
    ("coding", "body"),
    [("gzip", b"plain"), ("deflate", b"plain"), ("deflate", zlib.compress(b"cut short")[:-1])],
)
def test_what_is_not_compressed_as_it_says_is_an_argument_that_is_invalid(coding: str, body: bytes) -> None:
    answer = refusal(framed(body, flag=1), request(grpc_encoding=coding))
    assert answer["grpc-status"] == INVALID_ARGUMENT
    assert f"not {coding}" in answer["grpc-message"]
