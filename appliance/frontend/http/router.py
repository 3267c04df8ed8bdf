"""Which handler answers a request: a fixed table of routes, behind the question whether it may be asked at all.

A route is a path whose segments in braces stand for one decoded segment each.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from appliance.domain.errors import ApplianceError
from appliance.frontend.http.connection import ForeignRequest, connection_of
from appliance.frontend.http.hosts import check_host, check_sender
from appliance.frontend.http.status import HttpRefusal, error_response
from appliance.frontend.turns import CLIENT

RouteHandler = Callable[..., Awaitable[web.StreamResponse]]
Route = tuple[str, str, RouteHandler]
Routes = Sequence[Route]

GENERATE: Final = re.compile(r"/generate(_stream)?\Z")
"""How paths end by which language models are asked elsewhere."""


class Router:
    """The first route that fits wins, so literal ones are listed first; ``hosts`` are the names of the server (see
    ``host_names``)."""

    def __init__(self, routes: Routes, hosts: Sequence[str] | None) -> None:
        self._hosts = hosts
        self._methods: dict[str, dict[str, RouteHandler]] = {}
        for method, path, handler in routes:
            pattern = re.sub(r"\\{\w+\\}", "([^/]*)", re.escape(path.strip("/")))
            self._methods.setdefault(pattern, {})[method] = handler

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """What the handler of ``request`` says, or why none is asked."""
        try:
            if isinstance(request, ForeignRequest):
                raise request.refusal()
            connection = connection_of(request)
            CLIENT.set(connection.sender)
            if connection.peername:  # no browser comes over a Unix socket
                check_host(request, self._hosts)
            if request.method == "POST":
                check_sender(request)
            handler, names = self.match(request.method, request.rel_url.raw_path)
            return await handler(request, *names)
        except ApplianceError as error:
            return error_response(error)

    def match(self, method: str, raw_path: str) -> tuple[RouteHandler, tuple[str, ...]]:
        """The handler and the segments for its braces; raises HttpRefusal 404 or 405."""
        path = raw_path.strip("/")
        for pattern, methods in self._methods.items():
            if found := re.fullmatch(pattern, path):
                handler = methods.get("GET" if method == "HEAD" else method)
                if handler is None:
                    raise _wrong_method(method, raw_path, methods)
                return handler, tuple(map(unquote, found.groups()))
        raise HttpRefusal(HTTPStatus.NOT_FOUND, f"there is nothing at '{raw_path}' here{self._instead(path)}")

    def _instead(self, path: str) -> str:
        """What is told of the paths of language models, where models of other kinds are asked."""
        asked = GENERATE.sub("/infer", path)
        there = asked != path and any(re.fullmatch(each, asked) for each in self._methods)
        return "; no language models are served: '.../infer' takes tensors, by POST" if there else ""


def _wrong_method(method: str, raw_path: str, methods: Iterable[str]) -> HttpRefusal:
    allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
    return HttpRefusal(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"'{raw_path}' does not take {method}; it takes {allowed}",
        {"Allow": allowed},
    )
