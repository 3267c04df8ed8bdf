"""Which handler a method and a path belong to. Pure.

A pattern is a path whose ``*`` segments stand for one decoded segment each; a literal segment wins over
``*``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from operator import itemgetter
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from appliance.frontend.http.status import HttpRefusal

RouteHandler = Callable[..., Awaitable[web.StreamResponse]]
ANY: Final = "*"


class Pattern:
    """One path with its handlers by method. Comparing is two C calls, because every request pays for it."""

    __slots__ = ("_literals", "_pick_literals", "_wild", "methods")

    def __init__(self, segments: tuple[str, ...]) -> None:
        fixed = [index for index, segment in enumerate(segments) if segment != ANY]
        self._pick_literals = itemgetter(*fixed, fixed[0])  # twice the first: always a tuple
        self._literals = self._pick_literals(segments)
        self._wild = [index for index, segment in enumerate(segments) if segment == ANY]
        self.methods: dict[str, RouteHandler] = {}

    def fits(self, segments: tuple[str, ...]) -> bool:
        """Whether a path of the same length is of this pattern."""
        return bool(self._pick_literals(segments) == self._literals)

    def names(self, segments: tuple[str, ...]) -> tuple[str, ...]:
        """What stands for the ``*``, decoded."""
        return tuple([unquote(segments[index]) for index in self._wild])


class Router:
    """A fixed table of routes; the first pattern that fits wins, so literal ones are listed first."""

    def __init__(self, routes: Iterable[tuple[str, str, RouteHandler]]) -> None:
        patterns: dict[tuple[str, ...], Pattern] = {}
        for method, path, handler in routes:
            segments = _segments(path)
            patterns.setdefault(segments, Pattern(segments)).methods[method] = handler
        self._by_shape: dict[tuple[int, str], list[Pattern]] = {}
        for segments, pattern in patterns.items():
            self._by_shape.setdefault((len(segments), segments[-1]), []).append(pattern)

    def match(self, method: str, raw_path: str) -> tuple[RouteHandler, tuple[str, ...]]:
        """The handler and the segments for its ``*``; raises HttpRefusal 404 or 405."""
        segments = _segments(raw_path)
        for last in (segments[-1], ANY):
            for pattern in self._by_shape.get((len(segments), last), ()):
                if pattern.fits(segments):
                    handler = pattern.methods.get("GET" if method == "HEAD" else method)
                    if handler is None:
                        raise _wrong_method(method, raw_path, pattern.methods)
                    return handler, pattern.names(segments)
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
