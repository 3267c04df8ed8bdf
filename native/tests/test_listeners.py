"""Where a front end listens, and what it refuses to be built with."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import grpc
import pytest
from edge_appliance_native import CALL, LIMITS, NativeServer

from native.tests import host as hosts
from native.tests.host import ECHO, Host, listening, start, unix_listener


def test_every_kind_of_socket_serves(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    six = listening(socket.AF_INET6, ("::1", 0))
    targets = {f"unix:{tmp_path}/grpc": "unix", f"[::1]:{six.getsockname()[1]}": "::"}
    with Host(listening(), six, unix_listener(tmp_path)) as host:
        targets[f"127.0.0.1:{host.port}"] = "127.0.0.1"
        for target, who in targets.items():
            future = start(host.channel(target), target.encode())
            event = host.expect(CALL)
            assert event[6] == who
            assert event[10] == (os.getuid() if who == "unix" else -1)
            host.echo(event)
            assert future.result() == target.encode()


def test_sockets_may_come_later(tmp_path: Path) -> None:
    with Host(unix_listener(tmp_path)) as host:
        early, late = start(host.channel(f"unix:{tmp_path}/grpc"), b"1"), listening()
        host.echo(host.expect(CALL))
        assert early.result() == b"1"
        port = late.getsockname()[1]
        target = f"127.0.0.1:{port}"
        future = start(host.channel(target), b"2")
        with socket.socket() as idle, pytest.raises(OSError, match="listen"):
            host.server.listen(listeners=[late.fileno(), idle.fileno()])
        host.server.listen(listeners=[late.detach()])
        host.echo(host.expect(CALL))
        assert future.result() == b"2"
    listening(socket.AF_INET, ("127.0.0.1", port)).close()  # nobody else had it
    with pytest.raises(RuntimeError, match="not serving"):
        build().listen(listeners=[])


def test_a_unix_socket_is_not_bounded_per_peer(tmp_path: Path) -> None:
    with Host(unix_listener(tmp_path), connections_per_peer=1) as host:
        futures = [start(host.channel(f"unix:{tmp_path}/grpc"), b"") for _ in range(3)]
        host.echo_until(futures)
        assert [future.code() for future in futures] == [grpc.StatusCode.OK] * 3


def build(**changes: object) -> NativeServer:
    arguments = {"listeners": [], "methods": [(ECHO, 0)], "limits": hosts.LIMITS} | changes
    return NativeServer(**arguments)  # type: ignore[arg-type]


def test_sockets_that_cannot_be_used_are_named() -> None:
    blocking = listening()
    blocking.setblocking(True)
    with socket.socket() as idle, blocking, listening() as good:
        closed = listening()
        number = closed.fileno()
        closed.close()
        for descriptor, problem in (
            (blocking.fileno(), "setblocking"),
            (idle.fileno(), "listen"),
            (number, "cannot be a listener"),
        ):
            with pytest.raises(OSError, match=f"descriptor {descriptor} .*{problem}"):
                build(listeners=[good.fileno(), descriptor])
        with pytest.raises(OSError, match="twice"):
            build(listeners=[good.fileno(), good.fileno()])
        assert good.getsockname(), "still the caller's"


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_must_be_there_and_possible(name: str) -> None:
    without = {key: value for key, value in hosts.LIMITS.items() if key != name}
    with pytest.raises(ValueError, match=f"'{name}' is missing"):
        build(limits=without)
    for wrong in (-1, 1 << 62, "1", None):
        with pytest.raises(ValueError, match=f"'{name}'"):
            build(limits=without | {name: wrong})


def test_an_unknown_limit_is_named() -> None:
    with pytest.raises(ValueError, match="'speed'"):
        build(limits=hosts.LIMITS | {"speed": 1})


@pytest.mark.parametrize("methods", [[("Echo", 0)], [(ECHO, 2)], [(ECHO, 0), (ECHO, 1)]])
def test_a_method_that_cannot_be_is_named(methods: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match="Echo"):
        build(methods=methods)


def test_a_front_end_that_never_starts_gives_its_sockets_back() -> None:
    listener = listening()
    port = listener.getsockname()[1]
    front_end = build(listeners=[listener.detach()])
    front_end.close()
    listening(address=("127.0.0.1", port)).close()
