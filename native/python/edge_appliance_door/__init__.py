"""The native front door: an HTTP/2 server for gRPC on a thread of its own. The stub beside this file documents it."""

from edge_appliance_door._door import (
    CALL,
    GONE,
    LIMITS,
    MESSAGE,
    NEWS,
    SENT,
    STREAM,
    UNARY,
    Door,
    Grants,
    LaneMemory,
    Tls,
    WorkerRing,
    __version__,
)

__all__ = [
    "CALL",
    "GONE",
    "LIMITS",
    "MESSAGE",
    "NEWS",
    "SENT",
    "STREAM",
    "UNARY",
    "Door",
    "Grants",
    "LaneMemory",
    "Tls",
    "WorkerRing",
    "__version__",
]
