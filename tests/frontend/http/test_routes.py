"""Paths."""

from __future__ import annotations

import pytest
from aiohttp import web

from appliance.frontend.http.router import Router
from appliance.frontend.http.status import HttpRefusal


async def _one(request: web.BaseRequest, *names: str) -> web.StreamResponse:
    raise NotImplementedError


async def _other(request: web.BaseRequest, *names: str) -> web.StreamResponse:
    raise NotImplementedError


@pytest.fixture
def router() -> Router:
    return Router(
        [
            ("GET", "/", _other),
            ("GET", "/v2/models/stats", _one),
            ("GET", "/v2/models/{model}", _other),
            ("POST", "/x", _one),
            ("POST", "/v2/models/{model}/infer", _one),
        ],
        None,
    )


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "/", (_other, ())),
        ("GET", "/v2/models/stats", (_one, ())),
        ("GET", "/v2/models/m", (_other, ("m",))),
        ("HEAD", "/v2/models/m/", (_other, ("m",))),
        ("GET", "/v2/models/%E2%82%AC%2F%20x", (_other, ("\u20ac/ x",))),
        ("POST", "/x", (_one, ())),
    ],
)
def test_a_path_finds_its_handler(router: Router, method: str, path: str, found: object) -> None:
    assert router.match(method, path) == found


@pytest.mark.parametrize("path", ["/v2", "/v2/models", "/v2/models/a/b", "/nothing"])
def test_an_unknown_path_is_404(router: Router, path: str) -> None:
    with pytest.raises(HttpRefusal, match="there is nothing at") as refused:
        router.match("GET", path)
    assert refused.value.status == 404


@pytest.mark.parametrize("end", ["generate", "generate_stream", "versions/1/generate"])
def test_who_asks_a_language_model_is_told_that_there_is_none(router: Router, end: str) -> None:
    hint = " here; no language models are served: '.../infer' takes tensors, by POST"
    with pytest.raises(HttpRefusal, match="there is nothing at '/v2/models/m/") as refused:
        router.match("POST", f"/v2/models/m/{end}")
    assert refused.value.status == 404
    assert (hint in str(refused.value)) is ("versions" not in end), "there is no such path here"
    assert str(refused.value).count("/m/") == 1


def test_a_wrong_method_is_405_with_the_right_ones(router: Router) -> None:
    with pytest.raises(HttpRefusal, match="does not take DELETE") as refused:
        router.match("DELETE", "/v2/models/m")
    assert (refused.value.status, refused.value.headers) == (405, {"Allow": "GET, HEAD"})
