"""Calls that end without Python, and front ends that drain and close."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack

import grpc
import pytest
from edge_appliance_native import CALL, GONE, NativeServer

from native.tests.host import ECHO, LIMITS, PATIENCE_S, TALK, Host, listening, start
from native.tests.raw_client import ACK, CANCEL, GOAWAY, PING, RST_STREAM, RawClient, framed, request

_CLIENT = """
import sys, grpc
channel = grpc.insecure_channel(sys.argv[1])
call = channel.unary_unary(sys.argv[2]).future(b"x")
call.result()
"""


def test_a_passed_deadline_is_a_call_gone() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:  # one that leaves the clock to the front end
        client.call(1, framed(b""), request(grpc_timeout="100m"))
        call = host.expect(CALL)[1]
        assert host.expect(GONE)[1] == call
        assert client.answer(1)[0]["grpc-status"] == "4"
        assert not host.server.reply(call, b"late")


def test_a_cancelled_call_is_gone() -> None:
    with Host() as host:
        future = start(host.channel(), b"")
        call = host.expect(CALL)[1]
        future.cancel()
        assert host.expect(GONE)[1] == call
        assert not host.server.reply(call, b"")
        assert host.is_counted("calls_open", 0)


def test_the_calls_of_a_killed_client_are_gone() -> None:
    with Host() as host:
        client = subprocess.Popen([sys.executable, "-c", _CLIENT, f"127.0.0.1:{host.port}", ECHO])
        try:
            call = host.expect(CALL)[1]
            client.send_signal(signal.SIGKILL)
        finally:
            client.kill()
            client.wait(PATIENCE_S)
        assert host.expect(GONE)[1] == call
        assert host.is_counted("connections_open", 0)
        assert host.server.statistics()["resets"] == 0, "it reset nothing"


def test_a_call_cancelled_before_its_body_arrived_is_never_told() -> None:
    with Host() as host, RawClient(host.addresses[0]) as client:
        client.socket.sendall(client.head(1))
        assert host.is_counted("calls_open", 1)
        client.send(RST_STREAM, 0, 1, CANCEL.to_bytes(4))
        assert host.is_counted("calls_open", 0)
        assert host.quiet()
        client.call(3, framed(b"next"))
        assert host.expect(CALL)[3] == b"next"


def test_every_call_ends_once_when_clients_cancel_at_any_time() -> None:
    with Host() as host:
        channel = host.channel()
        futures = [start(channel, b"%d" % number) for number in range(300)]
        for future in futures[::2]:
            future.cancel()
        told: set[int] = set()
        ended: list[int] = []
        kept = 0
        settled = False
        while not (settled and host.quiet()):
            event = host.event()
            if event[0] == GONE:
                ended.append(event[1])
            else:
                told.add(event[1])
                if host.server.reply(event[1], event[3]):
                    ended.append(event[1])
                    kept += int(event[3]) % 2
            # Once those that were not cancelled are answered, the rest ends by itself.
            settled = settled or (kept == 150 and host.is_counted("calls_open", 0))
        assert sorted(ended) == sorted(told)
        assert all(future.result() == b"%d" % number for number, future in enumerate(futures) if number % 2)


def test_a_draining_front_end_finishes_what_is_under_way_and_takes_nothing_new() -> None:
    with Host() as host:
        channel = host.channel()
        future = start(channel, b"")
        stream = host.channel().stream_stream(TALK)(iter(()))
        calls = [host.expect(CALL), host.expect(CALL)]
        host.server.drain()
        refused = start(host.channel(), b"")
        assert refused.code() == grpc.StatusCode.UNAVAILABLE
        for event in calls:
            assert host.server.reply(event[1], b"done") if event[2] == 0 else host.server.finish(event[1], 0)
        assert future.result() == b"done"
        assert list(stream) == []
        assert host.is_counted("connections_open", 0)


def ping(client: RawClient) -> None:
    """Until it is answered."""
    client.send(PING, 0, 0, b"is there")
    answered = client.receive_kind(PING)
    assert (answered.flags, answered.payload) == (ACK, b"is there")


def test_draining_says_goaway_to_idle_connections() -> None:
    with Host(write_stall_ms=600_000) as host, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(host.addresses[0])) for _ in range(8)]
        for client in clients:
            client.call(1, framed(b""))
            host.echo(host.expect(CALL))
            assert client.answer(1)[0]["grpc-status"] == "0"
        for client in clients:
            ping(client)  # after the last one the front end's only thread has left the others for good
        host.server.drain()
        for client in clients:
            assert client.receive_kind(GOAWAY).stream == 0
            client.send(PING, ACK, 0, client.receive_kind(PING).payload)  # what was sent before has been read
            assert client.end() == 0
        assert host.is_counted("connections_open", 0)


def test_a_closed_front_end_ends_its_calls_and_frees_its_port() -> None:
    with Host() as host:
        future = start(host.channel(), b"")
        call = host.expect(CALL)[1]
        host.server.close()
        host.server.close()
        assert future.code() == grpc.StatusCode.UNAVAILABLE
        assert host.expect(GONE)[1] == call
        assert not host.server.reply(call, b"")
        statistics = host.server.statistics()
        assert (statistics["connections_open"], statistics["calls_open"]) == (0, 0)
        listening(address=("127.0.0.1", host.port)).close()
        with pytest.raises(RuntimeError, match="closed"):
            host.server.start()


def test_nothing_is_served_before_start_and_a_front_end_starts_once() -> None:
    listener = listening()
    port = listener.getsockname()[1]
    front_end = NativeServer(listeners=[listener.detach()], methods=[(ECHO, 0)], limits=LIMITS)
    with RawClient(("127.0.0.1", port)) as client:
        client.call(1, framed(b"early"), request())
        assert front_end.poll() == []
        assert front_end.statistics()["connections_total"] == 0
        front_end.start()
        with pytest.raises(RuntimeError, match="already"):
            front_end.start()
        front_end.close()


def test_a_front_end_that_is_forgotten_closes() -> None:
    host = Host()
    host.server.start()
    with RawClient(host.addresses[0]) as client:
        client.call(1, framed(b""))
        host.expect(CALL)
        del host
        assert client.end() is None
