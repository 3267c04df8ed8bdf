"""A thin link that flaps: a way over TCP that carries so many bytes a second and is gone now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

PIECE_BYTES: Final = 4096


class Link(Protocol):
    """A way from one box to the controller. ``url`` is the controller as the box reaches it; the box's commands run
    ``within`` these words; ``down_bytes`` came over it to the box."""

    up: bool
    within: tuple[str, ...]

    @property
    def url(self) -> str: ...

    @property
    def down_bytes(self) -> int: ...

    def cut(self) -> None:
        """The link is gone."""

    def mend(self) -> None:
        """The link is back."""

    async def close(self) -> None:
        """End everything."""


class FlappingLink:
    """From an address of its own to ``target`` (host, port), ``rate`` bytes per second in each direction for all
    connections together. ``cut`` ends all that there are and refuses others until ``mend``. Owner: one event loop."""

    def __init__(self, target: tuple[str, int], rate: float) -> None:
        self.target = target
        self.rate = rate
        self.up = True
        self.port = 0
        self._down_bytes = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._free_at = {True: 0.0, False: 0.0}
        self.within: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """See Link."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def down_bytes(self) -> int:
        """See Link."""
        return self._down_bytes

    async def start(self) -> None:
        """Listen at ``port``."""
        # Small buffers, so that what is on its way at a cut is little, as on a thin link.
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0, limit=4 * PIECE_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """The link is gone."""
        self.up = False
        for writer in tuple(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        """The link is back."""
        self.up = True

    async def close(self) -> None:
        """End everything."""
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.up:
            writer.transport.abort()
            return
        self._open.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_connection(*self.target, limit=4 * PIECE_BYTES)
            self._open.add(far)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, far, outwards=True))
                tasks.create_task(self._copy(far_reader, writer, outwards=False))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (writer, far):
                if end is not None:
                    self._open.discard(end)
                    end.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, outwards: bool
    ) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._wait(len(piece), outwards=outwards)
            writer.write(piece)
            await writer.drain()
            if not outwards:
                self._down_bytes += len(piece)
        with suppress(OSError, RuntimeError):
            writer.write_eof()

    async def _wait(self, size: int, *, outwards: bool) -> None:
        now = asyncio.get_running_loop().time()
        begins = max(self._free_at[outwards], now)
        self._free_at[outwards] = begins + size / self.rate
        if begins > now:
            await asyncio.sleep(begins - now)


async def flap(link: Link, up_s: float, down_s: float, tell: Callable[[bool], None]) -> None:
    """Cut the link and mend it in turns, for ever; ``tell`` hears of it."""
    while True:
        await asyncio.sleep(up_s)
        link.cut()
        tell(False)
        await asyncio.sleep(down_s)
        link.mend()
        tell(True)
