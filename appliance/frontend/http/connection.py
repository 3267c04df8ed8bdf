"""One HTTP connection: how long a client may take over a request head or over reading its answer, and how it ends.

aiohttp closes connections that stay idle; what it does not bound is here. One sweep per second looks at all
connections, so that a request pays for two stores and no timer.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
from collections import Counter
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

from aiohttp import HttpVersion, HttpVersion11, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from appliance.config.http import HttpConfig
from appliance.domain.address import UNIX, address_of
from appliance.domain.protocol import SERVER_NAME
from appliance.frontend.http.body import UnreadAnswers
from appliance.frontend.http.status import HttpRefusal, plain_answer
from appliance.frontend.quotas import Account
from appliance.frontend.regions.users import UNKNOWN_USER
from appliance.frontend.statuses import CLIENT_CLOSED_REQUEST

CREDENTIALS: Final = struct.Struct("=iII")
"""Process, user and group, as the kernel tells them (``struct ucred``)."""
TOO_MANY_CONNECTIONS: Final = plain_answer("503 Service Unavailable", "too many connections; try again later")
HEAD_TOO_SLOW: Final = plain_answer("408 Request Timeout", "the request head did not arrive in time")


class ServerTally:
    """What all connections of a server count together. Owner: the event loop's thread."""

    def __init__(self, config: HttpConfig, per_peer: int) -> None:
        """``per_peer``: how many connections one client may have, 0: as many as there may be."""
        self._most = config.max_connections, per_peer
        self._peers = Counter[str]()
        self.answers = Counter[int]()
        """How many there were of each status, from the application or the native front end."""
        self.unread = UnreadAnswers(config.max_bodies_bytes)
        self.connections = 0
        """Those that were accepted here."""
        self.refused_connections = 0

    def accept(self, peer: str) -> bool:
        """Count a connection of ``peer``, or that it was refused: there are too many."""
        most, per_peer = self._most
        accepted = self.connections < most and not (per_peer and self._peers[peer] >= per_peer)
        self.connections += accepted
        self.refused_connections += not accepted
        if accepted:
            self._peers[peer] += 1
        return accepted

    def forget(self, peer: str) -> None:
        """One of its connections that were counted ended."""
        self.connections -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    def count_plain(self, answer: bytes) -> None:
        """Count one that was written whole, beside all handlers."""
        self.answers[int(answer.split(b" ", 2)[1])] += 1


class Origin(NamedTuple):
    """Where a connection comes from that the native front end accepted: the client's network address ("": it has
    none), how often a worker died with its first request, who it is by its certificate ("": that is not known), what it
    may ask, and its user on this machine (UNKNOWN_USER: that is not known)."""

    client: str
    attempts: int
    name: str
    account: Account
    user: int = UNKNOWN_USER


class Connection(web.RequestHandler):
    """One client connection; the native front end tells the ``origin`` of one that it accepted. Times are the loop's; 0
    means that nothing is being waited for. ``begun`` is the body of the request that was taken up and that its handler
    has yet to see, ``unread`` how much its answer counts among those that clients have yet to take."""

    __slots__ = (
        "_config",
        "_counted_for",
        "_is_over_tls",
        "_tally",
        "attempts",
        "begun",
        "busy",
        "head_since",
        "origin",
        "refused",
        "said_all",
        "unread",
        "unsent_bytes",
        "write_since",
    )

    def __init__(
        self,
        server: web.Server,
        config: HttpConfig,
        tally: ServerTally,
        origin: Origin | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(server, **settings)
        self._config = config
        self._tally = tally
        self._counted_for: str | None = None
        self._is_over_tls = False
        self.origin = origin
        self.attempts = 0 if origin is None else origin.attempts
        self.begun: StreamReader | None = None
        self.busy = False
        self.refused = False
        self.said_all = False
        self.unread = 0
        self.head_since = 0.0
        self.write_since = 0.0
        self.unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or answer 503 when there are too many."""
        stream = cast(asyncio.Transport, transport)  # uvloop's own class does not derive from it
        peer = _peer(transport) if self.origin is None else None
        if peer is not None and not self._tally.accept(peer):
            self.refused = True
            self._tally.count_plain(TOO_MANY_CONNECTIONS)
            stream.write(TOO_MANY_CONNECTIONS)
            stream.close()
            return
        self._counted_for = peer
        self._is_over_tls = transport.get_extra_info("ssl_object") is not None
        stream.set_write_buffer_limits(high=1)  # "written" shall mean that nothing is left of it here
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection no longer."""
        if self._counted_for is not None:
            self._tally.forget(self._counted_for)
        self._counted_for = None
        super().connection_lost(exc)

    @property
    def peername(self) -> Any:
        """The address of the client; what accepted the connection knows it better than the socket."""
        return (self.origin.client,) if self.origin and self.origin.client else super().peername

    def data_received(self, data: bytes) -> None:
        """Note when the first byte of a request head came."""
        if self.refused:
            return
        if not self.busy and not self.head_since:
            self.head_since = self._loop.time()
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # True keeps the way to the client open
        """The client sends no more. Whatever of it is whole is answered, and then the connection ends; a client that is
        not there any more, or ends amid a request, has none to be answered. Over TLS the end of one side is that of
        both: asyncio has it so."""
        if self._is_over_tls:
            return None
        last = self._messages[-1][1] if self._messages else self._current_body()
        if last is None or not last.is_eof() or _is_hung_up(self.transport):
            return None
        self.said_all = True
        if not self._messages:
            self.close()
        return True

    def _current_body(self) -> StreamReader | None:
        """The body of the request that is being answered, if one is."""
        request = self._current_request
        if request is not None:
            return request.content
        return EMPTY_PAYLOAD if self._request_in_progress else self.begun

    def pause_writing(self) -> None:
        """The client reads slower than the answer is written."""
        super().pause_writing()
        self.write_since = self._loop.time()
        self.unsent_bytes = 0

    def resume_writing(self) -> None:
        """The client caught up."""
        super().resume_writing()
        self.write_since = 0.0

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the answer; when that is done, or the client is gone, nothing of it is held any longer: the connection
        would keep it until the next one."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.count_unread(0)
            if isinstance(resp, web.Response):
                resp.body = None

    def check_unread(self) -> None:
        """Raise AnswersFull when there is no room at all for another answer."""
        self._tally.unread.check()

    def count_unread(self, nbytes: int) -> None:
        """Its answer counts so many bytes among those that clients have yet to take. Raises AnswersFull."""
        self.unread = self._tally.unread.resize(self.unread, nbytes)

    def take_attempts(self) -> int:
        """How often workers died with the request before it came here; of those behind it, none did."""
        attempts, self.attempts = self.attempts, 0
        return attempts

    @property
    def arrived_ns(self) -> int:
        """When the request came to what passed it on, on the engine's clock; 0: nothing did, or it does not matter."""
        return 0 if self.origin is None else self.origin.account.arrived_ns()

    @property
    def client(self) -> str:
        """Who it is, by its certificate; "": that is not known."""
        return "" if self.origin is None else self.origin.name

    @property
    def sender(self) -> str:
        """Who it is, as quotas tell clients apart."""
        if self.origin is not None:
            return self.origin.account.client
        peer = self.peername
        return (address_of(peer[0]) or "") if isinstance(peer, tuple) else UNIX

    @property
    def user(self) -> int:
        """Its user on this machine when it connected, as the kernel tells it over a Unix socket; else UNKNOWN_USER.
        Of a connection that was accepted elsewhere the socket here is no client's, and is not asked."""
        if self.origin is not None:
            return self.origin.user
        return UNKNOWN_USER if self.transport is None else _user_at(self.transport)

    @property
    def account(self) -> Account | None:
        """What the client may ask; None where the native front end did not accept the connection."""
        return None if self.origin is None else self.origin.account

    @property
    def is_last(self) -> bool:
        """Whether no request waits behind the one that is being answered."""
        return not self._messages

    def sweep(self, now: float) -> None:
        """Drop the client if it took too long over a request head or took nothing of its answer, or has gone since it
        said that it will send no more: nothing is read any more that would tell."""
        transport, config = self.transport, self._config
        if transport is None:
            return
        if self.said_all and _is_hung_up(transport):
            transport.abort()
        elif self.head_since and not self.busy and now - self.head_since > config.head_timeout_s:
            transport.write(HEAD_TOO_SLOW)
            self._tally.count_plain(HEAD_TOO_SLOW)
            self.force_close()
        elif self.write_since:
            unsent = transport.get_write_buffer_size()
            if unsent != self.unsent_bytes:
                self.unsent_bytes, self.write_since = unsent, now
            elif now - self.write_since > config.write_stall_s:
                transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that could not be parsed, or whose handler failed; always closes the connection. One whose
        answer was already begun counts as failed, too. Raises ConnectionError when there is nothing to be said."""
        if isinstance(exc, ConnectionError) and (self.transport is None or self.transport.is_closing()):
            self._tally.answers[CLIENT_CLOSED_REQUEST] += 1
            raise ConnectionError("the client is gone") from exc
        if status >= 500:
            self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
            text = "internal error; the log of the appliance has the details"
        elif isinstance(exc, LineTooLong):
            status, text = 431, f"request line or header is too long: {_first_line(message)}"
        else:
            text = f"malformed HTTP request: {_first_line(message)}"
        self._tally.answers[status] += 1
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was already begun")
        response = web.Response(
            status=status, body=json.dumps({"error": text}).encode(), content_type="application/json"
        )
        response.force_close()
        return response


class Request(web.BaseRequest):
    """A request whose answers name this server, not the versions of what it is built on."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers["Server"] = SERVER_NAME


class ForeignRequest(Request):
    """A request in another HTTP than 1.0 and 1.1: how it goes on cannot be known. ``version`` is that of its answer."""

    def __init__(self, message: Any, *rest: Any) -> None:
        super().__init__(message._replace(version=HttpVersion11), *rest)
        self._said: HttpVersion = message.version

    def refusal(self) -> HttpRefusal:
        """Why it is not answered."""
        return HttpRefusal(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
            f"HTTP/{self._said.major}.{self._said.minor} is not spoken here; ask with HTTP/1.1",
            {"Connection": "close"},
        )


def _peer(transport: asyncio.BaseTransport) -> str:
    """Who is at the other end, as quotas tell clients apart; all over Unix sockets are one."""
    place = transport.get_extra_info("peername")
    return (address_of(place[0]) if isinstance(place, tuple) else UNIX) or ""


def _user_at(transport: asyncio.Transport) -> int:
    """The user at the other end of a connection that was accepted here."""
    ours = transport.get_extra_info("socket")
    if ours is None or ours.family != socket.AF_UNIX:
        return UNKNOWN_USER
    with socket.fromfd(ours.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as found:
        credentials = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(credentials)[1])


def _is_hung_up(transport: asyncio.Transport | None) -> bool:
    """Whether the other side has closed altogether and not only its own direction. A Unix socket tells at once; TCP
    tells only by a reset."""
    if transport is None:
        return True
    poller = select.poll()
    poller.register(transport.get_extra_info("socket").fileno(), 0)
    return bool(poller.poll(0))


def connection_of(request: web.BaseRequest) -> Connection:
    """What ``request`` came over."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    return connection


def _first_line(message: str | None) -> str:
    return (message or "").strip().partition("\n")[0].strip()[:200]
