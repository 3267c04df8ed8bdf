"""Connections: how many there may be, how long a client may take over a request head or over reading its
answer.

aiohttp closes connections that stay idle; what it does not bound is here. One sweep per second looks at all
connections, so that a request pays for two stores and no timer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import HttpVersion, HttpVersion11, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from appliance.config.http import HttpConfig
from appliance.domain.identity import SERVER_NAME
from appliance.frontend.http.peers import Peers
from appliance.frontend.http.status import CLIENT_CLOSED_REQUEST, HttpRefusal
from appliance.frontend.http.unread import UnreadAnswers
from appliance.frontend.listening.identity import admits, identity_of
from appliance.frontend.quota.quotas import Account, Quotas

SWEEP_S: Final = 1.0
TOLD_PER_SWEEP: Final = 5
"""Clients that are turned away and told in the log between two sweeps; the others are only counted."""
_LOG = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connection(web.RequestHandler):
    """One client connection. Times are the loop's; 0 means that nothing is being waited for. A connection that somebody
    else accepted brings its ``client`` along, how many ``attempts`` at its first request have failed, ``name``: who the
    client is by its certificate, and its ``account``. One over TLS was ``entered`` for this address before its
    handshake. ``begun`` is the body of the request that was taken up and that its handler has yet to see, ``unread``
    how much its answer counts among those that clients have yet to take."""

    __slots__ = (
        "_client",
        "_entered",
        "_server",
        "account",
        "attempts",
        "begun",
        "busy",
        "head_since",
        "is_made",
        "name",
        "over_tls",
        "refused",
        "said_all",
        "unread",
        "unsent_bytes",
        "write_since",
    )

    def __init__(
        self,
        server: HttpServer,
        client: str = "",
        attempts: int = 0,
        *,
        name: str = "",
        account: Account | None = None,
        entered: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(server, **settings)
        self._server = server
        self._client = client
        self._entered = entered
        self.over_tls = entered is not None
        self.name = name
        self.is_made = False
        self.attempts = attempts
        self.account = account
        self.begun: StreamReader | None = None
        self.busy = False
        self.refused = False
        self.said_all = False
        self.unread = 0
        self.head_since = 0.0
        self.write_since = 0.0
        self.unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or answer 503 when there are too many, 403 when its client may not come."""
        self.is_made = True
        if refusal := self._refusal(transport):
            self.refused = True
            stream = cast(asyncio.Transport, transport)  # uvloop's own class does not derive from it
            stream.write(refusal)
            stream.close()
            self._server.count_plain(refusal)
            return
        # "written" shall mean that nothing is left of it here
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=1)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection no longer."""
        self.leave()
        super().connection_lost(exc)

    def _refusal(self, transport: asyncio.BaseTransport) -> bytes:
        """The whole answer to a client that is not let in; empty for one that is."""
        if self.over_tls:
            return self._identify(transport.get_extra_info("peercert") or {})
        return TOO_MANY_CONNECTIONS if self._server.full else self._enter(transport)

    def _identify(self, shown: Mapping[str, Any]) -> bytes:
        identity = identity_of(shown)
        self.name = identity.text if identity else ""
        names = self._server.client_names
        if not names or (identity is not None and admits(names, identity)):
            return b""
        self._server.turned_away(self.name, self._entered)
        return NOT_NAMED

    def leave(self) -> None:
        """Count the connection no longer."""
        if self._entered is not None:
            self._server.peers.leave(self._entered)
            self._entered = None

    def _enter(self, transport: asyncio.BaseTransport) -> bytes:
        """Count the connection for its peer, unless whoever accepted it did so; what to answer if it is too many."""
        name = transport.get_extra_info("peername")
        if self._client or not isinstance(name, tuple):
            return b""
        if not self._server.peers.enter(str(name[0])):
            self._server.refused_connections += 1
            return TOO_MANY_FROM_PEER
        self._entered = str(name[0])
        return b""

    @property
    def peername(self) -> Any:
        """The address of the client; who accepted the connection knows it better than the socket."""
        return (self._client,) if self._client else super().peername

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
        if self.over_tls:
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
        self._server.unread.check()

    def count_unread(self, nbytes: int) -> None:
        """Its answer counts so many bytes among those that clients have yet to take. Raises AnswersFull."""
        self.unread = self._server.unread.resize(self.unread, nbytes)

    @property
    def is_last(self) -> bool:
        """Whether no request waits behind the one that is being answered."""
        return not self._messages

    def sweep(self, now: float, config: HttpConfig) -> None:
        """Drop the client if it took too long over a request head or took nothing of its answer, or has gone since it
        said that it will send no more: nothing is read any more that would tell."""
        transport = self.transport
        if transport is None:
            return
        if self.said_all and _is_hung_up(transport):
            transport.abort()
        elif self.head_since and not self.busy and now - self.head_since > config.head_timeout_s:
            transport.write(HEAD_TOO_SLOW)
            self._server.count_plain(HEAD_TOO_SLOW)
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
            self._server.answers[CLIENT_CLOSED_REQUEST] += 1
            raise ConnectionError("the client is gone") from exc
        if status >= 500:
            self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
            text = "internal error; the log of the appliance has the details"
        elif isinstance(exc, LineTooLong):
            status, text = 431, f"request line or header is too long: {_first_line(message)}"
        else:
            text = f"malformed HTTP request: {_first_line(message)}"
        self._server.answers[status] += 1
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


class HttpServer(web.Server):
    """Makes a Connection per client and sweeps them. Owns the counts of requests being handled and of answers."""

    def __init__(self, handler: Handler, config: HttpConfig) -> None:
        super().__init__(
            self._handled,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=config.keepalive_s,
            max_line_size=config.max_header_bytes,
            max_field_size=config.max_header_bytes,
            max_headers=config.max_headers,
            auto_decompress=False,
            lingering_time=LINGER_S,
            access_log=None,
        )
        self._handler = handler
        self._config = config
        self.in_flight = 0
        self.answers = Counter[int]()
        """How many there were of each status, whoever made them."""
        self.refused_connections = 0
        self.unread = UnreadAnswers(config.max_bodies_bytes)
        self.peers = Peers(config.max_connections_per_peer)
        self.client_names = config.tls_client_names
        self.handshakes = Counter({"failed": 0, "late": 0, "name": 0, "plain": 0})
        """Why handshakes came to nothing, and how many."""
        self._shaking = 0
        self._told = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def full(self) -> bool:
        """Whether one more connection would be too many; counts the refusal when it is."""
        full = len(self._connections) + self._shaking >= self._config.max_connections
        self.refused_connections += full
        return full

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)

    def adopt(self, client: str, attempts: int, name: str, account: Account) -> Connection:
        """A connection that was accepted elsewhere, from ``client``, who is ``name`` by its certificate."""
        settings = {**self._kwargs, "name": name, "account": account}
        return Connection(self, client, attempts, loop=self._loop, **settings)

    # --- those over TLS, which count from before their handshake

    def expect(self, host: str) -> bool:
        """Count a handshake with a client at ``host``; False, and not counted, when that is one too many."""
        if self.full:
            return False
        if not self.peers.enter(host):
            self.refused_connections += 1
            return False
        self._shaking += 1
        return True

    def expected(self, host: str) -> Connection:
        """What a handshake that was counted leads to, if it does."""
        return Connection(self, entered=host, loop=self._loop, **self._kwargs)

    def met(self, connection: Connection) -> None:
        """That handshake is over, well or not."""
        self._shaking -= 1
        if not connection.is_made:
            connection.leave()

    def count_plain(self, answer: bytes) -> None:
        """Count one that was written whole, beside all handlers."""
        self.answers[int(answer.split(b" ", 2)[1])] += 1

    def turned_away(self, name: str, host: str | None) -> None:
        """Count a client that may not come, and tell some of them."""
        self.handshakes["name"] += 1
        self._told += 1
        if self._told <= TOLD_PER_SWEEP:
            _LOG.warning("a client was turned away: http.tls_client_names has no %r, from %s", name, host)

    def _request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
    ) -> web.BaseRequest:
        protocol.begun = payload
        kind = Request if message.version.major == 1 else ForeignRequest
        return kind(message, payload, protocol, writer, task, self._loop)

    async def idle(self) -> None:
        """Return once no request is being handled."""
        await self._idle.wait()

    def sweep(self) -> None:
        """Look at every connection once."""
        self._told = 0
        now = self._loop.time()
        for connection in self.connections:
            if isinstance(connection, Connection):
                connection.sweep(now, self._config)

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.busy = True
        connection.begun = None
        connection.head_since = 0.0
        if connection.said_all and connection.is_last:
            connection.close()
        self.in_flight += 1
        self._idle.clear()
        try:
            response = await self._handler(request)
        except BaseException as error:
            connection.count_unread(0)
            if isinstance(error, asyncio.CancelledError):
                self.answers[CLIENT_CLOSED_REQUEST] += 1
            raise
        finally:
            connection.busy = False
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()
        self.answers[response.status] += 1
        return response


def _is_hung_up(transport: asyncio.Transport | None) -> bool:
    """Whether the other side has closed altogether and not only its own direction. A Unix socket tells at once; TCP
    tells only by a reset."""
    if transport is None:
        return True
    poller = select.poll()
    poller.register(transport.get_extra_info("socket").fileno(), 0)
    return bool(poller.poll(0))


def check_unread(request: web.BaseRequest) -> None:
    """Raise AnswersFull when there is no room for another answer, before any work is done for it."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    connection.check_unread()


def count_unread(request: web.BaseRequest, nbytes: int) -> None:
    """The answer to ``request`` counts so many bytes until it is written, or nobody waits for it any longer. Raises
    AnswersFull."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    connection.count_unread(nbytes)


def take_attempts(request: web.BaseRequest) -> int:
    """How often workers died with ``request`` before it came here."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    attempts, connection.attempts = connection.attempts, 0
    return attempts


def take_arrival(request: web.BaseRequest) -> int:
    """When ``request`` came to whoever passed it on, on the engine's clock; 0: nobody did, or it does not matter."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    return 0 if connection.account is None else connection.account.arrived_ns()


def client_name(request: web.BaseRequest) -> str:
    """Who sent ``request``, by its certificate; "": that is not known."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    return connection.name


def account_of(request: web.BaseRequest, quotas: Quotas) -> Account:
    """What the client that sent ``request`` may ask."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    if connection.account is not None:
        return connection.account
    address = connection.peername
    return quotas.account(str(address[0]) if isinstance(address, tuple) else "", connection.name)


LINGER_S: Final = 2.0
"""How long the rest of a refused body is read and thrown away, so that the client gets to read the answer."""


def _plain_answer(status: str, text: str) -> bytes:
    body = json.dumps({"error": text}).encode()
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def _first_line(message: str | None) -> str:
    return (message or "").strip().partition("\n")[0].strip()[:200]


TOO_MANY_CONNECTIONS: Final = _plain_answer(
    "503 Service Unavailable", "too many connections; try again later"
)
TOO_MANY_FROM_PEER: Final = _plain_answer(
    "503 Service Unavailable", "too many connections from this address; try again later"
)
SPEAKS_TLS: Final = _plain_answer("400 Bad Request", "this port speaks TLS; ask it with https://")
NOT_NAMED: Final = _plain_answer(
    "403 Forbidden", "the name in the client's certificate is not among those that may ask here"
)
HEAD_TOO_SLOW: Final = _plain_answer("408 Request Timeout", "the request head did not arrive in time")
