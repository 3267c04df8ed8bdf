"""What pages of web sites may have their visitors' browsers send here: nothing that is served."""

from __future__ import annotations

import socket

import pytest

from tests.appliance_process import ApplianceProcess
from tests.conformance.http.exchange import Reply, call

INFER = "/v2/models/mlp/infer"
BODY = {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}]}
TIMES = 8
"""So that the native front end would serve it by itself."""


def _infer(server: ApplianceProcess, headers: dict[str, str]) -> list[Reply]:
    return [call(server, "POST", INFER, BODY, headers) for _ in range(TIMES)]


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8000",
        "LOCALHOST",
        "localhost.",
        "127.0.0.1:8000",
        "10.1.2.3",
        "[::1]:8000",
        "appliance",
        "box.local:8000",
        "box.lan:8000",
        "serving.models.svc.cluster.local",
        socket.gethostname(),
    ],
)
def test_hosts_that_no_web_site_can_have_are_served(server: ApplianceProcess, host: str) -> None:
    assert {reply.status for reply in _infer(server, {"Host": host})} == {200}


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "rebound.example:8000",
        "127.0.0.1.rebound.example",
        "local.rebound.example:80",
        "a b",
    ],
)
def test_a_host_of_a_web_site_is_refused_for_whatever_it_asks(server: ApplianceProcess, host: str) -> None:
    _infer(server, {})
    for reply in _infer(server, {"Host": host}):
        assert (reply.status, "http.hosts" in reply.error) == (403, True)
    for path in ("/", "/status.json", "/metrics", "/v2", "/v2/models/mlp", "/nowhere"):
        refused = call(server, "GET", path, headers={"Host": host})
        assert (refused.status, "http.hosts" in refused.error) == (403, True), path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://site.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:9"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"}, 403),
        ({"Content-Type": "text/plain;charset=UTF-8"}, 415),
        ({"Content-Type": "Multipart/form-data; boundary=x"}, 415),
        ({"Origin": "http://localhost"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 200),  # what curl sends, and no form can
    ],
    ids=str,
)
def test_what_a_page_of_another_site_sends_is_refused(
    server: ApplianceProcess, headers: dict[str, str], status: int
) -> None:
    _infer(server, {})
    replies = _infer(server, {"Host": "localhost", **headers})
    assert {reply.status for reply in replies} == {status}
    assert all("access-control-allow-origin" not in reply.headers for reply in replies)
    index = call(server, "POST", "/v2/repository/index", {}, {"Host": "localhost", **headers})
    assert index.status == status


def test_no_page_is_told_what_it_may_send(server: ApplianceProcess) -> None:
    asked = {"Origin": "http://site.example", "Access-Control-Request-Method": "POST"}
    reply = call(server, "OPTIONS", INFER, headers=asked)
    assert reply.status == 405
    assert not [name for name in reply.headers if name.startswith("access-control")]
