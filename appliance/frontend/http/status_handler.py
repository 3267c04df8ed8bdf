"""``/status.json`` and the status page at ``/``.

Both are written on the loop that serves requests, so long lists are written in slices with the turn of others between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final

from aiohttp import web

from appliance.frontend.http.status_page import PageParts, model_rows, page_text
from appliance.telemetry.snapshot import Snapshot
from appliance.telemetry.status_document import model_document, status_header

SLICE_MODELS: Final = 8
NO_STORE: Final = "no-store"


class StatusHandler:
    """Handles ``GET /`` and ``GET /status.json``. ``read`` gives the figures of the moment."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read
        self._parts = PageParts.load()

    async def document(self, request: web.BaseRequest) -> web.StreamResponse:
        """The status document; docs/STATUS.md describes it."""
        snapshot = self._read()
        header = status_header(snapshot)
        del header["models"]
        models: list[str] = []
        for version in snapshot.engine.versions:
            models.append(json.dumps(model_document(version), separators=(",", ":")))
            await _turn(len(models))
        text = f'{json.dumps(header, separators=(",", ":"))[:-1]},"models":[{",".join(models)}]}}'
        return web.Response(
            body=text.encode(), content_type="application/json", headers={"Cache-Control": NO_STORE}
        )

    async def page(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page for people."""
        snapshot = self._read()
        status = snapshot.engine
        workers = {worker.worker: worker for worker in status.workers}
        rows: list[str] = []
        for version in status.versions:
            rows.append(model_rows(version, workers))
            await _turn(len(rows))
        trouble = "" if snapshot.store is None else snapshot.store.trouble
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
