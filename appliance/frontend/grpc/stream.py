"""One ModelStreamInfer: many requests over one stream, answered as they finish.

Errors travel in-band and the stream goes on, unless the client asked for real statuses: then the first error ends it.
What is under way is bounded by a window; beyond that nothing more is read, so the transport's flow control holds the
client back. So it does while the tensors of a request find no memory that others of its stream will give back. The end
of the client's side waits for all answers; a cancelled stream cancels what is under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from appliance.domain.errors import QuotaExceeded, Stopping
from appliance.domain.inference import Answer, Outcome
from appliance.engine.port import Buffer
from appliance.frontend.grpc.inference import NOBODY, Call, Caller, Inference, discard
from appliance.frontend.grpc.response import stream_error, stream_response
from appliance.frontend.grpc.status import Refused, Status, status_of
from appliance.frontend.turns import CLIENT

Read = Callable[[], Awaitable[Buffer | None]]
Write = Callable[[bytes], Awaitable[None]]


class Handed(NamedTuple):
    """What a transport that serves requests by itself knows of one that it hands over: how often workers died with it
    already, its deadline (0: that of the stream), why it is not to be served, if its client's quota forbids it, and
    when it arrived (0: now). The defaults are those of a message that was not tried yet."""

    attempts: int = 0
    deadline_ns: int = 0
    over_quota: QuotaExceeded | None = None
    arrived_ns: int = 0


class StreamWindow:
    """What of one stream may be under way, from when a message was read until its answer was written: at most
    ``requests``, and no more while their messages have ``nbytes`` together. Owner: the event loop's thread."""

    def __init__(self, requests: int, nbytes: int) -> None:
        self._requests = requests
        self._nbytes = nbytes
        self._released = asyncio.Event()

    async def opened(self) -> None:
        """Wait until one more may be read."""
        while self._requests <= 0 or self._nbytes <= 0:
            await self.released()

    def take(self, nbytes: int) -> None:
        """A request whose message has ``nbytes`` is under way."""
        self._requests -= 1
        self._nbytes -= nbytes

    def release(self, nbytes: int) -> None:
        """It is no longer."""
        self._requests += 1
        self._nbytes += nbytes
        self._released.set()

    async def released(self) -> None:
        """Wait until the next one is under way no longer."""
        self._released.clear()
        await self._released.wait()


class _Refusal(NamedTuple):
    """What a Refused says. The exception itself is never kept: its traceback holds every frame that it came through,
    and with them the message, which may lie in memory that the front end counts."""

    status: Status
    request_id: str


class _Finished(NamedTuple):
    """Something to write: an outcome of a call, or why a message never became one; and how long the message was."""

    call: Call | None
    outcome: Outcome | _Refusal
    nbytes: int


class StreamSession:
    """Serves one stream; ``caller`` gives the sender of the message that came now, ``handed`` what is known of it. With
    ``end_input``, a transport that serves requests of this stream by itself, stopping takes the rest of what it has
    read. Owner: the task that awaits ``run``; outcomes come on the same thread."""

    def __init__(
        self,
        inference: Inference,
        window: StreamWindow,
        deadline_ns: int,
        real_statuses: bool,
        caller: Callable[[], Caller] = lambda: NOBODY,
        handed: Callable[[], Handed] = Handed,
        end_input: Callable[[], None] | None = None,
    ) -> None:
        self._inference = inference
        self._caller = caller
        self._handed = handed
        self._end_input = end_input
        self._window = window
        self._deadline_ns = deadline_ns
        self._real_statuses = real_statuses
        self._open: dict[int, int] = {}
        self._calls = 0
        self._finished: deque[_Finished] = deque()
        self._news = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._reading = False
        self._stopping = False
        self._closed = False

    async def run(self, read: Read, write: Write) -> None:
        """Serve until the client's side ended and everything is answered. ``read`` gives None at the end of the
        client's side. Raises Refused to end the stream with a status."""
        self._inference.tally.streams += 1
        self._reader = asyncio.create_task(self._read_all(read))
        self._reader.add_done_callback(self._read_ended)
        if self._stopping:
            self._end_reading()
        try:
            await self._write_all(write, self._reader)
        finally:
            self._abandon()
            self._inference.tally.streams -= 1
            self._reader.cancel()
            # Not awaited itself: its cancellation could not be told from that of the task that runs this.
            await asyncio.wait((self._reader,))
        if self._stopping:
            raise Refused(status_of(Stopping("Server is stopping")))

    def stop(self) -> None:
        """Read no more; the stream ends when what was read is answered."""
        self._stopping = True
        self._end_reading()

    def _end_reading(self) -> None:
        if self._end_input is not None:
            self._end_input()
        elif self._reader is not None and self._reading:
            self._reader.cancel()

    async def _read_all(self, read: Read) -> None:
        while not self._stopping or self._end_input is not None:
            self._reading = True
            await self._window.opened()
            message = await read()
            self._reading = False  # a stop leaves what was read to be answered
            if message is None:
                return
            await self._take(message)
            del message  # its memory is not an idle stream's

    def _read_ended(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled():
            reader.exception()  # looked at, so that it is not logged where the stream ends for another reason
        self._news.set()

    async def _take(self, message: Buffer) -> None:
        self._inference.tally.requests += 1
        self._calls = number = self._calls + 1
        nbytes = len(message)
        self._window.take(nbytes)
        try:
            handed = self._handed()
            if handed.over_quota is not None:
                raise self._inference.over_quota(handed.over_quota, message)
            checked = await self._checked(message)
            call = checked.without_message()

            def on_done(outcome: Outcome) -> None:
                if self._closed:
                    discard(outcome)
                    return
                del self._open[number]
                self._put(_Finished(call, outcome, nbytes))

            self._open[number] = self._inference.submit(
                checked, handed.deadline_ns or self._deadline_ns, on_done, handed.attempts, handed.arrived_ns
            )
        except Refused as refused:
            self._put(_Finished(None, _Refusal(refused.status, refused.request_id), nbytes))

    async def _checked(self, message: Buffer) -> Call:
        """The call in ``message``, once there is memory for it, or nothing of this stream that has some. Raises
        Refused."""
        caller = self._caller()
        CLIENT.set(caller.account)
        take = self._inference.turns.take
        try:
            call = await take(self._inference.check(message, caller))
            while self._must_wait(call):
                while self._must_wait(call):
                    await self._window.released()
                checked = self._inference.check(message, caller)  # what serves may be another by now
                call = await take(checked)
        except asyncio.CancelledError:
            self._inference.tally.cancelled += 1
            raise
        return call

    def _must_wait(self, call: Call) -> bool:
        return bool(self._open or self._finished) and not self._inference.has_memory(call)

    def _put(self, finished: _Finished) -> None:
        self._finished.append(finished)
        self._news.set()

    async def _write_all(self, write: Write, reader: asyncio.Task[None]) -> None:
        while True:
            self._news.clear()
            while self._finished:
                finished = self._finished.popleft()
                await write(await self._encode(finished))
                self._window.release(finished.nbytes)
            if reader.done() and not self._open and not self._finished:
                if not reader.cancelled():
                    reader.result()
                return
            await self._news.wait()

    async def _encode(self, finished: _Finished) -> bytes:
        call, outcome, _ = finished
        if isinstance(outcome, _Refusal):
            return self._tell(outcome)
        assert call is not None
        CLIENT.set(call.caller.account)
        final = True if call.intake.empty_final_response else None
        try:
            return await self._inference.answered(call, outcome, lambda parts: stream_response(parts, final))
        except Refused as refused:
            refusal = _Refusal(refused.status, refused.request_id)
        return self._tell(refusal)

    def _tell(self, refusal: _Refusal) -> bytes:
        """The message about ``refusal``; raises Refused where the client asked for the status."""
        if self._real_statuses:
            raise Refused(refusal.status, refusal.request_id)
        return stream_error(refusal.request_id, refusal.status.text)

    def _abandon(self) -> None:
        """Drop what waits and tell the engine about the rest: the client reads no more."""
        self._closed = True
        tally = self._inference.tally
        for call, outcome, _ in self._finished:
            if call is not None:
                tally.cancelled += 1
            if isinstance(outcome, Answer):
                outcome.release()
        self._finished.clear()
        for handle in self._open.values():
            tally.cancelled += 1
            self._inference.engine.cancel(handle)
