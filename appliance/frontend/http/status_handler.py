"""``/status.json`` and the status page at ``/``.

Both are written on the loop that serves requests, so long lists are written in slices with everybody's turn between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

from aiohttp import web

from appliance.engine.port import EnginePort
from appliance.frontend.http.overview import overview
from appliance.frontend.http.status_document import model_document, status_header
from appliance.frontend.http.status_page import PageParts, model_rows, page_text
from appliance.frontend.quota.quotas import Quotas
from appliance.telemetry.store_metrics import StoreFigures

SLICE_MODELS: Final = 8
NO_STORE: Final = "no-store"


class StatusHandler:
    """Handles ``GET /`` and ``GET /status.json``. ``store`` gives the figures of the store that is served from,
    ``quotas`` those of clients' quotas."""

    def __init__(
        self,
        engine: EnginePort,
        store: Callable[[], StoreFigures] | None,
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas
        self._engine = engine
        self._store = store
        self._parts = PageParts.load()

    async def document(self, request: web.BaseRequest) -> web.StreamResponse:
        """The status document; docs/STATUS.md describes it."""
        status = overview(self._engine)
        store = None if self._store is None else self._store()
        header = status_header(status, store, None if self._quotas is None else self._quotas.figures())
        del header["models"]
        models: list[str] = []
        for version in status.versions:
            models.append(json.dumps(model_document(version), separators=(",", ":")))
            await _turn(len(models))
        text = f'{json.dumps(header, separators=(",", ":"))[:-1]},"models":[{",".join(models)}]}}'
        return web.Response(
            body=text.encode(), content_type="application/json", headers={"Cache-Control": NO_STORE}
        )

    async def page(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page for people."""
        status = overview(self._engine)
        workers = {worker.worker: worker for worker in status.workers}
        rows: list[str] = []
        for version in status.versions:
            rows.append(model_rows(version, workers))
            await _turn(len(rows))
        trouble = "" if self._store is None else self._store().trouble
        text = page_text(status, "".join(rows), self._parts, trouble)
        return web.Response(
            body=text.encode(), content_type="text/html", charset="utf-8", headers=self._headers()
        )

    def _headers(self) -> dict[str, str]:
        return {
            "Cache-Control": NO_STORE,
            "Content-Security-Policy": self._parts.content_security_policy(),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }


async def _turn(done: int) -> None:
    if done % SLICE_MODELS == 0:
        await asyncio.sleep(0)
