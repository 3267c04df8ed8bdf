"""One inference from the bytes of its message to the bytes of its answer, whatever the transport is.

A client may go at any moment: the engine is told, and an answer that comes too late is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from appliance.domain.classification import asked_outputs
from appliance.domain.errors import ApplianceError, DeadlineExpired, QuotaExceeded
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome
from appliance.domain.protocol import RegionPart
from appliance.domain.steps import Steps
from appliance.engine.port import NO_HEADERS, Buffer, EnginePort, Submission
from appliance.frontend.grpc.envelope import EnvelopeLimits, request_id_text, scan
from appliance.frontend.grpc.request import Intake, take_in
from appliance.frontend.grpc.response import response_parts
from appliance.frontend.grpc.status import Refused, inference_status
from appliance.frontend.regions.registry import NOBODYS, Regions
from appliance.frontend.regions.users import UNKNOWN_USER
from appliance.frontend.regions.window import NO_PARTS, put_outputs
from appliance.frontend.turns import CLIENT, Turns
from appliance.telemetry.trace import TRACEPARENT, Trace, Tracer

T = TypeVar("T")
_NS = 1_000_000_000


class Caller(NamedTuple):
    """The sender of a message: ``client`` by its certificate (empty: that is not known); where it is noted how the
    message fares, if it is; what it brought of the metadata that the engine wants; ``account``, as quotas tell clients
    apart; and ``user``, its number on this machine, where the transport knows it."""

    client: str = ""
    trace: Trace | None = None
    headers: Mapping[str, str] = NO_HEADERS
    account: str = ""
    user: int = UNKNOWN_USER


NOBODY: Final = Caller()


class Call(NamedTuple):
    """A message taken apart and checked, not yet given to the engine."""

    request_id: str
    intake: Intake
    caller: Caller

    def without_message(self) -> Call:
        """What encoding the answer takes. As soon as the engine has its copy the message can go: thousands may be
        queued, and what is large lies in memory that the front end counts."""
        return self._replace(intake=self.intake._replace(tensors=()))


class Tally:
    """What went through a server since it opened. ``requests`` counts inferences taken in, ``answered`` those that
    ended with tensors, ``failed`` with a status or an error on their stream, ``cancelled`` those whose client went
    away; ``streams`` are the ModelStreamInfer RPCs open now. Owner: the event loop's thread."""

    __slots__ = ("answered", "cancelled", "failed", "requests", "streams")

    def __init__(self) -> None:
        self.requests = self.answered = self.failed = self.cancelled = self.streams = 0


class Inference:
    """Takes inferences to the engine and back."""

    def __init__(
        self,
        engine: EnginePort,
        limits: EnvelopeLimits,
        tracer: Tracer | None = None,
        turns: Turns | None = None,
        regions: Regions = NOBODYS,
    ) -> None:
        self.engine = engine
        self._regions = regions
        self.turns = turns or Turns()
        self.tracer = tracer
        self.on_answer: Callable[[Intake, Answer, str], None] | None = None
        """Gets each answer, which is not yet released, to make a template of its request, and whose that was."""
        self.tally = Tally()
        self._limits = limits
        self._loop = asyncio.get_running_loop()

    def deadline_ns(self, remaining_s: float | None) -> int:
        """The engine's time ``remaining_s`` seconds from now, NO_DEADLINE for None."""
        if remaining_s is None:
            return NO_DEADLINE
        return min(self.engine.now_ns() + int(remaining_s * _NS), NO_DEADLINE)

    async def unary(self, message: bytes, remaining_s: float | None, caller: Caller = NOBODY) -> bytes:
        """Serve one ModelInferRequest; gives the serialised ModelInferResponse. ``remaining_s`` are the seconds left
        until the transport's deadline (None: it has none). Raises Refused."""
        self.tally.requests += 1
        if remaining_s is not None and remaining_s <= 0:
            raise self.expired()
        future: asyncio.Future[Outcome] = self._loop.create_future()
        CLIENT.set(caller.account)
        call = await self.turns.take(self.check(message, caller))
        handle = self.submit(call, self.deadline_ns(remaining_s), _resolver(future))
        try:
            outcome = await future
        except asyncio.CancelledError:
            self.tally.cancelled += 1
            if not future.cancelled():
                discard(future.result())
            self.engine.cancel(handle)
            raise
        return await self.answered(call, outcome, b"".join)

    def caller(
        self, sender: Caller, rpc: str, arrived_ns: int, metadata: Iterable[tuple[str, str | bytes]]
    ) -> Caller:
        """``sender`` with what it says by a message of ``rpc`` that arrived at ``arrived_ns``, with these
        ``metadata``."""
        wanted = self.engine.wanted_headers
        if wanted:
            metadata = tuple(metadata)
            said = {key: value for key, value in metadata if key in wanted and isinstance(value, str)}
            sender = sender._replace(headers=said)
        if self.tracer is None:
            return sender
        parent = next((value for key, value in metadata if key == TRACEPARENT), "")
        return sender._replace(
            trace=self.tracer.begin(rpc, arrived_ns, parent if isinstance(parent, str) else "")
        )

    @property
    def nosy(self) -> bool:
        """Whether metadata matter now."""
        return self.tracer is not None or bool(self.engine.wanted_headers)

    def check(self, message: Buffer, caller: Caller = NOBODY) -> Steps[Call]:
        """Take a message apart and check it against what the engine serves now; raises Refused."""
        request_id = ""
        try:
            envelope = scan(message, self._limits)
            request_id = request_id_text(envelope.request_id)
            intake = yield from take_in(envelope, self.engine, self._limits, self._regions, caller.user)
            return Call(request_id, intake, caller)
        except ApplianceError as error:
            self.engine.rejected(error, request_id, caller.client)
            raise self.refused(error, request_id) from error

    def has_memory(self, call: Call) -> bool:
        """Whether there is memory for the tensors of a checked call now."""
        return self.engine.has_memory(call.intake.plan, call.intake.tensors)

    def submit(
        self,
        call: Call,
        deadline_ns: int,
        on_done: Callable[[Outcome], None],
        attempts: int = 0,
        arrived_ns: int = 0,
    ) -> int:
        """Give a checked call to the engine; gives its handle. ``attempts``: how often workers died with it already;
        ``arrived_ns``: when it arrived, 0 for now. Raises Refused."""
        try:
            submission = Submission(
                plan=call.intake.plan,
                request_id=call.request_id,
                arrived_ns=arrived_ns or self.engine.now_ns(),
                deadline_ns=deadline_ns,
                on_done=on_done,
                attempts=attempts,
                client=call.caller.client,
                account=call.caller.account,
                trace=call.caller.trace,
                headers=call.caller.headers,
            )
            return self.engine.submit(submission, call.intake.tensors)
        except ApplianceError as error:
            self._answered(call.caller)
            raise self.refused(error, call.request_id) from error

    async def answered(self, call: Call, outcome: Outcome, join: Callable[[list[Buffer]], T]) -> T:
        """As ``encode``, in turns, once outputs are in shared memory that are to go there."""
        written = NO_PARTS
        if call.intake.windows and isinstance(outcome, Answer):
            try:
                outcome, written = await put_outputs(outcome, call.intake.windows)
            except ApplianceError as error:
                outcome = error.with_traceback(None)  # which has this frame: a cycle would keep the regions
        return await self.turns.take(self.encode(call, outcome, join, written))

    def encode(
        self,
        call: Call,
        outcome: Outcome,
        join: Callable[[list[Buffer]], T],
        written: Mapping[str, RegionPart] = NO_PARTS,
    ) -> Steps[T]:
        """What ``join`` makes of the pieces of the ModelInferResponse, which it must copy: their memory is given back
        when it returns, or when nobody waits for it any more. Of outputs that were ``written`` elsewhere it tells
        where. Raises Refused when the outcome is an error."""
        if not isinstance(outcome, Answer):
            self._answered(call.caller)
            raise self.refused(outcome, call.request_id) from outcome
        try:
            if self.on_answer is not None:
                self.on_answer(call.intake, outcome, call.caller.account)
            outputs, head = outcome.outputs, call.intake.plan.head
            if head.outputs:
                outputs = yield from asked_outputs(outcome, head)
            encoded = join(response_parts(call.request_id.encode(), outcome.model, outputs, written))
        except ApplianceError as error:
            raise self.refused(error, call.request_id) from error
        finally:
            outcome.release()
            self._answered(call.caller)
        self.tally.answered += 1
        return encoded

    def _answered(self, caller: Caller) -> None:
        if caller.trace is not None and self.tracer is not None:
            self.tracer.end(caller.trace, caller.client)

    def over_quota(self, error: QuotaExceeded, message: Buffer = b"") -> Refused:
        """The refusal of a request that its client's quota forbids: of the message nothing is read but its id, and it
        counts for no model."""
        request_id = ""
        if message:
            with suppress(ApplianceError):
                request_id = request_id_text(scan(message, self._limits).request_id)
        return self.refused(error, request_id)

    def expired(self) -> Refused:
        """The refusal of a request whose deadline passed before it was looked at. It is not waited for any more: under
        overload every microsecond spent on it would make the next one late too."""
        return self.refused(DeadlineExpired("Request timeout expired before it was read"), "")

    def refused(self, error: ApplianceError, request_id: str) -> Refused:
        """Count an error and put it into the client's words."""
        self.tally.failed += 1
        return Refused(inference_status(error, request_id), request_id)


def discard(outcome: Outcome) -> None:
    """Give back the memory of an answer that is not waited for."""
    if isinstance(outcome, Answer):
        outcome.release()


def _resolver(future: asyncio.Future[Outcome]) -> Callable[[Outcome], None]:
    def resolve(outcome: Outcome) -> None:
        if future.done():
            discard(outcome)
        else:
            future.set_result(outcome)

    return resolve
