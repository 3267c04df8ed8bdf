"""The v2 REST protocol's questions about the server and its models. Inference is in inference.py.

What is live or ready says so in its body as well as by its status: Triton's clients look at the status, KServe's at the
body."""

from __future__ import annotations

from aiohttp import web

from appliance.domain.errors import NotReady, Stopping
from appliance.engine.port import EnginePort
from appliance.frontend.http.metadata import (
    model_config,
    model_metadata,
    server_metadata,
    statistics_document,
)
from appliance.frontend.http.status import json_response


class ProtocolHandler:
    """Handlers of health, metadata, configuration and statistics."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self.announced_stop = False

    async def server(self, request: web.BaseRequest) -> web.StreamResponse:
        """Name, version and extensions."""
        return json_response(server_metadata())

    async def live(self, request: web.BaseRequest) -> web.StreamResponse:
        """200 as long as the process answers at all."""
        return json_response({"live": True})

    async def ready(self, request: web.BaseRequest) -> web.StreamResponse:
        """200 when requests are welcome; raises Stopping while draining, NotReady during the first load."""
        if self.announced_stop or not self._engine.accepting:
            raise Stopping("Server is stopping")
        if not self._engine.ready:
            raise NotReady("models are still being loaded")
        return json_response({"ready": True})

    async def model_ready(self, request: web.BaseRequest, name: str, version: str = "") -> web.StreamResponse:
        """200 when the model can be asked; else the error that asking would give."""
        self._engine.resolve(name, version)
        if not self._engine.accepting:
            raise Stopping("Server is stopping")
        return json_response({"name": name, "ready": True})

    async def model(self, request: web.BaseRequest, name: str, version: str = "") -> web.StreamResponse:
        """Inputs, outputs and ready versions."""
        model = self._engine.resolve(name, version)
        return json_response(model_metadata(model, self._engine.versions(name)))

    async def config(self, request: web.BaseRequest, name: str, version: str = "") -> web.StreamResponse:
        """The configuration in force."""
        return json_response(model_config(self._engine.resolve(name, version)))

    async def statistics(
        self, request: web.BaseRequest, name: str = "", version: str = ""
    ) -> web.StreamResponse:
        """Counts and times per version."""
        return json_response(statistics_document(self._engine.statistics(name, version)))
