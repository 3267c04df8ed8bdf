"""The answers that the protocol wants: JSON, and of errors ``{"error": text}`` with headers that say what to do.

Pure but for building the response.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from aiohttp import web

from appliance.domain import errors
from appliance.frontend.statuses import retry_after_ms, statuses_of

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
QUOTED_MAX: Final = 40


class HttpRefusal(errors.CallerError):
    """What HTTP itself refuses before any model is asked: a path, a method, an encoding, a body that never
    ends."""

    def __init__(self, status: HTTPStatus, text: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def status_of(error: errors.ApplianceError) -> int:
    """The status of ``error``, or its own."""
    return error.status if isinstance(error, HttpRefusal) else statuses_of(error).http


def error_headers(error: errors.ApplianceError) -> dict[str, str]:
    """Headers that tell the client what to do: when to come back, and that the rest of a body is not
    wanted."""
    if isinstance(error, HttpRefusal):
        return dict(error.headers)
    if isinstance(error, errors.MessageTooLarge):
        return {"Connection": "close"}
    wait_ms = retry_after_ms(error)
    if wait_ms is None or wait_ms < 0:
        return {}
    # Retry-After has whole seconds only; the second header carries what the scheduler really predicts
    return {"Retry-After": str(-(-wait_ms // 1_000)), "Retry-After-Ms": str(wait_ms)}


def plain_answer(status: str, text: str) -> bytes:
    """A whole answer with an error, to be written as it is, after which the connection ends."""
    body = json.dumps({"error": text}).encode()
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def error_response(error: errors.ApplianceError, text: str = "") -> web.Response:
    """The answer for ``error``; ``text`` replaces its own words (which may want a request id in front)."""
    return web.Response(
        status=status_of(error),
        headers=error_headers(error),
        body=json.dumps({"error": text or str(error)}).encode(),
        content_type="application/json",
    )


def quotable(header: str) -> str:
    """A header's value for a text: the beginning of it, where bytes that are not UTF-8 are escaped: JSON and logs have
    no place for them."""
    return header[:QUOTED_MAX].encode(errors="backslashreplace").decode()


def json_response(value: object) -> web.Response:
    """200 with ``value`` as JSON."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return web.Response(body=body, content_type="application/json")
