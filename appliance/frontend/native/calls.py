"""Calls between the native front end and the engine: each ModelInfer without a task or a future, one small object per
request; each streaming RPC as functions to await.

Of a stream nothing is read ahead of what is asked for and nothing is written before the transport has room, so that
both sides hold one another back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from appliance.domain.errors import Cancelled, QuotaExceeded
from appliance.domain.inference import NO_DEADLINE, Outcome
from appliance.domain.steps import Steps
from appliance.engine.port import Buffer
from appliance.frontend.grpc.inference import NOBODY, Call, Caller, Inference, discard
from appliance.frontend.grpc.services import INFER
from appliance.frontend.grpc.status import BROKEN, Refused, Status, status_for
from appliance.frontend.grpc.stream import Handed
from appliance.frontend.statuses import Code
from appliance.frontend.turns import CLIENT

if TYPE_CHECKING:
    from edge_appliance_native import NativeServer

_BROKEN_STATUS: Final = Status(Code.INTERNAL, BROKEN)
_LOG = logging.getLogger(__name__)

KEPT_BYTES_MAX: Final = 1024
"""Messages up to this size stay until they are answered: they weigh no more than what is kept of a request anyway, and
letting go of them would cost every small request a microsecond."""


class InferCalls:
    """The ModelInfer calls that are under way. Owner: the event loop's thread."""

    def __init__(self, server: NativeServer, inference: Inference) -> None:
        self._server = server
        self._inference = inference
        self._open: dict[int, _OpenCall] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self,
        call: int,
        message: Any,
        deadline_ns: int,
        attempts: int = 0,
        caller: Caller = NOBODY,
        arrived_ns: int = 0,
    ) -> None:
        """Serve ``call``; its answer follows. ``message`` is as the server gives it; ``deadline_ns`` is on the engine's
        clock, 0 for none; ``attempts``: how often workers died with it already; ``arrived_ns``: when it came to the
        server, where it may have waited, 0 for now."""
        self._inference.tally.requests += 1
        waiting = self._open[call] = _OpenCall(self, call, caller.account)
        self._go_on(waiting, self._submitting(waiting, message, deadline_ns, attempts, caller, arrived_ns))

    def gone(self, call: int) -> None:
        """The client of ``call`` went away: its outcome is not wanted."""
        waiting = self._open.pop(call, None)
        if waiting is not None:
            waiting.gone = True
            if waiting.task is not None:
                waiting.task.cancel()
            if waiting.outcome is not None:  # its task has not begun, and never will
                discard(waiting.outcome)
            self._inference.tally.cancelled += 1
            if waiting.handle >= 0:
                self._inference.engine.cancel(waiting.handle)

    def abandon(self) -> None:
        """The server was closed: every client went away."""
        for call in tuple(self._open):
            self.gone(call)

    def end(self, waiting: _OpenCall, outcome: Outcome) -> None:
        """Answer with ``outcome``."""
        assert waiting.checked is not None
        if waiting.checked.intake.windows:
            waiting.outcome = outcome
            waiting.task = asyncio.get_running_loop().create_task(self._putting(waiting))
        else:
            self._go_on(waiting, self._answering(waiting, outcome))

    def reply(self, call: int, parts: list[Buffer]) -> bool:
        """Answer ``call``; its client may have gone meanwhile, of which the server tells by itself."""
        return self._server.reply(call, parts)

    def _submitting(
        self,
        waiting: _OpenCall,
        message: Any,
        deadline_ns: int,
        attempts: int,
        caller: Caller,
        arrived_ns: int,
    ) -> Steps[None]:
        inference = self._inference
        if deadline_ns and deadline_ns <= inference.engine.now_ns():
            raise inference.expired()
        checked = yield from inference.check(view_of(message), caller)
        small = type(message) is bytes and len(message) <= KEPT_BYTES_MAX
        waiting.checked = checked if small else checked.without_message()
        waiting.handle = inference.submit(
            checked, deadline_ns or NO_DEADLINE, waiting.done, attempts, arrived_ns
        )

    async def _putting(self, waiting: _OpenCall) -> None:
        """As ``_answering``, where outputs go to shared memory."""
        outcome, waiting.outcome = waiting.outcome, None
        assert waiting.checked is not None
        assert outcome is not None
        CLIENT.set(waiting.client)
        try:
            await self._inference.answered(waiting.checked, outcome, waiting.reply)
            self._open.pop(waiting.call, None)
        except Exception as error:  # noqa: BLE001
            self._fail(waiting, error)
        finally:
            waiting.task = None

    def _answering(self, waiting: _OpenCall, outcome: Outcome) -> Steps[None]:
        assert waiting.checked is not None
        yield from self._inference.encode(waiting.checked, outcome, waiting.reply)
        self._open.pop(waiting.call, None)

    def _go_on(self, waiting: _OpenCall, steps: Steps[None]) -> None:
        """Do ``steps``, now if there is but one, and end the call where they fail: a defect ends its own request, not
        the engine that tells the outcome."""
        try:
            next(steps)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001
            self._fail(waiting, error)
        else:
            waiting.task = asyncio.get_running_loop().create_task(self._in_turns(waiting, steps))

    async def _in_turns(self, waiting: _OpenCall, steps: Steps[None]) -> None:
        turns = self._inference.turns
        CLIENT.set(waiting.client)
        try:
            await turns.next()
            await turns.take(steps)
        except Exception as error:  # noqa: BLE001
            self._fail(waiting, error)
        finally:
            steps.close()
            waiting.task = None

    def _fail(self, waiting: _OpenCall, error: Exception) -> None:
        self._open.pop(waiting.call, None)
        if isinstance(error, Refused):
            end_call(self._server, waiting.call, error.status)
            return
        self._inference.tally.failed += 1
        end_call(self._server, waiting.call, status_for(error, INFER))


def view_of(message: Any) -> Buffer:
    """A message as the server gives it: small ones are ``bytes``, large ones lie in its own memory, which the view
    keeps alive."""
    return message if type(message) is bytes else memoryview(message)


def end_call(server: NativeServer, call: int, status: Status) -> None:
    """End ``call`` with ``status``, or with INTERNAL when the server cannot send that. Never raises: outcomes are told
    by the engine, which must not break over a text."""
    for each in (status, _BROKEN_STATUS):
        try:
            server.finish(call, each.code, each.text, each.metadata)
            return
        except Exception:  # noqa: BLE001  whatever it is, the client waits for an end
            _LOG.error("the server cannot send %r", each, exc_info=True)


class _OpenCall:
    """One call of ``client``, which the engine has once it has a handle; the ``task`` does what takes long for it."""

    __slots__ = ("_calls", "call", "checked", "client", "gone", "handle", "outcome", "task")

    def __init__(self, calls: InferCalls, call: int, client: str) -> None:
        self._calls = calls
        self.call = call
        self.client = client
        self.checked: Call | None = None
        self.task: asyncio.Task[None] | None = None
        self.outcome: Outcome | None = None
        self.handle = -1
        self.gone = False

    def done(self, outcome: Outcome) -> None:
        """The engine's ``on_done``."""
        if self.gone:
            discard(outcome)
        else:
            self._calls.end(self, outcome)

    def reply(self, parts: list[Buffer]) -> bool:
        """Send the answer's pieces, which are copied here."""
        return self._calls.reply(self.call, parts)


DEADLINE_TEXT: Final = "Deadline Exceeded"
OK: Final = 0


class NativeStream:
    """The stream ``call``. Once that is gone nothing here waits any more. Owner: the event loop's
    thread."""

    def __init__(self, server: NativeServer, call: int) -> None:
        self._server = server
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._message: asyncio.Future[Buffer | None] | None = None
        self._handed = Handed()
        self._room: asyncio.Future[None] | None = None

    # --- what serves it

    async def read(self) -> Buffer | None:
        """The next message; None when the client's side has ended. Raises Cancelled when the client is gone."""
        if not self._server.read(self._call):
            raise _cancelled()
        self._message = self._loop.create_future()
        try:
            return await self._message
        finally:
            self._message = None  # with the message in it, whose memory is not an idle stream's

    def handed(self) -> Handed:
        """What is known of the message that was read last."""
        return self._handed

    def end_input(self) -> None:
        """Have no more read from the client; ``read`` gives what is still to be handed over, then None."""
        self._server.stop_reading(self._call)

    async def write(self, message: bytes) -> None:
        """Send a message as soon as the one before it has left. Raises Cancelled when the client is gone."""
        await self._left()
        if not self._server.send(self._call, message):
            raise _cancelled()
        self._room = self._loop.create_future()

    async def serve(self, rpc: str, remaining_s: float | None, behave: Callable[[], Awaitable[None]]) -> None:
        """Run ``behave``, which reads and writes, and end the stream as it ends, after ``remaining_s`` seconds at the
        latest; ``rpc`` is named in the log."""
        status: Status | None = None
        try:
            async with asyncio.timeout(remaining_s):
                try:
                    await behave()
                except Exception as error:  # noqa: BLE001  a defect ends its own stream
                    status = status_for(error, rpc)
                await self._left()
        except TimeoutError:
            status = Status(Code.DEADLINE_EXCEEDED, DEADLINE_TEXT)
        if status is None:
            self._server.finish(self._call, OK)
        else:
            end_call(self._server, self._call, status)

    # --- the server's events

    def received(
        self,
        message: Buffer | None,
        attempts: int = 0,
        deadline_ns: int = 0,
        over: tuple[int, str] | None = None,
        arrived_ns: int = 0,
    ) -> None:
        """MESSAGE."""
        refusal = None if over is None else QuotaExceeded(over[1], max(over[0], 0))
        self._handed = Handed(attempts, deadline_ns, refusal, arrived_ns)
        waiting = self._message
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def sent(self) -> None:
        """SENT."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def gone(self) -> None:
        """GONE. Neither MESSAGE nor SENT will come, so what waits for one is let go. Cancelling the task that serves
        is not enough: it may have been about to be cancelled for another reason and go on to its end."""
        if self._message is not None:
            self._message.cancel()
        self.sent()

    async def _left(self) -> None:
        """Wait until the last message was taken by the transport."""
        if self._room is not None and not self._room.done():
            # Shielded: to stop waiting must not make it look as if there were room.
            await asyncio.shield(self._room)


def _cancelled() -> Cancelled:
    return Cancelled("the client is gone")
