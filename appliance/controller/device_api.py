"""The device API over HTTP: bodies bounded before they are read, boxes known by their certificates, every refusal a
``Refusal``."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from aiohttp import web
from cryptography import x509
from msgspec import Struct

from appliance.controller.authority import key_digest
from appliance.controller.blobs import BlobStore
from appliance.controller.bodies import Refused, read_body
from appliance.controller.contact import NO_CERTIFICATE, Contact
from appliance.controller.fleet_store import DatabaseTrouble
from appliance.controller.traffic import ANSWERED, Traffic
from appliance.fleet import messages
from appliance.fleet.deeds import spans_in
from appliance.fleet.messages import (
    CONTENT_TYPE,
    REQUEST_BYTES_MAX,
    TELEMETRY_BYTES_MAX,
    Enrolment,
    MessageInvalid,
    Poll,
    Refusal,
    Renewal,
)

STREAM_TYPE: Final = "application/octet-stream"
RATE: Final = 5.0
BURST: Final = 60.0
"""Requests per second of one box, and at once; streams are ranges, of which few are asked."""
RECORDS: Final = 1024
RECORD_BYTES: Final = 1 << 20
SPANS: Final = 256
"""Of telemetry, each counts as a request, so many spans of versions, too: one database keeps that of all boxes, and
adds it up."""
CLIENTS_MAX: Final = 100_000
ENROLMENT_BYTES_MAX: Final = 64 << 10
"""Of what a stranger sends."""
AT_ONCE_MAX: Final = 32
"""Requests of one box at a time; those that a broken link left behind last for BODY_S."""
BODY_S: Final = 300.0
"""How long a body may take: the largest one at 14 kB/s."""

M = TypeVar("M", bound=Struct)
Answer = Callable[[web.Request, x509.Certificate | None, int], Awaitable[web.StreamResponse]]


class Rates:
    """How often clients asked lately: a bucket for each, the least recent forgotten. Owner: the event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: str, weight: float = 1.0) -> float:
        """0 where the client may ask now, which is counted as so many requests; else when it may."""
        now = self._now_s()
        left, at = self._buckets.pop(client, (BURST, now))
        left = min(BURST, left + RATE * (now - at))
        may = left >= 1
        self._buckets[client] = (left - weight if may else left, now)
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
        return 0.0 if may else (1 - left) / RATE


class DeviceApi:
    """See the module. ``wall_ms`` is the controller's clock; ``traffic`` is told what becomes of requests."""

    def __init__(
        self, contact: Contact, blobs: BlobStore, wall_ms: Callable[[], int], traffic: Traffic
    ) -> None:
        self._contact = contact
        self._blobs = blobs
        self._wall_ms = wall_ms
        self._traffic = traffic
        self._rates = Rates()
        self._taking: Counter[str] = Counter()

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        posts: dict[str, Answer] = {
            messages.ENROL: self._enrol,
            messages.RENEW: self._renew,
            messages.POLL: self._poll,
            messages.TELEMETRY: self._telemetry,
        }
        return [
            *(
                web.post(path, partial(self._serve, path.rpartition("/")[2], partial(self._taken, answer)))
                for path, answer in posts.items()
            ),
            web.get(messages.STREAMS + "{digest}", partial(self._serve, "stream", self._blob)),
            web.get(messages.INDEXES + "{digest}", partial(self._serve, "index", self._blob)),
        ]

    async def _serve(self, kind: str, answer: Answer, request: web.Request) -> web.StreamResponse:
        outcome, found = await self._answered(answer, request)
        self._traffic.count(kind, outcome)
        return found

    async def _answered(self, answer: Answer, request: web.Request) -> tuple[str, web.StreamResponse]:
        """How it went, in one word, and the answer."""
        certificate = certificate_of(request)
        try:
            self._count(request, certificate)
            return ANSWERED, await answer(request, certificate, self._wall_ms())
        except Refused as refused:
            return refused.code, refusal(refused.status, refused.code, str(refused), refused.retry_after_s)
        except MessageInvalid as error:
            return "bad-message", refusal(400, "bad-message", str(error))
        except (DatabaseTrouble, OSError):
            return "trouble", refusal(503, "trouble", "the controller cannot keep anything now", 60)

    def _count(self, request: web.Request, certificate: x509.Certificate | None, weight: float = 1.0) -> None:
        """Count a request to who asks. Raises Refused."""
        if wait_s := self._rates.wait_s(_client(request, certificate), weight):
            raise Refused(429, "too-often", "this box asks too often", int(wait_s) + 1)

    async def _taken(
        self, answer: Answer, request: web.Request, certificate: x509.Certificate | None, now_ms: int
    ) -> web.StreamResponse:
        """The answer to a body, of which each client has few at a time: they take memory. Raises Refused."""
        if certificate is None and request.path != messages.ENROL:
            raise Refused(401, "no-certificate", NO_CERTIFICATE)
        client = _client(request, certificate)
        if self._taking[client] >= AT_ONCE_MAX:
            raise Refused(429, "too-often", "this box asks for too much at a time", int(BODY_S))
        self._taking[client] += 1
        try:
            return await answer(request, certificate, now_ms)
        finally:
            self._taking[client] -= 1
            if not self._taking[client]:
                del self._taking[client]

    async def _enrol(self, request: web.Request, _: x509.Certificate | None, now_ms: int) -> web.Response:
        message = messages.decode(await _body(request, ENROLMENT_BYTES_MAX), Enrolment)
        return _said(await asyncio.to_thread(self._contact.enrol, message, now_ms))

    async def _renew(self, request: web.Request, who: x509.Certificate | None, now_ms: int) -> web.Response:
        message = await _message(request, Renewal)
        return _said(await asyncio.to_thread(self._contact.renew, who, message, now_ms))

    async def _poll(self, request: web.Request, who: x509.Certificate | None, now_ms: int) -> web.Response:
        message = await _message(request, Poll)
        return _said(await asyncio.to_thread(self._contact.poll, who, message, now_ms))

    async def _telemetry(
        self, request: web.Request, who: x509.Certificate | None, now_ms: int
    ) -> web.Response:
        body = await _body(request, TELEMETRY_BYTES_MAX)
        batch = await asyncio.to_thread(self._contact.batch, body)
        size = sum(map(len, batch.records))
        spans = await asyncio.to_thread(spans_in, batch.records)
        with self._traffic.records(len(batch.records)):
            weight = len(batch.records) // RECORDS + size // RECORD_BYTES + spans // SPANS
            self._count(request, who, weight)
            return _said(await asyncio.to_thread(self._contact.telemetry, who, batch, now_ms))

    async def _blob(
        self, request: web.Request, who: x509.Certificate | None, now_ms: int
    ) -> web.StreamResponse:
        """A range of a stream or of an index, as the request says it."""
        await asyncio.to_thread(self._contact.known, who, now_ms)
        digest = request.match_info["digest"]
        try:
            path = self._blobs.path(digest)
            size = await asyncio.to_thread(self._blobs.size, digest)
        except FileNotFoundError:
            size = None
        if size is None:
            raise Refused(404, "not-there", "there is no such stream")
        return web.FileResponse(path, headers={"Content-Type": STREAM_TYPE})


def certificate_of(request: web.Request) -> x509.Certificate | None:
    """The certificate that the client showed, which one of our authority's keys signed."""
    connection = request.transport.get_extra_info("ssl_object") if request.transport else None
    data = connection.getpeercert(binary_form=True) if connection else None
    return x509.load_der_x509_certificate(data) if data else None


def _client(request: web.Request, certificate: x509.Certificate | None) -> str:
    """Who asks: the holder of a key, so that one who was shut out takes nothing from the box that has his place; else
    an address."""
    return key_digest(certificate.public_key()) if certificate else str(request.remote)  # type: ignore[arg-type]


def refusal(status: int, code: str, text: str, retry_after_s: int = 0) -> web.Response:
    """An answer that says why not."""
    body = messages.encode(Refusal(code, text, retry_after_s))
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else None
    return web.Response(status=status, body=body, content_type=CONTENT_TYPE, headers=headers)


def _said(message: Struct) -> web.Response:
    return web.Response(body=messages.encode(message), content_type=CONTENT_TYPE)


async def _message(request: web.Request, kind: type[M]) -> M:
    return messages.decode(await _body(request, REQUEST_BYTES_MAX), kind)


async def _body(request: web.Request, limit: int) -> bytes:
    """The body, of at most ``limit`` bytes. Raises Refused."""
    if request.content_type != CONTENT_TYPE:
        raise Refused(415, "not-msgpack", f"a body is {CONTENT_TYPE}")
    return await read_body(request, limit, BODY_S)
