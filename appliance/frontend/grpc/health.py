"""Which services are healthy (the server, the inference service, each model, each version), and the standard service
that says so, ``grpc.health.v1``: asked once, or watched until the end is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum
from itertools import islice
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from appliance.domain.errors import InvalidRequest, UnknownModel
from appliance.engine.port import Buffer, EnginePort
from appliance.frontend.grpc.stream import Read, Write

SERVICE: Final = "inference.GRPCInferenceService"
SERVER_SERVICES = frozenset({"", SERVICE})


HEALTH_SERVICE = "grpc.health.v1.Health"
FILE: bytes = health_pb2.DESCRIPTOR.serialized_pb
"""The service's description, serialised."""

Known = dict[str, tuple[str, str]]
"""Model name and version ("": the server's choice) of each service that there is."""
WOKEN: Final = 128
"""Watches that look in one turn of the loop whether there is something to tell."""
_NAME_CHARACTERS_MAX = 1024
_TOLD_CHARACTERS_MAX = 200


class Health(IntEnum):
    """States as ``grpc.health.v1`` numbers them."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


def health_of(engine: EnginePort, service: str) -> Health:
    """The state of ``service``: "" or the inference service's name for the server, a model's name, or
    ``name/version``."""
    if service in SERVER_SERVICES:
        return _serving(engine.ready)
    return _model_health(engine, service, _known(engine))


def _model_health(engine: EnginePort, service: str, known: Known) -> Health:
    found = known.get(service)
    return Health.SERVICE_UNKNOWN if found is None else _serving(engine.is_ready(*found))


def _serving(serving: bool) -> Health:
    return Health.SERVING if serving else Health.NOT_SERVING


def _known(engine: EnginePort) -> Known:
    models = [(entry.name, entry.version) for entry in engine.index(ready_only=False)]
    versions = {f"{name}/{version}": (name, version) for name, version in models}
    return versions | {name: (name, "") for name, _ in models}


class HealthService:
    """Answers about ``engine``. Owner: the event loop's thread."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._watchers: set[asyncio.Event] = set()
        self._due: dict[asyncio.Event, None] = {}
        """Of these, those that are to look, in their order."""
        self._end_watch: Callable[[], None] | None = None
        self._known: Known | None = None
        """What there is, as one watch found it for all since it changed."""
        self._ended = False

    def end(self) -> None:
        """End every watch, the state told a last time where it changed."""
        self._ended = True
        self._wake()

    def check(self, message: bytes) -> bytes:
        """Answer a serialised HealthCheckRequest; raises UnknownModel and InvalidRequest."""
        service = _service(message)
        health = health_of(self._engine, service)
        if health is Health.SERVICE_UNKNOWN:
            raise UnknownModel(f"no model or service '{service[:_TOLD_CHARACTERS_MAX]}' is known")
        return _response(health)

    async def watch(self, read: Read, write: Write) -> None:
        """Tell the state of the service that the one message names, then every change; raises InvalidRequest."""
        service = await _asked(read)
        changed = asyncio.Event()
        if self._end_watch is None:
            self._end_watch = self._engine.watch(self._wake)
        self._watchers.add(changed)
        told: Health | None = None
        try:
            while True:
                changed.clear()
                health = self._health(service)
                if health is not told:
                    told = health
                    await write(_response(health))
                if self._ended:
                    return
                await changed.wait()
        finally:
            self._forget(changed)

    def _forget(self, changed: asyncio.Event) -> None:
        self._watchers.discard(changed)
        self._due.pop(changed, None)
        if not self._watchers and self._end_watch is not None:
            self._end_watch()
            self._end_watch = self._known = None

    def _health(self, service: str) -> Health:
        if service in SERVER_SERVICES:
            return health_of(self._engine, service)
        if self._known is None:
            self._known = _known(self._engine)
        return _model_health(self._engine, service, self._known)

    def _wake(self) -> None:
        self._known = None
        waking = bool(self._due)
        self._due.update(dict.fromkeys(self._watchers))
        if self._due and not waking:
            self._wake_some()

    def _wake_some(self) -> None:
        """Have so many look, and the others in turns to come: there may be as many as a client likes."""
        for changed in tuple(islice(self._due, WOKEN)):
            del self._due[changed]
            changed.set()
        if self._due:
            asyncio.get_running_loop().call_soon(self._wake_some)


async def _asked(read: Read) -> str:
    """The service that the one message names. The message itself goes with this frame: a watch may last for ever."""
    message = await read()
    if message is None:
        raise InvalidRequest("the message that names the service is missing")
    return _service(message)


def _service(message: Buffer) -> str:
    """The name in ``message``, cut where it is longer than any model's can be: it stays a name that no model has."""
    try:
        service = str(health_pb2.HealthCheckRequest.FromString(bytes(message)).service)
    except DecodeError as error:
        raise InvalidRequest(f"the message is not a HealthCheckRequest: {error}") from error
    return service[: _NAME_CHARACTERS_MAX + 1]


def _response(health: Health) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=health.value).SerializeToString())
