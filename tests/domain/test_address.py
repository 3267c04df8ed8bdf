"""Listening addresses: what they mean, and clear words when they cannot be had."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from appliance.domain.address import Address, check_free, parse_address, unavailable
from appliance.domain.errors import AddressUnavailable


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8001", Address("127.0.0.1", 8001)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:8001", Address("::1", 8001)),
        ("unix:/run/a.sock", Address("", 0, "/run/a.sock")),
    ],
)
def test_addresses_read_and_write_alike(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert address.with_port(address.port) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://h:1",
        "host",
        "8001",
        ":8001",
        "::1:8001",
        "localhost:http",
        "localhost:65536",
        "unix:",
        "a:-1",
    ],
)
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(AddressUnavailable, match="is not host:port"):
        parse_address(text)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            AddressUnavailable, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; stop"
        ):
            check_free(Address("127.0.0.1", port), "grpc")
    check_free(Address("127.0.0.1", port), "grpc")


def test_an_address_of_another_machine_says_where_to_look() -> None:
    with pytest.raises(
        AddressUnavailable, match=r"Cannot assign requested address; give this machine.*or set http"
    ):
        check_free(Address("192.0.2.1", 8000), "http")


def test_a_socket_without_its_directory_says_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(
        AddressUnavailable, match="No such file or directory; make the directory of the socket"
    ):
        check_free(Address("", 0, str(tmp_path / "nowhere" / "s")), "grpc")


def test_the_operators_socket_is_named_by_its_own_key() -> None:
    with pytest.raises(
        AddressUnavailable, match=r"^control cannot .* or set control\.socket to another address"
    ):
        check_free(Address("", 0, "/nowhere/at/all"), "control")


def test_a_privileged_port_names_the_capability() -> None:
    text = str(
        unavailable(Address("0.0.0.0", 81), "http", PermissionError(errno.EACCES, "Permission denied"))
    )
    assert "Permission denied; give the service the capability CAP_NET_BIND_SERVICE" in text


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(AddressUnavailable, match=r"cannot listen on host\.invalid:1: "):
        check_free(Address("host.invalid", 1), "grpc")


def test_a_living_socket_is_left_alone_and_a_dead_one_may_go(tmp_path: Path) -> None:
    path = tmp_path / "s"
    address = Address("", 0, str(path))
    check_free(address, "grpc")
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(AddressUnavailable, match="Address already in use"):
            check_free(address, "grpc")
    check_free(address, "grpc")


def test_other_files_are_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(AddressUnavailable, match="is no socket"):
        check_free(Address("", 0, str(path)), "grpc")
    with pytest.raises(AddressUnavailable, match="No such file"):
        check_free(Address("", 0, str(tmp_path / "nowhere" / "s")), "grpc")
