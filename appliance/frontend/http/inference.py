"""Answering inference requests: body to plan, plan to engine, answer to bytes.

A client that goes away cancels its handler, and with it the request in the engine; an answer that comes too
late is still released. Error texts carry the request id as ``inference_text`` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from aiohttp import web

from appliance.config.http import HttpConfig
from appliance.domain.errors import ApplianceError, MessageTooLarge
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome, OutputTensor
from appliance.engine.port import NO_HEADERS, EnginePort, Submission, Tensor
from appliance.frontend.http.body import Body, BodyReader, HeldBody
from appliance.frontend.http.compression import COMPRESS_MIN_BYTES, PIECE_BYTES, Limit, response_encoding
from appliance.frontend.http.connection import Connection, connection_of
from appliance.frontend.http.infer_request import (
    HEAD_LENGTH_HEADER,
    JSON_BYTES_MAX,
    InferHead,
    Planned,
    head_length,
    id_of,
    parse_document,
    parse_head,
    raw_request,
    tensors_of,
)
from appliance.frontend.http.infer_response import InferResponse, copied_outputs, encode, expected_bytes
from appliance.frontend.http.status import error_response
from appliance.frontend.port import Backend
from appliance.frontend.quotas import Account, Quotas
from appliance.frontend.regions.window import put_outputs
from appliance.frontend.statuses import inference_text
from appliance.telemetry.trace import TRACEPARENT, Trace

EDGE: Final = "http"
SEPARATE_BYTES: Final = 64 * 1024
"""Answers from this size on go to the transport part by part: joining them would copy every tensor again."""


class Templates(Protocol):
    """Templates of requests, by which the native front end serves by itself what was read, checked and answered here
    once. All calls come from the event loop's thread."""

    def head_of(self, target: str, text: bytes, planned: Planned) -> bytes:
        """What makes requests recognisable that have this target, are as ``planned`` and have the JSON ``text`` before
        their binary tensors, whatever their id is and whatever tensors are in that JSON; empty: they are not worth a
        template."""

    def consider(self, head: bytes, planned: Planned, outputs: Sequence[OutputTensor], client: str) -> None:
        """Make a template for requests with ``head``, which ``client`` brought, are as ``planned`` and have such
        ``outputs``, if there is none."""


class Exchange:
    """One request on its way through the handler. Owner: the task that handles it."""

    __slots__ = (
        "account",
        "arrived_ns",
        "attempts",
        "client",
        "connection",
        "head",
        "headers",
        "request_id",
        "target",
        "trace",
    )

    def __init__(self, arrived_ns: int, trace: Trace | None, target: str, connection: Connection) -> None:
        self.arrived_ns = arrived_ns
        self.connection = connection
        self.headers = NO_HEADERS
        self.target = target
        self.attempts = connection.take_attempts()
        self.account = connection.sender
        self.client = connection.client
        self.request_id = ""
        self.trace = trace
        self.head = b""
        """What makes requests like it recognisable, if there may be a template of them."""


class Pending:
    """A request that the engine has; waits for its outcome."""

    __slots__ = ("_engine", "_future", "_handle")

    def __init__(
        self, engine: EnginePort, planned: Planned, tensors: Sequence[Tensor], exchange: Exchange
    ) -> None:
        self._engine = engine
        self._future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        submission = Submission(
            plan=planned.plan,
            request_id=exchange.request_id,
            arrived_ns=exchange.arrived_ns,
            deadline_ns=NO_DEADLINE,
            on_done=self._done,
            trace=exchange.trace,
            attempts=exchange.attempts,
            client=exchange.client,
            account=exchange.account,
            headers=exchange.headers,
        )
        self._handle = engine.submit(submission, tensors)

    def _done(self, outcome: Outcome) -> None:
        if not self._future.done():
            self._future.set_result(outcome)
        elif isinstance(outcome, Answer):
            outcome.release()

    async def answer(self) -> Answer:
        """The answer, or the error raised. Cancelled: the engine is told, and nothing stays unreleased."""
        try:
            outcome = await self._future
        except asyncio.CancelledError:
            if self._future.done() and not self._future.cancelled():
                self._future = _released(self._future)
            self._engine.cancel(self._handle)
            raise
        if isinstance(outcome, Answer):
            return outcome
        try:
            raise outcome
        finally:
            del outcome, self._future  # the error's traceback holds this frame: they would make it a cycle


def _released(future: asyncio.Future[Outcome]) -> asyncio.Future[Outcome]:
    """The answer came in the very turn in which the client went: give its memory back."""
    outcome = future.result()
    if isinstance(outcome, Answer):
        outcome.release()
    return future


class InferenceHandler:
    """Handles ``POST /v2/models/NAME[/versions/VERSION]/infer``; ``templates`` are made of what was served once."""

    def __init__(
        self,
        backend: Backend,
        config: HttpConfig,
        bodies: BodyReader,
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas
        self.templates: Templates | None = None
        self._engine = backend.engine
        self._turns = backend.turns
        self._tracer = backend.tracer
        self._config = config
        self._bodies = bodies
        self._regions = backend.regions

    async def infer(self, request: web.BaseRequest, name: str, version: str = "") -> web.StreamResponse:
        """Answer one request; errors become error answers."""
        connection = connection_of(request)
        arrived_ns = connection.arrived_ns or self._engine.now_ns()
        tracer = self._tracer
        traceparent = request.headers.get(TRACEPARENT, "") if tracer else ""
        trace = tracer.begin(EDGE, arrived_ns, traceparent) if tracer else None
        exchange = Exchange(arrived_ns, trace, request.raw_path, connection)
        if wanted := self._engine.wanted_headers:
            exchange.headers = {key: request.headers[key] for key in wanted if key in request.headers}
        account: Account | None = None
        try:
            account = self._metered(connection)
            planned, pending = await self._checked(request, name, version, exchange)
            response = await self._encoded(connection, planned, await pending.answer(), exchange)
            coding = _coding(request, connection, response)
        except ApplianceError as error:
            connection.count_unread(0)
            return error_response(error, inference_text(error, exchange.request_id, str(error)))
        finally:
            if account is not None:
                account.give()
            if tracer and exchange.trace:
                tracer.end(exchange.trace, exchange.client)
        return await _send(request, response, coding)

    def _metered(self, connection: Connection) -> Account | None:
        """What is to be told when the request has ended. Raises QuotaExceeded, before anything of its body is read."""
        quotas = self._quotas
        if quotas is None or not quotas.on:
            return None
        account = connection.account
        return account if account is not None and quotas.enter(account) else None

    async def _checked(
        self, request: web.BaseRequest, name: str, version: str, exchange: Exchange
    ) -> tuple[Planned, Pending]:
        """Read, check and hand to the engine, which copies the tensors: the body is free again after this. What is
        refused before that is counted and logged, as if the engine had refused it."""
        try:
            connection_of(request).check_unread()
            held, planned, tensors = await self._enter(request, name, version, exchange)
        except ApplianceError as error:
            self._engine.rejected(error, exchange.request_id, exchange.client)
            raise
        try:
            return planned, Pending(self._engine, planned, tensors, exchange)
        finally:
            self._bodies.release(held)

    async def _enter(
        self, request: web.BaseRequest, name: str, version: str, exchange: Exchange
    ) -> tuple[HeldBody, Planned, Sequence[Tensor]]:
        """Read and check; the body is held on."""
        held = await self._bodies.read(request, Limit(self._config.max_body_bytes, "http.max_body_bytes"))
        try:
            body = held.data
            header = request.headers.get(HEAD_LENGTH_HEADER)
            length = head_length(header, len(body))
            binary = memoryview(body)[length:]
            if header is not None and length == 0:
                planned, binary = self._raw(name, version, binary)
            else:
                planned = await self._plan(body, length, name, version, exchange)
            tensors = await self._turns.take(tensors_of(planned.request, planned.plan, binary))
            if planned.generation != self._engine.generation:  # others had their turns meanwhile
                planned = self._planned(planned.request)
            return held, planned, tensors
        except BaseException:
            self._bodies.release(held)
            raise

    async def _plan(self, body: Body, length: int, name: str, version: str, exchange: Exchange) -> Planned:
        if length > JSON_BYTES_MAX:
            raise MessageTooLarge(
                f"request has {length} bytes of JSON, more than the limit of {JSON_BYTES_MAX} bytes; "
                "send large tensors as binary tensor data"
            )
        text = bytes(memoryview(body)[:length])
        document = await self._turns.take(parse_document(text))
        exchange.request_id = id_of(document)
        self._engine.resolve(name, version)  # what is unknown is told before what is wrong
        head = parse_head(document, name, version, self._regions, exchange.connection)
        planned = self._planned(head)
        if self.templates is not None and not head.in_regions:
            exchange.head = self.templates.head_of(exchange.target, text, planned)
        return planned

    def _planned(self, request: InferHead) -> Planned:
        return Planned(
            request=request, plan=self._engine.plan(request.head), generation=self._engine.generation
        )

    def _raw(self, name: str, version: str, body: memoryview) -> tuple[Planned, memoryview]:
        """The plan of a body without a head, and its tensor."""
        head, tensor = raw_request(self._engine.resolve(name, version), version, body)
        return self._planned(head), tensor

    async def _encoded(
        self, connection: Connection, planned: Planned, answer: Answer, exchange: Exchange
    ) -> InferResponse:
        answer, written = await put_outputs(answer, planned.request.windows)
        try:
            connection.count_unread(sum(len(output.data) for output in answer.outputs))
            outputs = await self._turns.take(copied_outputs(answer, planned.plan.head))
        finally:
            answer.release()
        asked, request_id = planned.request, exchange.request_id
        connection.count_unread(expected_bytes(outputs, asked.binary_outputs, asked.binary_default))
        encoded = await encode(
            outputs,
            answer.model,
            request_id,
            asked.binary_outputs,
            asked.binary_default,
            self._config.max_json_answer_bytes,
            self._turns,
            written,
        )
        connection.count_unread(encoded.size)
        own = answer.model is planned.plan.model  # another version answers where the planned one failed
        if self.templates is not None and exchange.head and own and connection.account is not None:
            self.templates.consider(exchange.head, planned, outputs, connection.account.client)
        return encoded


def _coding(request: web.BaseRequest, connection: Connection, answer: InferResponse) -> str:
    """How ``answer`` is compressed for its client, "" for not at all; the copy that this takes counts as well. Raises
    AnswersFull."""
    accepted, size = request.headers.get("Accept-Encoding", ""), answer.size
    if not accepted or size < COMPRESS_MIN_BYTES:
        return ""
    coding = response_encoding(accepted, tensors=answer.binary)
    if coding:
        connection.count_unread(2 * size)
    return coding


async def _send(request: web.BaseRequest, answer: InferResponse, coding: str) -> web.StreamResponse:
    headers = {"Content-Type": "application/octet-stream" if answer.binary else "application/json"}
    if answer.binary:
        headers[HEAD_LENGTH_HEADER] = str(answer.head_bytes)
    parts, size = answer.parts, answer.size
    if not coding and size >= SEPARATE_BYTES and len(parts) > 1:
        return await _send_parts(request, parts, size, headers)
    body = b"".join(parts) if len(parts) > 1 else parts[0]
    response = web.Response(body=body, headers=headers, zlib_executor_size=PIECE_BYTES)
    if coding:
        response.enable_compression(web.ContentCoding(coding))
    return response


async def _send_parts(
    request: web.BaseRequest, parts: Sequence[bytes], size: int, headers: dict[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    response.content_length = size
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    await response.write_eof()
    return response
