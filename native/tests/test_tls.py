"""TLS, clients with certificates, and certificates that change while the door serves."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from edge_appliance_door import Tls

from native.tests.host import Host, start
from native.tests.raw_client import RawClient
from tests.door.certificate_files import Pair, make_authority, make_signed


def pem(pair: Pair) -> tuple[bytes, bytes]:
    return pair.certificate.read_bytes(), pair.key.read_bytes()


def code(host: Host, root: Pair, client: Pair | None = None) -> grpc.StatusCode:
    """How a call over a new connection ends."""
    certificate, key = pem(client) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(root.certificate.read_bytes(), key, certificate)
    future = start(host.channel(credentials=credentials), b"hello")
    host.echo_until([future])
    return future.code()


def test_a_client_that_trusts_the_authority_is_served(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    with Host(tls=Tls(*pem(make_signed(tmp_path, "server", authority)))) as host:
        assert code(host, authority) == grpc.StatusCode.OK
        assert code(host, make_authority(tmp_path, "stranger")) == grpc.StatusCode.UNAVAILABLE
        large = start(
            host.channel(credentials=grpc.ssl_channel_credentials(authority.certificate.read_bytes())),
            bytes(5 << 20),
        )
        host.echo_until([large])
        assert large.result() == bytes(5 << 20)


def test_a_client_in_the_clear_is_not_served(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    with (
        Host(tls=Tls(*pem(make_signed(tmp_path, "server", authority)))) as host,
        RawClient(host.addresses[0]) as client,
    ):
        while client.socket.recv(100):
            pass  # an alert, then the end
        assert host.quiet()


def test_clients_must_show_a_certificate_of_the_authority(tmp_path: Path) -> None:
    authority, stranger = make_authority(tmp_path, "authority"), make_authority(tmp_path, "stranger")
    server = make_signed(tmp_path, "server", authority)
    with Host(tls=Tls(*pem(server), authority.certificate.read_bytes())) as host:
        assert code(host, authority, make_signed(tmp_path, "client", authority)) == grpc.StatusCode.OK
        assert code(host, authority) == grpc.StatusCode.UNAVAILABLE
        assert code(host, authority, make_signed(tmp_path, "other", stranger)) == grpc.StatusCode.UNAVAILABLE


def test_new_certificates_serve_new_connections_and_old_ones_stay(tmp_path: Path) -> None:
    old, new = make_authority(tmp_path, "old"), make_authority(tmp_path, "new")
    tls = Tls(*pem(make_signed(tmp_path, "first", old)))
    with Host(tls=tls) as host:
        channel = host.channel(credentials=grpc.ssl_channel_credentials(old.certificate.read_bytes()))
        futures = [start(channel, b"before")]
        host.echo_until(futures)
        tls.reload(*pem(make_signed(tmp_path, "second", new)))
        assert code(host, new) == grpc.StatusCode.OK
        assert code(host, old) == grpc.StatusCode.UNAVAILABLE
        futures.append(start(channel, b"after"))
        host.echo_until(futures)
        assert [future.result() for future in futures] == [b"before", b"after"]


def test_what_cannot_be_used_is_named_and_changes_nothing(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    certificate, key = pem(make_signed(tmp_path, "server", authority))
    other = make_signed(tmp_path, "other", authority).key.read_bytes()
    tls = Tls(certificate, key)
    for arguments, named in (
        ((b"", key), "certificate"),
        ((key, key), "certificate"),
        ((certificate, b"no key"), "key"),
        ((certificate, other), "key: it does not belong"),
        ((certificate, key, b"nothing"), "client_ca"),
    ):
        with pytest.raises(ValueError, match=f"^{named}"):
            Tls(*arguments)
        with pytest.raises(ValueError, match=f"^{named}"):
            tls.reload(*arguments)
    with Host(tls=tls) as host:
        assert code(host, authority) == grpc.StatusCode.OK
