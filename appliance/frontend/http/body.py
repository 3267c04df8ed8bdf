"""The memory that bodies take: of requests, read whole, bounded in size and time; and of answers that clients have yet
to take. All of either together are bounded.

A body that has arrived with its head costs no waiting. A declared length counts, and is refused, before memory is
taken for it; one that was not declared counts while it arrives. An answer counts from before its tensors are copied
until its connection has written it or is gone. One alone may be larger than the bound: the engine's memory bounds it,
and refused it would be for ever.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from appliance.config.http import HttpConfig
from appliance.domain.errors import AnswersFull, InvalidRequest, MessageTooLarge, QueueFull
from appliance.frontend.http.compression import Limit, request_encoding, unfold
from appliance.frontend.http.status import HttpRefusal
from appliance.frontend.turns import Turns

Body = bytes | bytearray


class HeldBody(NamedTuple):
    """A body in memory and how many bytes it counts for, which is more while it was compressed."""

    data: Body
    held_bytes: int


class BodyReader:
    """Reads bodies within the limits of ``config``. Owns the count of bytes held in bodies."""

    def __init__(self, config: HttpConfig, turns: Turns) -> None:
        self._config = config
        self._turns = turns
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of all bodies in memory now, as declared or received."""
        return self._held_bytes

    async def read(self, request: web.BaseRequest, limit: Limit) -> HeldBody:
        """The plain body of ``request``, within ``limit``. Its bytes count as held until it is released.

        Raises MessageTooLarge, QueueFull (all bodies together), InvalidRequest (cut short or malformed) and
        HttpRefusal (too slow, unknown encoding)."""
        coding = request_encoding(request.headers.get("Content-Encoding", ""))
        taken = declared = self._take(_declared_length(request, limit))
        try:
            body = await self._arrived(request, limit)
            taken = max(declared, len(body))
            if coding:
                taken += self._take(limit.nbytes)
                body = await unfold(body, coding, limit, self._turns)
        except BaseException:
            self._held_bytes -= taken
            raise
        return HeldBody(body, taken)

    def release(self, held: HeldBody) -> None:
        """Its bytes count no longer; call exactly once per body that was read."""
        self._held_bytes -= held.held_bytes

    def _take(self, nbytes: int) -> int:
        if self._held_bytes + nbytes > self._config.max_bodies_bytes:
            raise QueueFull(
                f"Exceeds maximum queue size: request bodies already hold {self._held_bytes} of "
                f"{self._config.max_bodies_bytes} bytes"
            )
        self._held_bytes += nbytes
        return nbytes

    async def _arrived(self, request: web.BaseRequest, limit: Limit) -> Body:
        """The body as it was sent; what it has beyond its declared length counts as held from here on."""
        content = request.content
        if content.is_eof() and content.exception() is None:
            body = _bounded(content.read_nowait(-1), limit)
            self._take(max(0, len(body) - (request.content_length or 0)))
            return body
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                return await self._gather(request, limit)
        except TimeoutError:
            raise HttpRefusal(
                HTTPStatus.REQUEST_TIMEOUT,
                f"request body did not arrive within {self._config.body_timeout_s:g} s",
                {"Connection": "close"},
            ) from None
        except RequestPayloadError as error:
            raise InvalidRequest(f"request body is malformed: {error}") from None

    async def _gather(self, request: web.BaseRequest, limit: Limit) -> bytearray:
        """All chunks in one buffer: made once when the length is declared, grown and counted with each when it is not.
        A buffer that grows has at most an eighth more than it needs."""
        content = request.content
        buffer = bytearray(request.content_length or 0)
        filled = beyond = 0
        try:
            while chunk := await content.readany():
                end = filled + len(chunk)
                if end > limit.nbytes:
                    raise MessageTooLarge(f"request body is larger than the limit of {limit}")
                beyond += self._take(max(0, end - len(buffer)))
                buffer[filled:end] = chunk
                filled = end
            if filled != len(buffer):
                raise InvalidRequest(
                    f"request body is cut short: {len(buffer)} bytes announced, {filled} arrived"
                )
        except BaseException:
            self._held_bytes -= beyond
            raise
        return buffer


def _declared_length(request: web.BaseRequest, limit: Limit) -> int:
    length = request.content_length or 0
    if length > limit.nbytes:
        raise MessageTooLarge(f"request body of {length} bytes is larger than the limit of {limit}")
    return length


def _bounded(body: Body, limit: Limit) -> Body:
    if len(body) > limit.nbytes:
        raise MessageTooLarge(f"request body of {len(body)} bytes is larger than the limit of {limit}")
    return body


BACK_AFTER_NS: Final = 1_000_000_000
"""When to come back: clients that are slow with their answers take seconds."""


class UnreadAnswers:
    """Owns the count of bytes in answers, bounded by ``bound``, and that of refusals. Owner: the loop's thread."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.held_bytes = 0
        """Bytes of all answers in memory now."""
        self.refused = 0
        """Requests that were refused for want of room."""

    def check(self) -> None:
        """Raise AnswersFull when there is no room at all: before any work is done for an answer."""
        if self.held_bytes >= self._bound:
            raise self._full()

    def resize(self, before: int, nbytes: int) -> int:
        """An answer that counted ``before`` bytes counts ``nbytes``, which it gives. Raises AnswersFull, and goes on
        counting what it did, when it would grow and there is no room for it."""
        others = self.held_bytes - before
        if nbytes > before and others and others + nbytes > self._bound:
            raise self._full()
        self.held_bytes = others + nbytes
        return nbytes

    def _full(self) -> AnswersFull:
        self.refused += 1
        return AnswersFull(
            "there is no memory for this answer now: answers that clients have not taken yet hold "
            f"{self.held_bytes} of {self._bound} bytes; read answers sooner, or raise http.max_bodies_bytes",
            BACK_AFTER_NS,
        )
