"""Answering inference requests: body to plan, plan to engine, answer to bytes.

A client that goes away cancels its handler, and with it the request in the engine; an answer that comes too
late is still released. Every error text carries the request id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from aiohttp import web

from appliance.config.http import HttpConfig
from appliance.domain.errors import ApplianceError, MessageTooLarge
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome
from appliance.domain.validation import plan_request
from appliance.engine.port import NO_HEADERS, Buffer, EnginePort, Submission
from appliance.frontend.http.body import Body, BodyReader, HeldBody
from appliance.frontend.http.compression import COMPRESS_MIN_BYTES, fold, response_encoding
from appliance.frontend.http.connection import (
    account_of,
    check_unread,
    client_name,
    count_unread,
    take_arrival,
    take_attempts,
)
from appliance.frontend.http.infer_request import (
    HEAD_LENGTH_HEADER,
    head_length,
    parse_head,
    raw_head,
    split_id,
    tensors_of,
)
from appliance.frontend.http.infer_response import InferResponse, copied_outputs, encode, expected_bytes
from appliance.frontend.http.plan_cache import PlanCache, Planned
from appliance.frontend.http.status import error_response
from appliance.frontend.http.templates import TemplateKeeper, TemplateMaker
from appliance.frontend.port import Backend
from appliance.frontend.quota.quotas import Account, Quotas
from appliance.telemetry.trace import TRACEPARENT, Trace

EDGE: Final = "http"
SEPARATE_BYTES: Final = 64 * 1024
"""Answers from this size on go to the transport part by part: joining them would copy every tensor again."""


class Exchange:
    """One request on its way through the handler. Owner: the task that handles it."""

    __slots__ = ("arrived_ns", "attempts", "client", "head", "headers", "request_id", "target", "trace")

    def __init__(self, arrived_ns: int, trace: Trace | None, target: str, attempts: int, client: str) -> None:
        self.arrived_ns = arrived_ns
        self.headers = NO_HEADERS
        self.target = target
        self.attempts = attempts
        self.client = client
        self.request_id = ""
        self.trace = trace
        self.head = b""
        """What makes requests like it recognisable, if there may be a template of them."""


class Pending:
    """A request that the engine has; waits for its outcome."""

    __slots__ = ("_engine", "_future", "_handle")

    def __init__(
        self, engine: EnginePort, planned: Planned, tensors: Sequence[Buffer], exchange: Exchange
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
    """Handles ``POST /v2/models/NAME[/versions/VERSION]/infer``; ``keeper`` gets templates of what was served once."""

    def __init__(
        self,
        backend: Backend,
        config: HttpConfig,
        bodies: BodyReader,
        keeper: TemplateKeeper | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas
        self._templates = None if keeper is None else TemplateMaker(keeper, backend.engine)
        self._engine = backend.engine
        self._tracer = backend.tracer
        self._config = config
        self._bodies = bodies
        self._plans = PlanCache()

    async def infer(self, request: web.BaseRequest, name: str, version: str = "") -> web.StreamResponse:
        """Answer one request; errors become error answers."""
        arrived_ns = take_arrival(request) or self._engine.now_ns()
        tracer = self._tracer
        traceparent = request.headers.get(TRACEPARENT, "") if tracer else ""
        trace = tracer.begin(EDGE, arrived_ns, traceparent) if tracer else None
        exchange = Exchange(arrived_ns, trace, request.raw_path, take_attempts(request), client_name(request))
        if wanted := self._engine.wanted_headers:
            exchange.headers = {key: request.headers[key] for key in wanted if key in request.headers}
        account: Account | None = None
        try:
            account = self._metered(request)
            planned, pending = await self._checked(request, name, version, exchange)
            response = await self._encoded(request, planned, await pending.answer(), exchange)
            response = await self._folded(request, response)
        except ApplianceError as error:
            count_unread(request, 0)
            return error_response(error, f"[request id: {exchange.request_id or '<id_unknown>'}] {error}")
        finally:
            if account is not None:
                account.give()
            if tracer and exchange.trace:
                tracer.end(exchange.trace, exchange.client)
        return await self._send(request, response)

    def _metered(self, request: web.BaseRequest) -> Account | None:
        """What is to be told when ``request`` has ended. Raises QuotaExceeded, before anything of its body is read."""
        quotas = self._quotas
        if quotas is None or not quotas.on:
            return None
        account = account_of(request)
        return account if account is not None and quotas.enter(account) else None

    async def _checked(
        self, request: web.BaseRequest, name: str, version: str, exchange: Exchange
    ) -> tuple[Planned, Pending]:
        """Read, check and hand to the engine, which copies the tensors: the body is free again after this. What is
        refused before that is counted and logged, as if the engine had refused it."""
        try:
            check_unread(request)
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
    ) -> tuple[HeldBody, Planned, Sequence[Buffer]]:
        """Read and check; the body is held on."""
        held = await self._bodies.read(request, self._config.max_body_bytes)
        try:
            body = held.data
            length = head_length(request.headers.get(HEAD_LENGTH_HEADER), len(body))
            planned = self._plan(body, length, name, version, exchange)
            return held, planned, tensors_of(planned.request, planned.plan, memoryview(body)[length:])
        except BaseException:
            self._bodies.release(held)
            raise

    def _plan(self, body: Body, length: int, name: str, version: str, exchange: Exchange) -> Planned:
        if length == 0 and body:
            return self._raw_plan(name, version, len(body))
        if length > self._config.max_json_bytes:
            raise MessageTooLarge(
                f"request has {length} bytes of JSON, more than the limit of {self._config.max_json_bytes} bytes; "
                "send large tensors as binary tensor data"
            )
        whole = bytes(memoryview(body)[:length])
        exchange.request_id, text = split_id(whole)
        generation = self._engine.generation
        planned = self._plans.get((name, version, text), generation)
        if planned is None:
            head = parse_head(text, name, version)
            exchange.request_id = exchange.request_id or head.request_id
            plan = self._engine.plan(head.head)
            planned = Planned(request=head, plan=plan, generation=generation)
            self._plans.put((name, version, text), planned)
        exchange.request_id = exchange.request_id or planned.request.request_id
        if self._templates is not None:
            exchange.head = self._templates.head_of(exchange.target, whole, planned)
        return planned

    def _raw_plan(self, name: str, version: str, nbytes: int) -> Planned:
        generation = self._engine.generation
        model = self._engine.resolve(name, version)
        head = raw_head(model, version, nbytes)
        return Planned(request=head, plan=plan_request(model, head.head), generation=generation)

    async def _encoded(
        self, request: web.BaseRequest, planned: Planned, answer: Answer, exchange: Exchange
    ) -> InferResponse:
        try:
            count_unread(request, sum(len(output.data) for output in answer.outputs))
            outputs = copied_outputs(answer, planned.plan.head)
        finally:
            answer.release()
        asked, request_id = planned.request, exchange.request_id
        count_unread(request, expected_bytes(outputs, asked.binary_outputs, asked.binary_default))
        encoded = await encode(
            outputs,
            answer.model,
            request_id,
            asked.binary_outputs,
            asked.binary_default,
            self._config.max_json_answer_bytes,
        )
        count_unread(request, encoded.size)
        own = answer.model is planned.plan.model  # another version answers where the planned one failed
        if self._templates is not None and exchange.head and own:
            self._templates.consider(exchange.head, planned, outputs)
        return encoded

    async def _folded(self, request: web.BaseRequest, answer: InferResponse) -> InferResponse:
        """``answer`` as its client accepts it."""
        accepted, size = request.headers.get("Accept-Encoding", ""), answer.size
        if not accepted or size < COMPRESS_MIN_BYTES:
            return answer
        coding = response_encoding(accepted, tensors=answer.binary)
        if not coding:
            return answer
        count_unread(request, 2 * size)
        parts = [await fold(answer.parts, coding)]
        count_unread(request, len(parts[0]))
        return replace(answer, parts=parts, coding=coding)

    async def _send(self, request: web.BaseRequest, answer: InferResponse) -> web.StreamResponse:
        headers = {"Content-Type": "application/octet-stream" if answer.binary else "application/json"}
        if answer.binary:
            headers[HEAD_LENGTH_HEADER] = str(answer.head_bytes)
        if answer.coding:
            headers["Content-Encoding"] = answer.coding
        parts, size = answer.parts, answer.size
        if size < SEPARATE_BYTES or len(parts) == 1:
            return web.Response(body=b"".join(parts) if len(parts) > 1 else parts[0], headers=headers)
        return await _send_parts(request, parts, size, headers)


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
