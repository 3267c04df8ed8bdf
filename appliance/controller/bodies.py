"""Bodies of requests, bounded in size and time before they take memory; and how a request is refused."""

from __future__ import annotations

import asyncio

from aiohttp import web

from appliance.domain.errors import ApplianceError


class Refused(ApplianceError):
    """A request that is refused: with which status, a ``code`` for programs, and when to come again (0: as always)."""

    def __init__(self, status: int, code: str, text: str, retry_after_s: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


async def read_body(request: web.Request, limit: int, within_s: float) -> bytes:
    """The body, of at most ``limit`` bytes, which come within so many seconds. Raises Refused."""
    if (request.content_length or 0) > limit:
        raise Refused(413, "too-large", f"a body has at most {limit} bytes here")
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > limit:
                    raise Refused(413, "too-large", f"a body has at most {limit} bytes here")
    except TimeoutError as error:
        raise Refused(408, "too-slow", f"a body comes within {within_s:g} s, or not at all") from error
    return bytes(body)
