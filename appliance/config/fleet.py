"""The ``[fleet]`` section: how the agent (``appliance sync``) and its controller use the link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

TRAFFIC: Final = ("control", "telemetry", "models")
"""All that goes over the link, by classes; the most urgent first, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """The ``[fleet]`` section. To which controller the box belongs is said by its enrolment, not here."""

    poll_s: int = field(
        default=60,
        metadata={"min": 5, "max": 86_400, "unit": "s", "help": "how often the controller is asked"},
    )
    directories: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "where bundles may lie, a USB stick's mount point for example; looked at as sources, too"
        },
    )
    neighbours: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "boxes of this site that may have what is wanted: http://HOST:PORT, tried before the controller"
        },
    )
    neighbour_address: str = field(
        default="",
        metadata={
            "help": "host:port where this box offers what it has to its neighbours; empty: it does not"
        },
    )
    rate_bytes_per_s: int = field(
        default=0,
        metadata={"min": 0, "unit": "bytes", "help": "bytes per second over the link at most; 0: no bound"},
    )
    month_bytes: int = field(
        default=0,
        metadata={"min": 0, "unit": "bytes", "help": "bytes over the link in a billing month; 0: no bound"},
    )
    month_day: int = field(
        default=1, metadata={"min": 1, "max": 28, "help": "day on which the billing month begins"}
    )
    windows: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "when models may be transferred, 'Mon-Fri 22:00-06:00 Europe/Berlin' for example; empty: always"
        },
    )
    activation_windows: tuple[str, ...] = field(
        default=(), metadata={"help": "when what was transferred may be made live; empty: at once"}
    )
    contact_plan: str = field(
        default="",
        metadata={
            "help": "file with the times at which there is a link, for satellite passes; empty: any time"
        },
    )
    priorities: tuple[str, ...] = field(
        default=TRAFFIC,
        metadata={"help": "what goes first over the link, the most urgent first"},
    )
    metered: tuple[str, ...] = field(
        default=("control", "telemetry"),
        metadata={"help": "what may go over a metered link ('appliance sync link metered')"},
    )
    outbox_bytes: int = field(
        default=256 << 20,
        metadata={
            "min": 1 << 20,
            "unit": "bytes",
            "help": "telemetry that is kept while there is no link, at most",
        },
    )
