"""One streaming RPC of the native front end: its events as functions to await.

Nothing is read ahead of what is asked for and nothing is written before the transport has room, so that both sides hold
one another back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from appliance.domain.errors import Cancelled, QuotaExceeded
from appliance.engine.port import Buffer
from appliance.frontend.grpc.status import Code, Status, status_for
from appliance.frontend.grpc.stream import Handed
from appliance.frontend.native.calls import end_call

if TYPE_CHECKING:
    from edge_appliance_native import NativeServer

DEADLINE_TEXT: Final = "Deadline Exceeded"
OK: Final = 0


class NativeStream:
    """The stream ``call``. Once its client is gone nothing here waits any more. Owner: the event loop's thread."""

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
