"""By which names clients may ask: what the configuration makes of it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from appliance.config.http import HttpConfig, host_problems
from appliance.frontend.http.hosts import host_names, is_own
from models.generate import write_model
from tests.conftest import Serve
from tests.frontend.http.raw_client import RawClient, binary_request


def _takes(host: str, **settings: Any) -> bool:
    names = host_names(HttpConfig(**settings))
    return names is None or is_own(host, names)


@pytest.mark.parametrize(
    ("hosts", "host", "taken"),
    [
        ((), "box.example", False),
        (("box.example",), "Box.Example:8000", True),
        (("box.example",), "a.box.example", False),
        (("*.site.example",), "a.site.example", True),
        (("*.site.example",), "site.example", False),
        (("*.site.example",), "evilsite.example", False),
        (("*",), "whatever.example", True),
    ],
)
def test_configured_names_are_taken(hosts: tuple[str, ...], host: str, taken: bool) -> None:
    assert _takes(host, hosts=hosts) is taken


def test_the_hosts_of_addresses_are_taken_and_so_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Box1.Site.example")
    addresses = ("box.example:8000", "unix:/run/a.b", "systemd:web")
    assert _takes("box.example", addresses=addresses)
    assert _takes("box1.site.example:80", addresses=addresses)
    assert not _takes("site.example", addresses=addresses)


def test_over_tls_the_certificate_says_it() -> None:
    assert _takes("any.example", tls_certificate="c", tls_key="k")


@pytest.mark.parametrize(
    "name", ["", "box.example:80", "a..b", "*.", "x.*", "*x", "http://x", "a b", "ä.example"]
)
def test_what_is_no_name_is_told(name: str) -> None:
    assert list(host_problems((name,)))
    assert not list(host_problems(("*", "a.b", "*.a_b.c-d", "x")))


def test_a_configured_name_is_served_and_over_a_unix_socket_any(serve: Serve, tmp_path: Path) -> None:
    write_model("mlp", tmp_path / "models")
    path = tmp_path / "http"
    addresses = ["127.0.0.1:0", f"unix:{path}"]
    daemon = serve(tmp_path / "models", {"http": {"hosts": ["box.example"], "addresses": addresses}})
    request = binary_request("mlp", {"x": (1, 64)})
    with RawClient(daemon) as client:
        for host, status in ((b"box.example", 200), (b"other.example", 403)):
            asked = request.replace(b"Host: x\r\n", b"Host: %b\r\n" % host, 1)
            assert {client.ask(asked).status for _ in range(8)} == {status}
    with socket.socket(socket.AF_UNIX) as local:
        local.connect(str(path))
        local.sendall(b"GET /v2 HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n")
        assert b"".join(iter(lambda: local.recv(65536), b"")).startswith(b"HTTP/1.1 200 ")
