"""The connection to the controller: requests with bounded answers, and a typed failure for whatever else comes.

One TLS connection is kept open between polls, because a new one costs more bytes than some dozens of these. Redirects
are not followed, nothing is unpacked that was not asked for, and an answer is believed to be the controller's only by
its certificate: a captive portal, a proxy or somebody in the middle is told as what it is. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct

from appliance.domain.errors import ApplianceError
from appliance.fleet import messages
from appliance.fleet.messages import (
    ANSWER_BYTES_MAX,
    CONTENT_TYPE,
    Acknowledged,
    Enrolled,
    Enrolment,
    MessageInvalid,
    Poll,
    Polled,
    Refusal,
    Renewal,
    Renewed,
)
from appliance.sync.identity import Token, controller_tls, find_authority

CONNECT_S: Final = 30.0
IDLE_S: Final = 900.0
"""For how long an idle connection is kept, if the controller does."""
SILENCE_S: Final = 60.0
"""How long an answer may not go on."""
TOTAL_S: Final = 600.0
SMALL_BYTES_MAX: Final = 256 << 10
"""Of an answer that is no document."""
PIECE: Final = 64 << 10

M = TypeVar("M", bound=Struct)


class LinkTrouble(StrEnum):
    """What went wrong between the box and its controller."""

    DNS = "dns"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    SILENT = "silent"
    UNTRUSTED = "untrusted"
    PORTAL = "portal"
    REDIRECT = "redirect"
    TOO_LARGE = "too-large"
    NONSENSE = "nonsense"
    REFUSED = "refused"


class LinkFailed(ApplianceError):
    """There was no answer of the controller, or it was a refusal: then ``code`` is the controller's, and
    ``retry_after_s`` when to come again (0: as always)."""

    def __init__(self, trouble: LinkTrouble, text: str, code: str = "", retry_after_s: int = 0) -> None:
        super().__init__(text)
        self.trouble = trouble
        self.code = code
        self.retry_after_s = retry_after_s


class Link:
    """See the module. ``bytes_used`` counts bodies both ways and, roughly, what goes around them."""

    OVERHEAD: Final = 400
    """What request and answer take on the wire beside their bodies, about: heads, records of TLS, packets."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        self._url = url.rstrip("/")
        self._host = urlsplit(url).hostname or ""
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self.bytes_used = 0

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            ssl=self._tls, limit=4, keepalive_timeout=IDLE_S, happy_eyeballs_delay=0.25, ttl_dns_cache=60
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            timeout=aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S, sock_read=SILENCE_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """For whoever reads streams over the same connection."""
        assert self._session is not None, "it is used as a context"
        return self._session

    @property
    def url(self) -> str:
        """The controller's, without a path."""
        return self._url

    async def poll(self, poll: Poll) -> Polled:
        """Ask what is wanted. Raises LinkFailed, as all of these do."""
        return await self._ask(messages.POLL, messages.encode(poll), Polled, ANSWER_BYTES_MAX)

    async def renew(self, renewal: Renewal) -> Renewed:
        """Get the certificate anew."""
        return await self._ask(messages.RENEW, messages.encode(renewal), Renewed, SMALL_BYTES_MAX)

    async def enrol(self, enrolment: Enrolment) -> Enrolled:
        """Become one of the fleet."""
        return await self._ask(messages.ENROL, messages.encode(enrolment), Enrolled, 4 * SMALL_BYTES_MAX)

    async def telemetry(self, batch: bytes) -> Acknowledged:
        """Hand over records: ``batch`` is a Batch after zstd."""
        return await self._ask(messages.TELEMETRY, batch, Acknowledged, SMALL_BYTES_MAX)

    async def _ask(self, path: str, body: bytes, kind: type[M], limit: int) -> M:
        status, answer = await self._post(path, body, limit)
        try:
            if status >= 400:
                refusal = messages.decode(answer, Refusal)
                raise LinkFailed(
                    LinkTrouble.REFUSED, refusal.text or refusal.code, refusal.code, refusal.retry_after_s
                )
            return messages.decode(answer, kind)
        except MessageInvalid as error:
            raise LinkFailed(LinkTrouble.NONSENSE, f"the controller's answer {error}") from error

    async def _post(self, path: str, body: bytes, limit: int) -> tuple[int, bytes]:
        headers = {"Content-Type": CONTENT_TYPE}
        url = f"{self._url}{path}"
        try:
            async with self.session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                _check_head(response, limit)
                answer = bytearray()
                async for piece in response.content.iter_chunked(PIECE):
                    answer += piece
                    if len(answer) > limit:
                        raise _too_large(limit)
                self.bytes_used += len(body) + len(answer) + self.OVERHEAD
                return response.status, bytes(answer)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise failure_of(error, self._host) from error


def _check_head(response: aiohttp.ClientResponse, limit: int) -> None:
    """Refuse by its head an answer that cannot be the controller's, before a body is read."""
    if 300 <= response.status < 400:
        raise LinkFailed(LinkTrouble.REDIRECT, "the answer leads elsewhere, which a controller's never does")
    if response.content_type != CONTENT_TYPE:
        text = (
            f"the answer is {response.content_type[:40]!a} with status {response.status}, not a controller's"
        )
        raise LinkFailed(LinkTrouble.PORTAL, text)
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise LinkFailed(LinkTrouble.NONSENSE, "the answer is packed, which was not asked for")
    if (response.content_length or 0) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> LinkFailed:
    return LinkFailed(LinkTrouble.TOO_LARGE, f"the answer has more than the {limit} bytes that it may have")


def failure_of(error: BaseException, host: str) -> LinkFailed:
    """What the libraries say, as one of ours."""
    for kinds, trouble, text in _TOLD:
        if isinstance(error, kinds):
            return LinkFailed(trouble, text.format(host=host, error=_cause(error)))
    if isinstance(error, aiohttp.ClientConnectorError | OSError):
        if isinstance(getattr(error, "os_error", error), socket.gaierror):
            return LinkFailed(LinkTrouble.DNS, f"the name '{host}' is not known now: {_cause(error)}")
        if isinstance(error, ConnectionResetError | BrokenPipeError | aiohttp.ClientConnectionResetError):
            return LinkFailed(LinkTrouble.LOST, f"the connection to '{host}' broke: {_cause(error)}")
        return LinkFailed(LinkTrouble.UNREACHABLE, f"'{host}' is not reached: {_cause(error)}")
    return LinkFailed(LinkTrouble.NONSENSE, f"'{host}' does not speak as a controller does: {_cause(error)}")


_TOLD: Final[tuple[tuple[Any, LinkTrouble, str], ...]] = (
    (
        (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, ssl.SSLError),
        LinkTrouble.UNTRUSTED,
        "who answers at '{host}' does not prove that it is the controller: {error}",
    ),
    (aiohttp.ClientConnectorDNSError, LinkTrouble.DNS, "the name '{host}' is not known now: {error}"),
    (
        (aiohttp.ServerTimeoutError, asyncio.TimeoutError),
        LinkTrouble.SILENT,
        "'{host}' did not answer in time",
    ),
    (
        (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError),
        LinkTrouble.LOST,
        "the connection to '{host}' broke: {error}",
    ),
)


def _cause(error: BaseException) -> str:
    said = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    text = getattr(said, "verify_message", "") or getattr(said, "strerror", "") or str(said)
    return ascii(text)[1:200].rstrip("'\"") or type(error).__name__


async def authority_of(token: Token) -> str:
    """The authority of the controller that the token names, as PEM. Raises LinkFailed and EnrolmentInvalid."""
    parts = urlsplit(token.url)
    host = parts.hostname or ""
    context = controller_tls()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # what it shows is compared with the token
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(
                host, parts.port or 443, ssl=context, server_hostname=host
            )
        try:
            chain = _chain_of(writer.get_extra_info("ssl_object"))
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
    except (TimeoutError, OSError) as error:
        raise failure_of(error, host) from error
    return find_authority(chain, token)


def _chain_of(connection: Any) -> list[bytes]:
    """The certificates that the other side showed, as DER. Python has it as its own only since 3.13."""
    if hasattr(connection, "get_unverified_chain"):
        return list(connection.get_unverified_chain())
    chain = connection._sslobj.get_unverified_chain() or ()
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain]


def enrolment_tls(authority: str) -> ssl.SSLContext:
    """TLS to the controller of that authority, for a box that has no certificate yet."""
    context = controller_tls()
    context.load_verify_locations(cadata=authority)
    return context
