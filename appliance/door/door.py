"""The port of a gRPC front door: what every implementation offers, is configured by and needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from appliance.address import address_problems

MEBIBYTE = 1 << 20
SERVICE = "inference.GRPCInferenceService"

Setting = bool | int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorConfig:
    """The ``[grpc]`` section. Sizes are bytes, times seconds. An address is ``host:port``, ``[v6 address]:port`` (port
    0 takes a free one) or ``unix:/path``; no address turns the door off."""

    addresses: tuple[str, ...] = field(
        default=("127.0.0.1:8001",),
        metadata={
            "help": "where to listen: host:port, [v6]:port or unix:/path",
            "check": address_problems,
        },
    )
    max_message_bytes: int = field(
        default=64 * MEBIBYTE,
        metadata={"min": 1024, "max": (1 << 31) - 1, "unit": "bytes", "help": "largest request message"},
    )
    max_head_bytes: int = field(
        default=4 * MEBIBYTE,
        metadata={
            "min": 1024,
            "unit": "bytes",
            "help": "largest part of a request outside of its raw tensors; typed contents count, and hold up other "
            "requests while they are read, so large tensors belong into raw_input_contents",
        },
    )
    max_tensors: int = field(
        default=1024, metadata={"min": 1, "help": "inputs, and outputs, that one request may name"}
    )
    max_metadata_bytes: int = field(
        default=16_384, metadata={"min": 1024, "unit": "bytes", "help": "largest metadata of one RPC"}
    )
    max_concurrent_streams: int = field(
        default=4096, metadata={"min": 1, "help": "RPCs under way on one connection"}
    )
    stream_window: int = field(
        default=256,
        metadata={
            "min": 1,
            "help": "requests under way on one ModelStreamInfer; more are read when answers left",
        },
    )
    keepalive_s: float = field(
        default=60.0,
        metadata={"min": 1, "unit": "s", "help": "ping a connection that was silent for this long"},
    )
    keepalive_timeout_s: float = field(
        default=20.0,
        metadata={"min": 1, "unit": "s", "help": "close a connection that leaves a ping unanswered"},
    )
    client_ping_interval_s: float = field(
        default=10.0,
        metadata={"min": 0.1, "unit": "s", "help": "clients that ping more often are disconnected"},
    )
    max_connection_age_s: float = field(
        default=0.0,
        metadata={"min": 0, "unit": "s", "help": "ask clients to reconnect after this time; 0: never"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorStatistics:
    """What went through a door since it opened. ``requests`` counts inferences taken in, ``answered`` those that ended
    with tensors, ``failed`` with a status or an error on their stream, ``cancelled`` those whose client went away;
    ``streams`` are the ModelStreamInfer RPCs open now."""

    requests: int
    answered: int
    failed: int
    cancelled: int
    streams: int

    @property
    def in_flight(self) -> int:
        """Inferences that have not ended."""
        return self.requests - self.answered - self.failed - self.cancelled


class FrontDoor(Protocol):
    """A gRPC server in front of the engine. All calls come from the event loop's thread."""

    async def open(self) -> tuple[str, ...]:
        """Listen; gives the addresses, with the port that was taken where 0 was asked for. Raises AddressUnavailable
        naming the address."""

    def announce_stop(self) -> None:
        """Health turns NOT_SERVING; requests are still served."""

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, wait up to ``grace_s`` seconds for those under way, then cut the rest."""

    async def close(self) -> None:
        """Close at once what is still open. May be called twice, and without ``open``."""

    def statistics(self) -> DoorStatistics:
        """A value to show."""


class LogControl(Protocol):
    """The log as clients may read and change it."""

    def settings(self) -> Mapping[str, Setting]:
        """The settings in force, by the names of the logging extension."""

    def update(self, changes: Mapping[str, Setting]) -> None:
        """Change some of them, all or none; raises InvalidRequest or Unsupported naming what cannot be."""
