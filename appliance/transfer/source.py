"""Where bytes of streams come from: a port, and the places that there are.

A source may lie, break off or be somebody else's (a captive portal that answers 200 with a page): it says so by
SourceFailed where it can be told here, and the pieces tell it where it cannot. Nothing is asked of it but bytes.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import aiohttp

from appliance.domain.errors import ApplianceError
from appliance.fleet.messages import INDEXES, STREAMS
from appliance.transfer.pieces import DIGEST_BYTES

CHUNK_BYTES: Final = 64 << 10
SILENCE_S: Final = 30.0
"""How long a source may send nothing."""
PACE_BYTES: Final = 1 << 20
"""What is given at a site in PACE_S at least: what only drips keeps away what other sources would give."""
PACE_S: Final = 30.0
STREAM_TYPE: Final = "application/octet-stream"
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


class SourceTrouble(StrEnum):
    """Why a source gave nothing, or no more."""

    UNREACHABLE = "unreachable"
    BROKEN_OFF = "broken off"
    NOT_THERE = "not there"
    REFUSED = "refused"
    NOT_THE_STREAM = "not the stream"
    """What answered speaks of something else: a portal, a proxy, another server."""


class SourceFailed(ApplianceError):
    """A source that could not give what was asked of it; ``trouble`` says why, for programs."""

    def __init__(self, trouble: SourceTrouble, text: str) -> None:
        super().__init__(text)
        self.trouble = trouble


class Pace:
    """Whether bytes come, or are taken, as fast as they must. ``now_s`` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since_s = now_s()
        self._count = 0

    def is_kept(self, count: int) -> bool:
        """Whether it is, with so many bytes more."""
        self._count += count
        now_s = self._now_s()
        if now_s - self._since_s < PACE_S:
            return True
        kept = self._count >= PACE_BYTES
        self._since_s, self._count = now_s, 0
        return kept


class Source(Protocol):
    """See the module. ``name`` is for people; ``over_link``: what comes from there goes over the link to the
    controller, whose bytes are counted."""

    name: str
    over_link: bool

    async def index(self, stream: str, index: str, pieces: int) -> bytes:
        """The index with the digest ``index`` of the stream, of so many pieces. Raises SourceFailed."""

    def read(self, stream: str, offset: int, size: int) -> AsyncGenerator[bytes, None]:
        """The bytes of a stream of ``size`` bytes from ``offset`` on, as they come. Raises SourceFailed."""


class HttpSource:
    """A controller, a neighbour at the same site, or a server of files: ``base`` is its URL, ``streams`` and
    ``indexes`` say where below it they are. ``session`` is the owner's. What does not go over the link keeps a
    pace."""

    def __init__(
        self,
        name: str,
        base: str,
        session: Callable[[], aiohttp.ClientSession],
        *,
        over_link: bool = True,
        streams: str = STREAMS,
        indexes: str = INDEXES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.over_link = over_link
        self._streams = streams
        self._indexes = indexes
        self._base = base.rstrip("/")
        self._session = session
        self._now_s = now_s

    async def index(self, stream: str, index: str, pieces: int) -> bytes:
        """See Source."""
        found = bytearray()
        length = DIGEST_BYTES * pieces
        async for chunk in self._get(f"{self._indexes}{index}", 0, length):
            found += chunk
        return bytes(found)

    def read(self, stream: str, offset: int, size: int) -> AsyncGenerator[bytes, None]:
        """See Source."""
        return self._get(f"{self._streams}{stream}", offset, size)

    async def _get(self, path: str, offset: int, size: int) -> AsyncGenerator[bytes, None]:
        """Bytes from ``offset`` to ``size``, exactly."""
        headers = {"Range": f"bytes={offset}-{size - 1}", "Accept-Encoding": "identity"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
        left, pace = size - offset, Pace(self._now_s)
        try:
            async with self._session().get(
                self._base + path, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                self._check(answer, offset, size)
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    left -= len(chunk)
                    if left < 0:
                        raise SourceFailed(
                            SourceTrouble.NOT_THE_STREAM, f"{self.name} sends more than was asked for"
                        )
                    if not (self.over_link or pace.is_kept(len(chunk))):
                        raise SourceFailed(SourceTrouble.BROKEN_OFF, f"{self.name} gives next to nothing")
                    yield chunk
        except TimeoutError as error:
            raise SourceFailed(
                SourceTrouble.BROKEN_OFF, f"{self.name} was silent for {SILENCE_S:g} s"
            ) from error
        except aiohttp.ClientConnectorError as error:
            text = f"{self.name} cannot be reached: {error.os_error.strerror or error.os_error}"
            raise SourceFailed(SourceTrouble.UNREACHABLE, text) from error
        except (aiohttp.ClientError, OSError) as error:
            raise SourceFailed(
                SourceTrouble.BROKEN_OFF, f"{self.name} broke off: {type(error).__name__}"
            ) from error
        if left:
            raise SourceFailed(SourceTrouble.BROKEN_OFF, f"{self.name} ended {left} bytes too early")

    def _check(self, answer: aiohttp.ClientResponse, offset: int, size: int) -> None:
        """Raise SourceFailed where what begins is not what was asked for."""
        if answer.status == 404:
            raise SourceFailed(SourceTrouble.NOT_THERE, f"{self.name} does not have it")
        if answer.status >= 400:
            raise SourceFailed(SourceTrouble.REFUSED, f"{self.name} refuses it with status {answer.status}")
        said = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        told = (answer.status, answer.content_type, said and tuple(map(int, said.groups())))
        if told != (206, STREAM_TYPE, (offset, size - 1, size)):
            text = f"what answers at {self.name} is not it: status {answer.status}, {answer.content_type}"
            raise SourceFailed(SourceTrouble.NOT_THE_STREAM, text)


class DirectorySource:
    """A directory with ``streams/DIGEST`` and ``indexes/DIGEST``, as a bundle has them: a USB stick, a share."""

    over_link = False

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder

    async def index(self, stream: str, index: str, pieces: int) -> bytes:
        """See Source."""
        found = bytearray()
        async for chunk in self._read("indexes", index, 0, DIGEST_BYTES * pieces):
            found += chunk
        return bytes(found)

    def read(self, stream: str, offset: int, size: int) -> AsyncGenerator[bytes, None]:
        """See Source."""
        return self._read("streams", stream, offset, size)

    async def _read(self, kind: str, digest: str, offset: int, size: int) -> AsyncGenerator[bytes, None]:
        path = self._folder / kind / digest
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SourceFailed(SourceTrouble.NOT_THERE, f"{self.name} does not have it") from error
        except OSError as error:
            raise SourceFailed(
                SourceTrouble.REFUSED, f"{self.name} cannot be read: {error.strerror}"
            ) from error
        try:
            while offset < size:
                chunk = await asyncio.to_thread(os.pread, descriptor, min(CHUNK_BYTES, size - offset), offset)
                if not chunk:
                    raise SourceFailed(
                        SourceTrouble.BROKEN_OFF, f"{self.name} ended {size - offset} bytes too early"
                    )
                offset += len(chunk)
                yield chunk
        except OSError as error:
            raise SourceFailed(
                SourceTrouble.BROKEN_OFF, f"{self.name} cannot be read: {error.strerror}"
            ) from error
        finally:
            os.close(descriptor)
