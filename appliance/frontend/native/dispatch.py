"""The native front end's events, each led to what serves its call. Runs on the event loop, a batch of events per
callback.

An event whose handling breaks ends its own call with INTERNAL and goes to the log; the next one is handled all the
same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from edge_appliance_native import (
    CALL,
    GONE,
    HANDSHAKE,
    HTTP,
    MESSAGE,
    NEWS,
    OVER_QUOTA,
    SENT,
    STREAM,
    TURNED_AWAY,
    UNARY,
    NativeServer,
)

from appliance.domain.inference import NO_DEADLINE
from appliance.engine.fastpath.direct import DirectEngine
from appliance.frontend.grpc.inference import Caller
from appliance.frontend.grpc.services import INFER, INFER_STREAM, TELL_OF_ALL, AnswerMessage, Services, Terms
from appliance.frontend.grpc.status import status_for
from appliance.frontend.native.calls import InferCalls, NativeStream, end_call, view_of
from appliance.frontend.native.heads import Heads
from appliance.frontend.native.http import NativeHttp
from appliance.frontend.native.templates import GrpcTemplates, HttpTemplates
from appliance.frontend.quotas import Quotas
from appliance.frontend.turns import CLIENT

POLL_S: Final = 0.005
FLUSH_S: Final = 0.5
"""How long connections get, once every call has ended, to take their last answers and close."""

LEAVING: Final = 128
"""Streams that end in one turn of the loop because their clients went."""

_LOG = logging.getLogger(__name__)
_INFER_INDEX: Final = 0
_NS: Final = 1_000_000_000

Metadata = tuple[tuple[str, str], ...]


class Methods:
    """What a server serves, by the index that its events name: ModelInfer, then the other unary RPCs, then streams."""

    def __init__(self, services: Services) -> None:
        unary, of_users, streaming = services.unary(), services.unary_of_users(), services.streaming()
        self.paths = (INFER, *of_users, *unary, *streaming)
        self.answers = (None, *[None] * len(of_users), *unary.values())
        self.of_users = (None, *of_users.values())
        self.telling_of_all = frozenset(self.paths.index(path) for path in TELL_OF_ALL)
        self.serves = (*[None] * len(self.answers), *streaming.values())

    def inferences(self) -> list[int]:
        """Those whose messages are inference requests."""
        return [self.paths.index(path) for path in (INFER, INFER_STREAM)]

    def table(self) -> list[tuple[str, int]]:
        """Paths and kinds, as the server takes them."""
        unary = len(self.answers)
        return [(path, UNARY if index < unary else STREAM) for index, path in enumerate(self.paths)]


class Dispatch:
    """Serves the calls of ``server``, which it starts and closes; ``failed`` is called once should the server fail.
    With ``direct``, requests that were seen before are the server's own; ``http`` is told of the server once that has
    started, ``quotas`` of clients that are refused for theirs. Owner: the event loop's thread."""

    def __init__(
        self,
        server: NativeServer,
        services: Services,
        methods: Methods,
        direct: DirectEngine | None,
        failed: Callable[[BaseException], None],
        http: NativeHttp,
        quotas: Quotas,
    ) -> None:
        self._server = server
        self._http = http
        self._failed = failed
        self._methods = methods
        self._inference = services.inference
        self._poll: Callable[[], list[Any]] = server.poll
        self._direct = direct
        self._templates = _templates(server, services, methods, direct)
        self._infers = InferCalls(server, services.inference)
        self._streams: dict[int, tuple[NativeStream, asyncio.Task[None]]] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}
        """Unary calls that wait for their client's turn."""
        self._leaving = deque[int]()
        """Streams whose clients went, and which are still to be told so."""
        self._streams_from = len(methods.answers)
        self._by_kind: Mapping[int, Callable[..., None]] = MappingProxyType(
            {
                CALL: self._called,
                MESSAGE: self._received,
                SENT: self._sent,
                GONE: self._gone,
                NEWS: self._news,
                TURNED_AWAY: _turned_away,
                HTTP: http.adopted,
                OVER_QUOTA: quotas.tell,
                HANDSHAKE: _not_shaken,
            }
        )
        """What takes the fields of each kind of event, as ``edge_appliance_native`` has them."""
        self._watched = -1

    def start(self) -> None:
        """Accept connections and watch for events."""
        self._server.start()
        self._watched = self._server.fileno()
        asyncio.get_running_loop().add_reader(self._watched, self._on_events)
        self._http.attach(self._server, self._templates)

    def listen(self, listeners: list[int]) -> None:
        """Accept connections on these as well. Raises OSError."""
        self._server.listen(listeners=listeners)

    def counts(self) -> dict[str, int]:
        """What the server counted, by its own names."""
        return self._server.statistics()

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, and wait up to ``grace_s`` seconds until those under way have ended and left."""
        self._server.drain()
        end = time.monotonic() + grace_s
        while self._busy() and time.monotonic() < end:  # noqa: ASYNC110  the server can only be asked
            await asyncio.sleep(POLL_S)
        end = min(end, time.monotonic() + FLUSH_S)
        while self._connections() and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Cut everything."""
        self._watch_no_more()
        self._server.close()
        self._infers.abandon()
        tasks = [*(task for _, task in self._streams.values()), *self._waiting.values()]
        for call in (*self._streams, *self._waiting):
            self._gone(call)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _watch_no_more(self) -> None:
        if self._watched >= 0:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = -1

    def _busy(self) -> bool:
        return bool(self._infers or self._streams or self._server.statistics()["calls_open"])

    def _connections(self) -> int:
        return self._server.statistics()["connections_open"]

    # --- events

    def _on_events(self) -> None:
        try:
            events = self._poll()
        except Exception as error:  # noqa: BLE001  whatever it is, events are lost and calls wait for them in vain
            self._watch_no_more()  # its descriptor stays readable
            self._failed(error)
            return
        for event in events:
            try:
                self._by_kind[event[0]](*event[1:])
            except Exception as error:  # noqa: BLE001  a defect ends its own call, not the handling of events
                # What tells of no call leaves accounts wrong, or a client waiting in vain.
                if event[0] in (NEWS, HTTP):
                    self._failed(error)
                    return
                end_call(self._server, event[1], status_for(error, "an event of the server"))

    def _called(
        self,
        call: int,
        method: int,
        message: Any,
        deadline_ns: int,
        metadata: Metadata,
        account: str,
        attempts: int,
        client: str,
        arrived_ns: int,
        user: int,
    ) -> None:
        if method == _INFER_INDEX:
            caller = Caller(client, account=account, user=user)
            if self._inference.nosy:
                caller = self._inference.caller(caller, INFER, arrived_ns, metadata)
            self._infers.begin(call, message, deadline_ns, attempts, caller, arrived_ns)
        elif method < len(self._methods.of_users):
            self._serve_user(call, method, bytes(message), user)
        elif method < self._streams_from:
            self._serve(call, method, bytes(message), account)
        else:
            self._open_stream(call, method, deadline_ns, metadata, Caller(client, account=account, user=user))

    def _received(self, call: int, message: Any, *handed: Any) -> None:
        stream = self._streams.get(call)
        if stream is not None:
            stream[0].received(None if message is None else view_of(message), *handed)

    def _sent(self, call: int) -> None:
        stream = self._streams.get(call)
        if stream is not None:
            stream[0].sent()

    def _news(self) -> None:
        if self._direct is not None:
            self._direct.told()

    def _serve_user(self, call: int, method: int, message: bytes, user: int) -> None:
        answer = self._methods.of_users[method]
        assert answer is not None
        self._answer_by(partial(answer, user), call, method, message)

    def _serve(self, call: int, method: int, message: bytes, account: str) -> None:
        if method not in self._methods.telling_of_all:
            self._answer(call, method, message)
            return
        task = asyncio.get_running_loop().create_task(self._answer_in_turn(call, method, message, account))
        self._waiting[call] = task
        task.add_done_callback(lambda _: self._waiting.pop(call))

    async def _answer_in_turn(self, call: int, method: int, message: bytes, account: str) -> None:
        CLIENT.set(account)
        await self._inference.turns.next()
        self._answer(call, method, message)

    def _answer(self, call: int, method: int, message: bytes) -> None:
        answer = self._methods.answers[method]
        assert answer is not None
        self._answer_by(answer, call, method, message)

    def _answer_by(self, answer: AnswerMessage, call: int, method: int, message: bytes) -> None:
        try:
            answered = answer(message)
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            end_call(self._server, call, status_for(error, self._methods.paths[method]))
        else:
            self._server.reply(call, answered)

    def _gone(self, call: int) -> None:
        if call in self._streams:
            if not self._leaving:
                asyncio.get_running_loop().call_soon(self._leave_some)
            self._leaving.append(call)
        elif call in self._waiting:
            self._waiting[call].cancel()
        else:
            self._infers.gone(call)

    # --- streams

    def _leave_some(self) -> None:
        for _ in range(min(LEAVING, len(self._leaving))):
            stream = self._streams.get(self._leaving.popleft())
            if stream is not None:
                stream[0].gone()
                stream[1].cancel()
        if self._leaving:
            asyncio.get_running_loop().call_soon(self._leave_some)

    def _open_stream(
        self, call: int, method: int, deadline_ns: int, metadata: Metadata, sender: Caller
    ) -> None:
        serve = self._methods.serves[method]
        assert serve is not None
        stream = NativeStream(self._server, call)
        terms = Terms(deadline_ns or NO_DEADLINE, metadata, sender, stream.handed, stream.end_input)
        behave = partial(serve, stream.read, stream.write, terms)
        remaining_s = (deadline_ns - self._inference.engine.now_ns()) / _NS if deadline_ns else None
        task = asyncio.get_running_loop().create_task(
            stream.serve(self._methods.paths[method], remaining_s, behave)
        )
        self._streams[call] = (stream, task)
        task.add_done_callback(partial(self._ended, call))

    def _ended(self, call: int, _: asyncio.Task[None]) -> None:
        del self._streams[call]


def _turned_away(peer: str, client: str, section: str) -> None:
    _LOG.warning(
        "a client was turned away: %s.tls_client_names has no %r, from %s",
        section,
        client,
        peer,
    )


def _not_shaken(peer: str, reason: str, text: str) -> None:
    _LOG.warning(
        "a TLS handshake at the gRPC port came to nothing (%s): %s, from %s; "
        "others like it are only counted for a minute",
        reason,
        text,
        peer,
    )


def _templates(
    server: NativeServer, services: Services, methods: Methods, direct: DirectEngine | None
) -> HttpTemplates | None:
    """Have ``server`` serve inferences by itself, alone, on streams and over HTTP, where workers have the means."""
    if direct is None:
        return None
    engine, fast_path = services.inference.engine, server.fast_path()
    if not direct.attach(fast_path, _INFER_INDEX):
        return None
    fast_path.serve_stream(methods.paths.index(INFER_STREAM), *services.window)
    heads = Heads(engine, fast_path, direct)
    services.inference.on_answer = GrpcTemplates(fast_path, engine, direct, heads).consider
    return HttpTemplates(fast_path, engine, direct, heads)
