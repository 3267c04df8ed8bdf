"""The v2 REST protocol but inference: health, metadata, statistics, and the extensions that ask about the server
itself (model repository, logging, trace, shared memory).

What is live or ready says so in its body as well as by its status: Triton's clients look at the status, KServe's at the
body. Nothing here loads or unloads a model or changes a setting: what the network may not do is refused with the
reason.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from appliance.domain.errors import Forbidden, InvalidRequest, NotReady, Stopping, Unsupported
from appliance.frontend.documents import (
    index_document,
    model_config,
    model_metadata,
    server_metadata,
    statistics_document,
)
from appliance.frontend.http.body import BodyReader
from appliance.frontend.http.compression import Limit
from appliance.frontend.http.connection import connection_of
from appliance.frontend.http.json_document import check_nesting, parse_json
from appliance.frontend.http.status import json_response
from appliance.frontend.port import Backend, check_log_settings
from appliance.frontend.regions.region import Registered
from appliance.frontend.regions.registry import NO_DEVICE_MEMORY
from appliance.telemetry.trace import check_trace_setting, trace_settings

MAX_CONTROL_BYTES: Final = 64 * 1024
REGION_KEYS: Final = ("name", "key", "offset", "byte_size")


class ProtocolHandler:
    """Handlers of everything in the protocol but inference."""

    def __init__(self, backend: Backend, bodies: BodyReader) -> None:
        self._engine = backend.engine
        self._tracer = backend.tracer
        self._bodies = bodies
        self._turns = backend.turns
        self._log = backend.log
        self._server_name = backend.server_name
        self._regions = backend.regions

    async def server(self, request: web.BaseRequest) -> web.StreamResponse:
        """Name, version and extensions."""
        return json_response(server_metadata(self._server_name, self._regions.on))

    async def live(self, request: web.BaseRequest) -> web.StreamResponse:
        """200 as long as the process answers at all."""
        return json_response({"live": True})

    async def ready(self, request: web.BaseRequest) -> web.StreamResponse:
        """200 when requests are welcome; raises Stopping once the stop is announced, NotReady during the first load."""
        if not self._engine.accepting:
            raise Stopping("Server is stopping")
        if not self._engine.ready:
            raise NotReady("models are still being loaded")
        return json_response({"ready": True})

    async def model_ready(self, request: web.BaseRequest, name: str, version: str = "") -> web.StreamResponse:
        """200 when requests for the model are welcome; else the error that asking would give, now or soon."""
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
        return json_response(model_config(self._engine.in_force(name, version)))

    async def statistics(
        self, request: web.BaseRequest, name: str = "", version: str = ""
    ) -> web.StreamResponse:
        """Counts and times per version. Many that ask at once wait for one another."""
        await self._turns.next()
        return json_response(statistics_document(self._engine.statistics(name, version)))

    # --- extensions

    async def index(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every version known, with its state and reason; {"ready": true} leaves out what is not READY."""
        ready = (await self._object(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest(f"'ready' must be true or false, got {ready!r}")
        await self._turns.next()
        return json_response(index_document(self._engine.index(ready)))

    async def load(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        """Refused: models come from the model directory."""
        raise Forbidden(
            f"loading model '{name}' over the network is turned off; put it into the model directory, or load it over "
            "the control socket (control.socket)"
        )

    async def unload(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        """Refused: models leave with the model directory."""
        raise Forbidden(
            f"unloading model '{name}' over the network is turned off; take it out of the model directory, or unload "
            "it over the control socket (control.socket)"
        )

    async def log_settings(self, request: web.BaseRequest) -> web.StreamResponse:
        """The log settings in force."""
        return json_response(dict(self._log.settings()))

    async def update_log(self, request: web.BaseRequest) -> web.StreamResponse:
        """The settings in force, where none is to be changed; raises Forbidden for changes."""
        check_log_settings(self._log, await self._object(request))
        return await self.log_settings(request)

    async def trace_settings(self, request: web.BaseRequest, name: str = "") -> web.StreamResponse:
        """What is traced. A level is a list, any other setting a text."""
        if name:
            self._engine.versions(name)
        settings = trace_settings(self._tracer)
        return json_response(
            {key: list(words) if key == "trace_level" else words[0] for key, words in settings.items()}
        )

    async def update_trace(self, request: web.BaseRequest, name: str = "") -> web.StreamResponse:
        """Accepts what leaves tracing as it is; anything else is not offered."""
        for key, value in (await self._object(request)).items():
            check_trace_setting(self._tracer, key, value if isinstance(value, list) else [value])
        return await self.trace_settings(request, name)

    async def regions(self, request: web.BaseRequest, name: str = "") -> web.StreamResponse:
        """The client's regions of shared memory, or one of them."""
        found = self._regions.status(connection_of(request).user, name)
        return json_response([dict(zip(REGION_KEYS, each, strict=True)) for each in found])

    async def register(self, request: web.BaseRequest, name: str = "") -> web.StreamResponse:
        """Open a region of shared memory for the client."""
        user = connection_of(request).user
        self._regions.check(user)
        said = await self._object(request)
        key, offset, nbytes = (said.get(each) for each in REGION_KEYS[1:])
        if not isinstance(key, str):
            raise InvalidRequest(f"'key' of the region must be a string, got {key!r}")
        for called, number in (("offset", offset), ("byte_size", nbytes)):
            if type(number) is not int and not (called == "offset" and number is None):
                raise InvalidRequest(f"'{called}' of the region must be an integer, got {number!r}")
        self._regions.register(user, Registered(name, key, offset or 0, nbytes or 0))
        return json_response({})

    async def unregister(self, request: web.BaseRequest, name: str = "") -> web.StreamResponse:
        """Forget a region of the client's, or all of them."""
        self._regions.unregister(connection_of(request).user, name)
        return json_response({})

    async def device_regions(self, request: web.BaseRequest, name: str = "") -> web.StreamResponse:
        """None: the memory of devices is not shared with clients."""
        self._regions.check_device_regions(connection_of(request).user, name)
        return json_response([])

    async def unregister_device_region(self, request: web.BaseRequest, name: str = "") -> web.StreamResponse:
        """Nothing to forget; clients forget what they may have left before they begin."""
        self._regions.check(connection_of(request).user)
        return json_response({})

    async def no_device_memory(self, request: web.BaseRequest, *names: str) -> web.StreamResponse:
        """Refused: the memory of devices is not shared with clients."""
        raise Unsupported(NO_DEVICE_MEMORY)

    async def _object(self, request: web.BaseRequest) -> dict[str, Any]:
        held = await self._bodies.read(request, Limit(MAX_CONTROL_BYTES))
        self._bodies.release(held)
        if not held.data.strip():
            return {}
        document = parse_json(held.data)
        check_nesting(document)
        if not isinstance(document, dict):
            raise InvalidRequest("request must be a JSON object")
        return document
