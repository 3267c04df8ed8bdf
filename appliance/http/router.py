"""Which handler a method and a path belong to. Pure.

A pattern is a path whose ``*`` segments stand for one decoded segment each; a literal segment wins over
``*``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from appliance.http.status import HttpRefusal

RouteHandler = Callable[..., Awaitable[web.StreamResponse]]
ANY: Final = "*"


class Router:
    """A fixed table of routes; the first pattern that fits wins, so literal ones are listed first."""

    def __init__(self, routes: Iterable[tuple[str, str, RouteHandler]]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, RouteHandler]]]] = {}
        for method, path, handler in routes:
            self._add(method, _segments(path), handler)

    def _add(self, method: str, pattern: tuple[str, ...], handler: RouteHandler) -> None:
        entries = self._by_length.setdefault(len(pattern), [])
        for known, methods in entries:
            if known == pattern:
                methods[method] = handler
                return
        entries.append((pattern, {method: handler}))

    def match(self, method: str, raw_path: str) -> tuple[RouteHandler, tuple[str, ...]]:
        """The handler and the segments for its ``*``; raises HttpRefusal 404 or 405."""
        segments = _segments(raw_path)
        for pattern, methods in self._by_length.get(len(segments), ()):
            if all(want in (ANY, have) for want, have in zip(pattern, segments, strict=True)):
                handler = methods.get("GET" if method == "HEAD" else method)
                if handler is None:
                    raise _wrong_method(method, raw_path, methods)
                names = tuple(
                    unquote(have) for want, have in zip(pattern, segments, strict=True) if want == ANY
                )
                return handler, names
        raise HttpRefusal(HTTPStatus.NOT_FOUND, f"there is nothing at '{raw_path}' here")


def _segments(path: str) -> tuple[str, ...]:
    return tuple(path.strip("/").split("/"))


def _wrong_method(method: str, raw_path: str, methods: Iterable[str]) -> HttpRefusal:
    allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
    return HttpRefusal(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"'{raw_path}' does not take {method}; it takes {allowed}",
        {"Allow": allowed},
    )
