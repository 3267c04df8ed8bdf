"""Where a release is: a directory, such as a stick or a share, or a server that gives the same files by Range.

Nobody is believed here: what comes is bounded, and checked by who asked.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from appliance.domain.errors import ArtefactError, OperatorError
from appliance.domain.regular_file import read_file
from appliance.image.release import RELEASE, RELEASE_BYTES_MAX, SIGNATURE
from appliance.package.container import SIGNATURE_BYTES_MAX
from appliance.transfer.source import SILENCE_S, DirectorySource, HttpSource, Source

STREAMS: Final = "/streams/"
INDEXES: Final = "/indexes/"
PAPERS_S: Final = 600.0
"""How long a server may take for a release's papers, of some hundred bytes; a part may take as long as it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A release to be had: its papers as they are there (``envelope`` None: there is none), and its parts."""

    papers: bytes
    envelope: bytes | None
    source: Source


@asynccontextmanager
async def open_place(said: str) -> AsyncIterator[Place]:
    """The release at a URL or in a directory. Raises OperatorError where there is none."""
    if not said.startswith(("http://", "https://")):
        folder = Path(said)
        papers = _file(folder / RELEASE, RELEASE_BYTES_MAX)
        if papers is None:
            raise OperatorError(f"'{said}' has no {RELEASE}; give the directory or the URL of a release")
        yield Place(
            papers=papers,
            envelope=_file(folder / SIGNATURE, SIGNATURE_BYTES_MAX),
            source=DirectorySource(said, folder),
        )
        return
    base = said.rstrip("/")
    async with aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
        papers = await _get(session, f"{base}/{RELEASE}", RELEASE_BYTES_MAX)
        if papers is None:
            raise OperatorError(f"{base} has no {RELEASE}; give the directory or the URL of a release")
        yield Place(
            papers=papers,
            envelope=await _get(session, f"{base}/{SIGNATURE}", SIGNATURE_BYTES_MAX),
            source=HttpSource(base, base, lambda: session, streams=STREAMS, indexes=INDEXES),
        )


def _file(path: Path, limit: int) -> bytes | None:
    if not os.path.lexists(path):
        return None
    try:
        return read_file(str(path), limit, called=f"'{path}'")
    except ArtefactError as error:
        raise OperatorError(str(error)) from error


async def _get(session: aiohttp.ClientSession, url: str, limit: int) -> bytes | None:
    timeout = aiohttp.ClientTimeout(total=PAPERS_S, sock_connect=SILENCE_S, sock_read=SILENCE_S)
    found = bytearray()
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise OperatorError(f"{url} is answered with status {answer.status}")
            async for chunk in answer.content.iter_chunked(1 << 16):
                found += chunk
                if len(found) > limit:
                    raise OperatorError(f"'{url}' has more than the {limit} bytes that it may have")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        raise OperatorError(f"{url} cannot be had: {str(error)[:200] or type(error).__name__}") from error
    return bytes(found)
