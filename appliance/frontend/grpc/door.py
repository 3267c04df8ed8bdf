"""The port of a gRPC front door: what every implementation offers, is configured by and needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from appliance.engine.fastpath.front import HttpFront
from appliance.telemetry.snapshot import DoorFigures

SERVICE = "inference.GRPCInferenceService"

Setting = bool | int | str


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
        naming the address, and OperatorError for what this door cannot do or cannot read."""

    def admit(self) -> None:
        """Accept connections on inherited sockets as well, which ``open`` left alone: their first client had this
        process started, waits meanwhile, and shall find its model. Raises OperatorError."""

    def announce_stop(self) -> None:
        """Health turns NOT_SERVING; requests are still served."""

    async def reload(self) -> str | None:
        """Read the certificates again and use them from the next connection on; gives until when the server's holds
        ("": no client takes it now), None where there are none. Raises OperatorError, and goes on with the old ones,
        when they cannot be used."""

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, wait up to ``grace_s`` seconds for those under way, then cut the rest."""

    async def close(self) -> None:
        """Close at once what is still open. May be called twice, and without ``open``."""

    def front(self) -> HttpFront | None:
        """What listens for HTTP in the edge's place while the door is open; None: this door has no such thing."""

    def statistics(self) -> DoorStatistics:
        """A value to show."""

    def figures(self) -> DoorFigures:
        """What ``/metrics`` tells of it."""


class LogControl(Protocol):
    """The log as clients may read and change it."""

    def settings(self) -> Mapping[str, Setting]:
        """The settings in force, by the names of the logging extension."""

    def update(self, changes: Mapping[str, Setting]) -> None:
        """Change some of them, all or none; raises InvalidRequest or Unsupported naming what cannot be."""
