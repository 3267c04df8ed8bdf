"""Listening sockets: where asked, on the port that was free, from the service manager, and nothing left behind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.domain.errors import AddressUnavailable
from appliance.frontend.listening.sockets import Inherited, Listeners, inherited


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    opened = Listeners()
    yield opened
    opened.close()


def connect(address: str) -> socket.socket:
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.removeprefix("unix:"))
        return connection
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host.strip("[]"), int(port)), timeout=10)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize("address", ["127.0.0.1:0", pytest.param("[::1]:0", marks=needs_ipv6)])
def test_a_free_port_is_taken_and_told(listeners: Listeners, address: str) -> None:
    (bound,) = listeners.open([address], ())
    assert not bound.endswith(":0")
    connect(bound).close()


def test_all_addresses_of_a_name_share_a_port(listeners: Listeners) -> None:
    bound = listeners.open(["localhost:0"], ())
    assert len({address.rsplit(":", 1)[1] for address in bound}) == 1
    for address in bound:
        connect(address).close()


@needs_ipv6
def test_the_wildcard_of_version_6_takes_version_4_too(listeners: Listeners) -> None:
    (bound,) = listeners.open(["[::]:0"], ())
    connect(f"127.0.0.1:{bound.rsplit(':', 1)[1]}").close()


def test_a_port_in_use_is_named_and_nothing_stays_open(listeners: Listeners, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            AddressUnavailable, match=f"grpc cannot listen on {address}: Address already in use"
        ):
            listeners.open([f"unix:{path}", address], ())
    assert not path.exists()
    assert listeners.hand_over(list) == []


def test_a_port_is_shared_only_when_asked(listeners: Listeners) -> None:
    first, second = Listeners(), Listeners()
    try:
        (bound,) = first.open(["127.0.0.1:0"], (), reuse_port=True)
        assert second.open([bound], (), reuse_port=True) == (bound,)
        with pytest.raises(AddressUnavailable):
            listeners.open([bound], ())
    finally:
        first.close()
        second.close()


def test_an_unknown_host_is_named(listeners: Listeners) -> None:
    with pytest.raises(AddressUnavailable, match=r"cannot listen on host\.invalid:1: "):
        listeners.open(["host.invalid:1"], ())


def test_a_dead_socket_is_replaced_and_ours_removed_at_the_end(listeners: Listeners, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert listeners.open([f"unix:{path}"], ()) == (f"unix:{path}",)
    connect(f"unix:{path}").close()
    (descriptor,) = listeners.hand_over(list)
    os.close(descriptor)
    listeners.close()
    assert not path.exists()


def test_sockets_that_nobody_takes_stay_ours(listeners: Listeners) -> None:
    (bound,) = listeners.open(["127.0.0.1:0"], ())

    def refuse(descriptors: list[int]) -> None:
        raise ValueError("made up")

    with pytest.raises(ValueError, match="made up"):
        listeners.hand_over(refuse)
    connect(bound).close()
    listeners.close()
    with pytest.raises(ConnectionRefusedError):
        connect(bound)


def test_a_successors_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first, second = Listeners(), Listeners()
    first.open([f"unix:{path}"], ())
    for descriptor in first.hand_over(list):
        os.close(descriptor)
    second.open([f"unix:{path}"], ())
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


def test_a_living_socket_is_left_alone(listeners: Listeners, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(AddressUnavailable, match="Address already in use"):
            listeners.open([f"unix:{path}"], ())
        connect(f"unix:{path}").close()


@pytest.mark.parametrize(
    ("environment", "sockets"),
    [
        ({}, ()),
        ({"LISTEN_PID": "8", "LISTEN_FDS": "1"}, ()),
        ({"LISTEN_PID": "7"}, ()),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "x"}, ()),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, (("unknown", 3), ("unknown", 4))),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b"}, (("a", 3), ("b", 4))),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a"}, (("a", 3), ("unknown", 4))),
    ],
)
def test_what_the_service_manager_says(
    environment: dict[str, str], sockets: tuple[tuple[str, int], ...]
) -> None:
    assert inherited(environment, 7) == sockets


def test_inherited_sockets_by_name(listeners: Listeners, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        port = tcp.getsockname()[1]
        given = (Inherited("grpc", tcp.detach()), Inherited("local", unix.detach()))
    assert listeners.open(["systemd:local"], given) == (f"unix:{path}",)
    rest = Listeners()
    assert rest.open(["systemd:grpc"], given) == (f"127.0.0.1:{port}",)
    connect(f"127.0.0.1:{port}").close()
    rest.close()
    listeners.close()
    assert os.path.exists(path), "the service manager's file is the service manager's"


def test_sockets_that_were_not_given_are_named(listeners: Listeners) -> None:
    with pytest.raises(AddressUnavailable, match="systemd: it gave no sockets to this process"):
        listeners.open(["systemd"], ())
    with pytest.raises(AddressUnavailable, match="systemd:b: the sockets it gave are named a;"):
        listeners.open(["systemd:b"], (Inherited("a", 0),))


def test_a_descriptor_that_does_not_listen_is_refused(listeners: Listeners) -> None:
    reading, writing = os.pipe()
    with socket.socket() as deaf:
        for descriptor, words in (
            (deaf.detach(), "does not listen"),
            (reading, "is no socket"),
            (10_000, "Bad"),
        ):
            with pytest.raises(AddressUnavailable, match=f"systemd:a .*{words}"):
                Listeners().open(["systemd"], (Inherited("a", descriptor),))
    os.close(reading)
    os.close(writing)
