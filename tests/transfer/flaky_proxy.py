"""A link between a client and a server on this machine: slow, cut off again and again, counted."""

from __future__ import annotations

import asyncio
from contextlib import suppress

BLOCK_BYTES = 16 << 10


class FlakyProxy:
    """Passes TCP connections on to ``target``; bytes to the client at ``rate`` per second for all of them together.
    ``sent`` counts these; ``drop`` cuts all connections off."""

    def __init__(self, target: tuple[str, int], rate: float) -> None:
        self.sent = 0
        self._target = target
        self._block_s = BLOCK_BYTES / rate
        self._free_at = 0.0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Its port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def drop(self) -> None:
        """Cut all connections off."""
        for writer in self._open:
            writer.transport.abort()

    def close(self) -> None:
        """Take no more."""
        if self._server:
            self._server.close()
        self.drop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(*self._target, limit=2 * BLOCK_BYTES)
        except OSError:
            writer.transport.abort()
            return
        writers = (writer, to_server)
        self._open.update(writers)
        up = asyncio.create_task(self._up(reader, to_server))
        try:
            with suppress(OSError):
                while data := await from_server.read(BLOCK_BYTES):
                    await self._turn(len(data))
                    writer.write(data)
                    self.sent += len(data)
                    await writer.drain()
        finally:
            up.cancel()
            self._open.difference_update(writers)
            for each in writers:
                each.close()

    async def _turn(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        self._free_at = max(self._free_at, loop.time() - self._block_s) + self._block_s * count / BLOCK_BYTES
        await asyncio.sleep(self._free_at - loop.time())

    async def _up(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(BLOCK_BYTES):
                to_server.write(data)
                await to_server.drain()
        to_server.close()
