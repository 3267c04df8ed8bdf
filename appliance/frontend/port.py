"""The port of a front end: what listens for gRPC and HTTP together, what it is given, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from appliance.config.telemetry import MetricsConfig
from appliance.core.rollout.records import Change
from appliance.domain.errors import Forbidden
from appliance.domain.protocol import SERVER_NAME
from appliance.engine.port import EnginePort
from appliance.frontend.regions.registry import Regions
from appliance.frontend.turns import Turns
from appliance.telemetry.recent import RecentFigures
from appliance.telemetry.snapshot import FrontEndFigures, HttpStatistics, Snapshot
from appliance.telemetry.trace import Tracer

HEADER_BYTES_MAX: Final = 16_384
"""Largest request line and largest single header of HTTP/1.1: twice what browsers and proxies send."""
HEADERS_MAX: Final = 100
"""Headers of one HTTP/1.1 request: some thirty where a chain of proxies each added its own."""


Setting = bool | int | str


class LogControl(Protocol):
    """The log as clients may read it, and an operator change it."""

    def settings(self) -> Mapping[str, Setting]:
        """The settings in force, by the names of the logging extension."""

    def update(self, changes: Mapping[str, Setting]) -> None:
        """Change some of them, all or none; raises InvalidRequest or Unsupported naming what cannot be."""


def check_log_settings(log: LogControl, asked: Mapping[str, object]) -> None:
    """Raise Forbidden where one of those that a client asks for is another than in force."""
    now = log.settings()
    for key, value in asked.items():
        if key not in now or type(value) is not type(now[key]) or value != now[key]:
            raise Forbidden(
                "changing log settings over the network is turned off; change them over the control socket "
                "(control.socket), or in the [log] section of the configuration"
            )


class Bound(NamedTuple):
    """Where a front end listens, with the ports that were taken where 0 was asked for."""

    grpc: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def __str__(self) -> str:
        grpc, http = (" ".join(addresses) or "(off)" for addresses in self[:2])
        metrics = f", metrics on {' '.join(self.metrics)}" if self.metrics else ""
        return f"gRPC on {grpc}, HTTP on {http}{metrics}"


@dataclass(slots=True, kw_only=True)
class Listening:
    """Where the front end listens, for clients that came to the wrong one of its ports; ``over_tls`` names the
    protocols whose TCP ports speak TLS. Whoever opens the front end sets ``bound``."""

    over_tls: frozenset[str] = frozenset()
    bound: Bound = field(default_factory=Bound)

    def urls(self) -> dict[str, list[str]]:
        """Where each protocol is spoken."""
        found: dict[str, list[str]] = {}
        for protocol, addresses in self.bound._asdict().items():
            scheme = "https" if protocol in self.over_tls else "http"
            found[protocol] = [
                each if each.startswith("unix:") else f"{scheme}://{each}" for each in addresses
            ]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a front end serves: the engine, the log, the figures of the moment and of the last hour, what happened to a
    model's versions, oldest first, where traces of single requests go, and where it listens."""

    engine: EnginePort
    log: LogControl
    read: Callable[[], Snapshot]
    recent: RecentFigures = field(default_factory=RecentFigures)
    history: Callable[[str], Sequence[Change]] = lambda name: ()
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    tracer: Tracer | None = None
    listening: Listening = field(default_factory=Listening)
    server_name: str = SERVER_NAME
    turns: Turns = field(default_factory=Turns)
    """Those of the loop, for what takes long."""
    regions: Regions = field(default_factory=Regions)
    """The shared memory of clients; nobody's, where it is turned off."""


class FrontEnd(Protocol):
    """Listens for gRPC and HTTP in front of the engine. All calls come from the event loop's thread."""

    async def open(self) -> Bound:
        """Listen. Raises AddressUnavailable naming the address, and OperatorError for what cannot be used."""

    def admit(self) -> None:
        """Accept connections on inherited sockets as well, which ``open`` left alone: their first client had this
        process started, waits meanwhile, and shall find its model. Raises OperatorError."""

    async def reload(self, section: str) -> str | None:
        """Read the certificates of ``section``, "grpc" or "http", again and show them from the next connection on;
        gives until when the server's holds ("": no client takes it now), None where there are none. Raises
        OperatorError, and goes on with the old ones, when they cannot be used."""

    async def send_away(self, grace_s: float) -> None:
        """Have clients of gRPC go elsewhere with their next calls, which they are told before any is refused, and wait
        up to ``grace_s`` seconds for those under way; what is over then is cut."""

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, wait up to ``grace_s`` seconds for those under way, then cut the rest of gRPC."""

    async def close(self) -> None:
        """Close at once what is still open. May be called twice, and without ``open``."""

    def figures(self) -> FrontEndFigures:
        """What it counted of gRPC, and by itself."""

    def http_statistics(self) -> HttpStatistics:
        """What was done over HTTP."""
