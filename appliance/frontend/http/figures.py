"""The figures of the moment: ``/metrics`` in the Prometheus text format, ``/status.json``, and the pages for people
at ``/`` and ``/models/NAME``.

All are written on the loop that serves requests: one snapshot, and then text in slices of well under a millisecond with
the turn of others between them. Each begins with its own turn, so that many that ask at once wait for one another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aiohttp import web

from appliance.domain.errors import UnknownModel
from appliance.frontend.http.compression import response_encoding
from appliance.frontend.http.model_page import model_main
from appliance.frontend.http.page import PageParts, framed
from appliance.frontend.http.status_page import TITLE, energy_cells, energy_columns, model_rows, overview
from appliance.frontend.port import Backend
from appliance.telemetry.metrics.engine import snapshot_families
from appliance.telemetry.metrics.exposition import (
    CONTENT_TYPE,
    OPENMETRICS,
    OPENMETRICS_END,
    OPENMETRICS_TYPE,
    exposition,
)
from appliance.telemetry.metrics.process import ProcessMetrics
from appliance.telemetry.metrics.versions import Labelled, labelled
from appliance.telemetry.snapshot import Snapshot
from appliance.telemetry.status_document import model_document, status_header

SLICE_CHARACTERS: Final = 32 * 1024
SLICE_VERSIONS: Final = 64
SLICE_MODELS: Final = 8
NO_STORE: Final = "no-store"
_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?", re.ASCII)


class FiguresHandler:
    """Handles ``GET /metrics``, ``/status.json``, ``/`` and ``/models/NAME``."""

    def __init__(self, backend: Backend) -> None:
        self._read = backend.read
        self._recent = backend.recent
        self._history = backend.history
        self._config = backend.metrics
        self._turns = backend.turns
        self._process = ProcessMetrics()
        self._parts = PageParts.load()

    async def metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        """All families, as OpenMetrics for who would rather have that."""
        openmetrics = prefers_openmetrics(request.headers.get("Accept", ""))
        kind = OPENMETRICS_TYPE if openmetrics else CONTENT_TYPE
        response = web.StreamResponse(headers={"Content-Type": kind, "Vary": "Accept"})
        coding = response_encoding(request.headers.get("Accept-Encoding", ""), tensors=False)
        if coding:
            response.enable_compression(web.ContentCoding(coding))
        await response.prepare(request)
        if request.method != "HEAD":
            await self._turns.next()
            snapshot = self._read()
            for text in _slices(self._text(snapshot, await self._labelled(snapshot), openmetrics)):
                await response.write(text.encode())
                await self._turns.next()
        await response.write_eof()
        return response

    async def document(self, request: web.BaseRequest) -> web.StreamResponse:
        """The status document; docs/STATUS.md describes it."""
        await self._turns.next()
        snapshot = self._read()
        header = status_header(snapshot)
        models: list[str] = []
        for version in snapshot.engine.versions:
            rates = self._recent.rates(version.name, version.version)
            models.append(json.dumps(model_document(version, rates), separators=(",", ":")))
            if len(models) % SLICE_MODELS == 0:
                await self._turns.next()
        text = f'{json.dumps(header, separators=(",", ":"))[:-1]},"models":[{",".join(models)}]}}'
        return web.Response(
            body=text.encode(), content_type="application/json", headers={"Cache-Control": NO_STORE}
        )

    async def page(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page of all models."""
        await self._turns.next()
        snapshot = self._read()
        workers = {worker.worker: worker for worker in snapshot.engine.workers}
        columns = energy_columns(snapshot)
        rows: list[str] = []
        for version in snapshot.engine.versions:
            rows.append(model_rows(version, workers, self._recent, energy_cells(snapshot, version, columns)))
            if len(rows) % SLICE_MODELS == 0:
                await self._turns.next()
        return self._page(framed(snapshot, self._parts, TITLE, overview(snapshot, "".join(rows))))

    async def model_page(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        """The page of one model."""
        await self._turns.next()
        snapshot = self._read()
        if not any(each.name == name for each in snapshot.engine.versions):
            raise UnknownModel(f"no model is called '{name}'; the page at / lists those that there are")
        main = model_main(snapshot, name, self._recent, self._history(name))
        return self._page(framed(snapshot, self._parts, name, main, "../"))

    def _page(self, text: str) -> web.StreamResponse:
        return web.Response(
            body=text.encode(), content_type="text/html", charset="utf-8", headers=self._headers()
        )

    async def _labelled(self, snapshot: Snapshot) -> list[Labelled]:
        versions: list[Labelled] = []
        for version in snapshot.engine.versions:
            versions.append(labelled(version.statistics))
            if len(versions) % SLICE_VERSIONS == 0:
                await self._turns.next()
        return versions

    def _headers(self) -> dict[str, str]:
        return {
            "Cache-Control": NO_STORE,
            "Content-Security-Policy": self._parts.content_security_policy(),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    def _text(self, snapshot: Snapshot, versions: Sequence[Labelled], openmetrics: bool) -> Iterator[str]:
        yield self._process.text(openmetrics=openmetrics)
        families = snapshot_families(snapshot, versions, self._config, exemplars=openmetrics)
        yield from exposition(families, openmetrics=openmetrics)
        if openmetrics:
            yield OPENMETRICS_END


def prefers_openmetrics(accept: str) -> bool:
    """Whether a client that says ``accept`` names that format, and none of plain text that it likes better."""
    weights = {"text/plain": 0.0, OPENMETRICS: 0.0}
    for item in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        if kind in weights:
            weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
            weights[kind] = max(weights[kind], float(weight) if _WEIGHT.fullmatch(weight) else 0.0)
    return weights[OPENMETRICS] > 0 and weights[OPENMETRICS] >= weights["text/plain"]


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
