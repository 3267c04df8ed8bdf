"""Which services are healthy (the server, the inference service, each model, each version), and the standard service
that says so, ``grpc.health.v1``: asked once, or watched until the end is told."""

from __future__ import annotations

import asyncio
from enum import IntEnum
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

_NAME_CHARACTERS_MAX = 1024
_TOLD_CHARACTERS_MAX = 200


class Health(IntEnum):
    """States as ``grpc.health.v1`` numbers them."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


def health_of(engine: EnginePort, service: str, stopping: bool) -> Health:
    """The state of ``service``: "" or the inference service's name for the server, a model's name, or
    ``name/version``."""
    if service in SERVER_SERVICES:
        return _serving(engine.ready and not stopping)
    name, version = _split(engine, service)
    if not name:
        return Health.SERVICE_UNKNOWN
    return _serving(engine.is_ready(name, version) and not stopping)


def _serving(serving: bool) -> Health:
    return Health.SERVING if serving else Health.NOT_SERVING


def _split(engine: EnginePort, service: str) -> tuple[str, str]:
    """Model name and version ("": the server's choice) of a known service; an empty name for an unknown one."""
    known = {(entry.name, entry.version) for entry in engine.index(ready_only=False)}
    if any(service == name for name, _ in known):
        return service, ""
    name, _, version = service.rpartition("/")
    return (name, version) if (name, version) in known else ("", "")


class HealthService:
    """Answers about ``engine``. Owner: the event loop's thread."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._watchers: set[asyncio.Event] = set()
        self._stopping = False
        self._ended = False

    def announce_stop(self) -> None:
        """Nothing is SERVING from now on."""
        self._stopping = True
        self._wake()

    def end(self) -> None:
        """End every watch, the state told a last time where it changed."""
        self._ended = True
        self._wake()

    def check(self, message: bytes) -> bytes:
        """Answer a serialised HealthCheckRequest; raises UnknownModel and InvalidRequest."""
        service = _service(message)
        health = self._health(service)
        if health is Health.SERVICE_UNKNOWN:
            raise UnknownModel(f"no model or service '{service[:_TOLD_CHARACTERS_MAX]}' is known")
        return _response(health)

    async def watch(self, read: Read, write: Write) -> None:
        """Tell the state of the service that the one message names, then every change; raises InvalidRequest."""
        service = await _asked(read)
        changed = asyncio.Event()
        end_watch = self._engine.watch(changed.set)
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
            self._watchers.discard(changed)
            end_watch()

    def _health(self, service: str) -> Health:
        return health_of(self._engine, service, self._stopping)

    def _wake(self) -> None:
        for changed in self._watchers:
            changed.set()


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
