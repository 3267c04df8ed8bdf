"""``/metrics``: a snapshot in the Prometheus text format, sent in slices.

A scrape runs on the loop that serves requests. It is one snapshot, and then text in slices of well under a
millisecond with the turn of others between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from aiohttp import web

from appliance.config.telemetry import MetricsConfig
from appliance.frontend.http.compression import compressor, response_encoding
from appliance.telemetry.metrics.engine import snapshot_families
from appliance.telemetry.metrics.exposition import CONTENT_TYPE, exposition
from appliance.telemetry.metrics.process import ProcessMetrics
from appliance.telemetry.metrics.versions import Labelled, labelled
from appliance.telemetry.snapshot import Snapshot

SLICE_CHARACTERS: Final = 32 * 1024
SLICE_VERSIONS: Final = 64


class MetricsHandler:
    """Handles ``GET /metrics``. ``read`` gives the figures of the moment."""

    def __init__(self, read: Callable[[], Snapshot], config: MetricsConfig) -> None:
        self._read = read
        self._config = config
        self._process = ProcessMetrics()

    async def metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        """All families."""
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        coding = response_encoding(request.headers.get("Accept-Encoding", ""), tensors=False)
        if coding:
            response.headers["Content-Encoding"] = coding
        await response.prepare(request)
        if request.method != "HEAD":
            snapshot = self._read()
            await _write(response, self._text(snapshot, await _all_labelled(snapshot)), coding)
        await response.write_eof()
        return response

    def _text(self, snapshot: Snapshot, versions: Sequence[Labelled]) -> Iterator[str]:
        yield self._process.text()
        yield from exposition(snapshot_families(snapshot, versions, self._config))


async def _all_labelled(snapshot: Snapshot) -> list[Labelled]:
    versions: list[Labelled] = []
    for version in snapshot.engine.versions:
        versions.append(labelled(version.statistics))
        if len(versions) % SLICE_VERSIONS == 0:
            await asyncio.sleep(0)
    return versions


async def _write(response: web.StreamResponse, pieces: Iterable[str], coding: str) -> None:
    squeeze = compressor(coding) if coding else None
    for text in _slices(pieces):
        data = text.encode()
        if squeeze is not None:
            data = squeeze.compress(data)
        if data:
            await response.write(data)
        await asyncio.sleep(0)
    if squeeze is not None:
        await response.write(squeeze.flush())


def _slices(pieces: Iterable[str]) -> Iterator[str]:
    gathered: list[str] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= SLICE_CHARACTERS:
            yield "".join(gathered)
            gathered, size = [], 0
    yield "".join(gathered)
