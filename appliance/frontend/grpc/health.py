"""Which services are healthy: the server, the inference service, each model, each version. Pure over the engine."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from appliance.engine.port import EnginePort

SERVICE: Final = "inference.GRPCInferenceService"
SERVER_SERVICES = frozenset({"", SERVICE})


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
