"""Give the neighbours of this box the streams that lie in its spool: plain HTTP, read only, for a site's own network.

Nobody is asked who they are, and nobody believes what comes: the index of a stream is held to the signed document, and
its pieces to the index, by who fetches. Only whole streams are given. What a neighbour takes is bounded, so that it
does not keep this box from its work.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from aiohttp import web

from appliance.domain.digest import digests_of_file, is_digest
from appliance.fleet.messages import INDEXES, STREAMS
from appliance.transfer.pieces import index_bytes
from appliance.transfer.source import CHUNK_BYTES, STREAM_TYPE, Pace
from appliance.transfer.spool import Spool

ANSWERS_MAX: Final = 4
"""How many are given something at a time; others are told to come again."""
RATE: Final = 20e6
"""Bytes per second of all answers together."""
STALL_S: Final = 30.0
"""How long a neighbour may take none of what is sent."""
_RANGE: Final = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")


class NeighbourServer:
    """See the module. Owner: the event loop."""

    def __init__(self, spool: Spool, rate: float = RATE) -> None:
        self._spool = spool
        self._rate = rate
        self._free_at = 0.0
        self._answers = 0

    def application(self) -> web.Application:
        """What answers; who starts it gives it an address and bounds connections."""
        found = web.Application(client_max_size=0)
        found.router.add_get(STREAMS + "{digest}", self._stream)
        found.router.add_get(INDEXES + "{digest}", self._index)
        return found

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        return await self._bounded(request, lambda digest: _whole(self._spool.stream_files(digest)))

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return await self._bounded(request, self._find_index)

    def _find_index(self, digest: str) -> Path | None:
        for stream in self._spool.whole():
            path, index = self._spool.stream_files(stream)
            with suppress(OSError):  # one that is removed meanwhile
                if _whole((path, index)) and digests_of_file(index).digest == digest:
                    return index
        return None

    async def _bounded(self, request: web.Request, find: Callable[[str], Path | None]) -> web.StreamResponse:
        """Give what is found for the digest that is asked for; to look for it is work as well."""
        digest = request.match_info["digest"]
        if not is_digest(digest):
            raise web.HTTPNotFound
        if self._answers >= ANSWERS_MAX:
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "10"})
        self._answers += 1
        try:
            path = await asyncio.to_thread(find, digest)
            if path is None:
                raise web.HTTPNotFound
            return await self._give(request, path)
        finally:
            self._answers -= 1

    async def _give(self, request: web.Request, path: Path) -> web.StreamResponse:
        """The range that is asked for, at the rate that there is."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise web.HTTPNotFound from error
        try:
            size = os.fstat(descriptor).st_size
            asked = _RANGE.fullmatch(request.headers.get("Range", ""))
            first, last = (int(asked[1]), int(asked[2])) if asked else (0, -1)
            if not first <= last < size:
                raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"})
            answer = web.StreamResponse(
                status=206,
                headers={"Content-Range": f"bytes {first}-{last}/{size}", "Content-Type": STREAM_TYPE},
            )
            answer.content_length = last + 1 - first
            await answer.prepare(request)
            pace = Pace()
            while first <= last:
                length = min(CHUNK_BYTES, last + 1 - first)
                data = await asyncio.to_thread(os.pread, descriptor, length, first)
                if not data:
                    break  # it was cut meanwhile: the answer ends too early, which is noticed
                await self._turn(len(data))
                await asyncio.wait_for(answer.write(data), STALL_S)
                first += len(data)
                if not pace.is_kept(len(data)):
                    break  # others wait for the place
            return answer
        finally:
            os.close(descriptor)

    async def _turn(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._free_at = max(self._free_at, now) + count / self._rate
        await asyncio.sleep(self._free_at - now)


def _whole(files: tuple[Path, Path]) -> Path | None:
    """The stream of these files, where it is whole."""
    stream, index = files
    try:
        size, listed = stream.stat().st_size, index.stat().st_size
    except OSError:
        return None
    # One whose last piece is still coming looks whole; who asks for its last byte is refused.
    return stream if size and listed == index_bytes(size) else None
