"""TLS, clients with certificates, and certificates that change while the front end serves."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from edge_appliance_native import CALL, HANDSHAKE, TURNED_AWAY, Tls

from native.tests.host import Host, start
from native.tests.raw_client import RawClient
from tests.frontend.grpc.certificate_files import Pair, make_authority, make_named, make_signed


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
        _, peer, reason, text = host.expect(HANDSHAKE)
        assert peer == "ipv4:{}:{}".format(*client.socket.getsockname())
        assert (reason, text) == ("plain", "the client does not speak TLS")
        assert host.is_counted("handshakes_plain", 1)
        assert host.quiet()


def test_clients_must_show_a_certificate_of_the_authority(tmp_path: Path) -> None:
    authority, stranger = make_authority(tmp_path, "authority"), make_authority(tmp_path, "stranger")
    server = make_signed(tmp_path, "server", authority)
    with Host(tls=Tls(*pem(server), authority.certificate.read_bytes())) as host:
        assert code(host, authority, make_signed(tmp_path, "client", authority)) == grpc.StatusCode.OK
        assert code(host, authority) == grpc.StatusCode.UNAVAILABLE
        assert code(host, authority, make_signed(tmp_path, "other", stranger)) == grpc.StatusCode.UNAVAILABLE


NAMED = {
    "uri": ("/CN=common", "DNS:host.site.example,URI:spiffe://site/camera,URI:spiffe://site/second"),
    "dns": ("/CN=common", "IP:10.0.0.1,DNS:Host.site.example,DNS:second.site.example"),
    "common": ("/O=site/CN=gateway 7", ""),
    "letters": ("/CN=Kamera Süd", ""),
    "nobody": ("/O=site", ""),
    "long": ("/O=site", "URI:" + "x" * 256),
    "newline": ("/O=site", "URI:a\tb"),
}
"""Subjects and alternative names of certificates, by what is special about them."""
IDENTITIES = {
    "uri": "spiffe://site/camera",
    "dns": "Host.site.example",
    "common": "gateway 7",
    "letters": "Kamera Süd",
    "nobody": "",
    "long": "",
    "newline": "",
}


def call_over_tls(host: Host, root: Pair, client: Pair) -> Any:
    """A call under way over a new connection that shows ``client``."""
    certificate, key = pem(client)
    credentials = grpc.ssl_channel_credentials(root.certificate.read_bytes(), key, certificate)
    return start(host.channel(credentials=credentials), b"hello")


@pytest.mark.parametrize("kind", NAMED)
def test_a_client_is_who_its_certificate_says(tmp_path: Path, kind: str) -> None:
    authority = make_authority(tmp_path, "authority")
    server, client = (
        make_signed(tmp_path, "server", authority),
        make_named(tmp_path, kind, authority, *NAMED[kind]),
    )
    with Host(tls=Tls(*pem(server), authority.certificate.read_bytes())) as host:
        call = call_over_tls(host, authority, client)
        event = host.expect(CALL)
        assert event[8] == IDENTITIES[kind]
        assert 0 < time.monotonic_ns() - event[9] < 60e9
        host.echo(event)
        assert call.result() == b"hello"


def test_clients_without_certificates_and_in_the_clear_are_nobody(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    with Host(tls=Tls(*pem(make_signed(tmp_path, "server", authority)))) as host:
        credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        call = start(host.channel(credentials=credentials), b"hello")
        event = host.expect(CALL)
        assert event[8] == ""
        host.echo(event)
        assert call.result() == b"hello"
    with Host() as host:
        call = start(host.channel(), b"hello")
        event = host.expect(CALL)
        assert event[8] == ""
        host.echo(event)
        assert call.result() == b"hello"


@pytest.mark.parametrize(
    ("kind", "names", "admitted"),
    [
        ("uri", ["spiffe://site/camera"], True),
        ("uri", ["spiffe://site/second", "host.site.example", "common"], False),
        ("dns", ["*.site.example"], True),
        ("dns", ["host.SITE.example"], True),
        ("dns", ["*.example", "second.site.example", "common"], False),
        ("common", ["other", "gateway 7"], True),
        ("common", ["gateway"], False),
        ("nobody", ["", "*.site.example"], False),
    ],
)
def test_only_who_is_named_may_come(tmp_path: Path, kind: str, names: list[str], admitted: bool) -> None:
    authority = make_authority(tmp_path, "authority")
    server = make_signed(tmp_path, "server", authority)
    client = make_named(tmp_path, kind, authority, *NAMED[kind])
    tls = Tls(*pem(server), authority.certificate.read_bytes(), names)
    with Host(tls=tls) as host:
        tls.reload(*pem(server), authority.certificate.read_bytes())  # which changes no names
        call = call_over_tls(host, authority, client)
        if admitted:
            host.echo_until([call])
            assert call.result() == b"hello"
            assert host.server.statistics()["clients_refused"] == 0
        else:
            event = host.expect(TURNED_AWAY)
            assert event[1].startswith("ipv4:127.0.0.1:")
            assert event[2:] == (IDENTITIES[kind], "grpc")
            call.cancel()
            assert host.server.statistics()["clients_refused"] >= 1


def test_who_is_turned_away_is_told_why_in_the_handshake(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    server, client = (make_signed(tmp_path, name, authority) for name in ("server", "client"))
    with Host(tls=Tls(*pem(server), authority.certificate.read_bytes(), ["other"])) as host:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            assert "ACCESS_DENIED" in str(handshake(host, authority, client, version))
            host.expect(TURNED_AWAY)


def test_a_stranger_to_the_authority_is_not_asked_for_its_name(tmp_path: Path) -> None:
    authority, other = make_authority(tmp_path, "authority"), make_authority(tmp_path, "other")
    server = make_signed(tmp_path, "server", authority)
    stranger = make_named(tmp_path, "stranger", other, "/CN=camera")
    with Host(tls=Tls(*pem(server), authority.certificate.read_bytes(), ["camera"])) as host:
        assert handshake(host, authority, stranger, ssl.TLSVersion.TLSv1_3) is not None
        assert host.expect(HANDSHAKE)[2] == "failed"
        assert host.quiet()
        assert host.server.statistics()["clients_refused"] == 0


def test_handshakes_that_fail_are_counted_and_the_first_told(tmp_path: Path) -> None:
    authority, other = make_authority(tmp_path, "authority"), make_authority(tmp_path, "other")
    server, stranger = make_signed(tmp_path, "server", authority), make_signed(tmp_path, "stranger", other)
    with Host(tls=Tls(*pem(server), authority.certificate.read_bytes())) as host:
        assert handshake(host, authority, stranger, ssl.TLSVersion.TLSv1_3) is not None
        _, peer, reason, text = host.expect(HANDSHAKE)
        assert peer.startswith("ipv4:127.0.0.1:")
        assert reason == "failed"
        assert "UnknownIssuer" in text
        assert handshake(host, authority, None, ssl.TLSVersion.TLSv1_2) is not None
        socket.create_connection(("127.0.0.1", host.port)).close()
        assert host.is_counted("handshakes_failed", 3)
        assert host.quiet()


def test_a_handshake_that_takes_too_long_is_late_and_one_of_http_2_is_not(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    with Host(tls=Tls(*pem(make_signed(tmp_path, "server", authority))), handshake_ms=1500) as host:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", host.port), timeout=20) as silent,
            socket.create_connection(("127.0.0.1", host.port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
        ):
            assert silent.recv(1) == b""
            while secure.recv(1000):
                pass  # settings, then the end: it has not said a word of HTTP/2
        event = host.expect(HANDSHAKE)
        assert event[2:] == ("late", "it was not done in time (grpc.handshake_timeout_s)")
        assert host.is_counted("handshake_ms", 2)
        assert host.server.statistics()["handshakes_late"] == 1
        assert host.quiet()


def test_many_who_are_turned_away_are_counted_and_some_told(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    server, client = (make_signed(tmp_path, name, authority) for name in ("server", "client"))
    with Host(tls=Tls(*pem(server), authority.certificate.read_bytes(), ["other"])) as host:
        for _ in range(51):
            assert handshake(host, authority, client, ssl.TLSVersion.TLSv1_3) is not None
        assert host.is_counted("clients_refused", 51)
        assert len(host.server.poll()) == 50


def handshake(host: Host, root: Pair, client: Pair | None, version: ssl.TLSVersion) -> Exception | None:
    """What a handshake ends with, and the first read after it: with TLS 1.3 a client learns only then."""
    context = ssl.create_default_context(cafile=str(root.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", host.port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
        ):
            secure.recv(1)
    except OSError as error:
        return error
    return None


def test_names_without_an_authority_are_refused(tmp_path: Path) -> None:
    server = make_signed(tmp_path, "server", make_authority(tmp_path, "authority"))
    with pytest.raises(ValueError, match=r"^client_names: "):
        Tls(*pem(server), b"", ["camera"])


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
