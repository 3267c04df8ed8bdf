"""Who a client is, and who may come: the rules of the native door, word for word."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from appliance.frontend.listening.identity import Identity, admits, identity_of
from tests.frontend.grpc.certificate_files import make_authority, make_named

NAMED = {
    "uri": ("/CN=common", "DNS:host.site.example,URI:spiffe://site/camera,URI:spiffe://site/second"),
    "dns": ("/CN=common", "IP:10.0.0.1,DNS:Host.site.example,DNS:second.site.example"),
    "common": ("/O=site/CN=gateway 7", ""),
    "letters": ("/CN=Kamera S\u00fcd", ""),
    "nobody": ("/O=site", ""),
    "address": ("/CN=common", "IP:10.0.0.1"),
    "long": ("/O=site", "URI:" + "x" * 256),
    "newline": ("/O=site", "URI:a\tb"),
    "no host": ("/CN=common", "DNS:no host,DNS:a_b.site.example"),
}
IDENTITIES = {
    "uri": Identity("spiffe://site/camera", is_uri=True),
    "dns": Identity("Host.site.example", is_uri=False),
    "common": Identity("gateway 7", is_uri=False),
    "letters": Identity("Kamera S\u00fcd", is_uri=False),
    "no host": Identity("a_b.site.example", is_uri=False),
}


def shown(certificate: Path) -> dict[str, Any]:
    """What ``ssl`` tells of it."""
    decode: Any = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]
    found: dict[str, Any] = decode(str(certificate))
    return found


@pytest.mark.parametrize("kind", NAMED)
def test_a_client_is_who_its_certificate_says(tmp_path: Path, kind: str) -> None:
    pair = make_named(tmp_path, "client", make_authority(tmp_path, "authority"), *NAMED[kind])
    assert identity_of(shown(pair.certificate)) == IDENTITIES.get(kind)


@pytest.mark.parametrize(
    ("name", "text", "is_uri", "admitted"),
    [
        ("camera.site.example", "Camera.site.example", False, True),
        ("camera.site.example", "camera.site.example.org", False, False),
        ("gateway 7", "gateway 7", False, True),
        ("", "camera", False, False),
        ("*.site.example", "A-1.SITE.example", False, True),
        ("*.site.example", "a_b.site.example", False, True),
        ("*.site.example", "site.example", False, False),
        ("*.site.example", ".site.example", False, False),
        ("*.site.example", "a.b.site.example", False, False),
        ("*.site.example", "*.site.example", False, False),
        ("*.site.example", "a.site.example", True, False),
        ("spiffe://site/camera", "spiffe://site/camera", True, True),
        ("spiffe://site/camera", "spiffe://site/Camera", True, False),
        ("spiffe://site/camera", "spiffe://site/camera", False, False),
        ("urn:camera:7", "urn:camera:7", True, True),
        ("urn:camera:7", "URN:camera:7", False, False),
    ],
)
def test_who_may_come(name: str, text: str, is_uri: bool, admitted: bool) -> None:
    assert admits(["nobody", name], Identity(text, is_uri)) is admitted
