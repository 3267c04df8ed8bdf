"""How much memory there is for models, what it is managed by, and why there is none to load a version now.

Reasons are data: their readers decide by their kind, and people are told in words elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from appliance.config.engine import ResidencyConfig
from appliance.domain.device import Device, DeviceName
from appliance.domain.device_wish import DeviceWish


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPolicy(ResidencyConfig):
    """The ``[residency]`` section with constants of its own. What each of these is for stands behind it."""

    waiting_bytes_max: int = 256 << 20
    """Inputs of requests that wait for models: of large ones fewer wait than ``waiting_requests_max`` says."""
    evict_weights: bool = True
    """Keep the sessions of models whose weights leave memory, where that is possible: paging weights in again is many
    times faster than making a session."""
    early_bytes: int = 32 << 20
    """Models with at least so much in a file of weights answer while their fast session is still made: that of a
    smaller one is made before it would be noticed."""
    loads_at_once: int = 2
    """Models that load while requests wait: one that is slow does not hold up the next, and two share one disk well."""
    hold_factor: float = 1.0
    """How many times its load time a model stays after it was loaded, so that loads never take over half the time."""
    retry_ns: int = 5_000_000
    """How often a load looks for room when all models are in use: as long as a short batch."""
    backoff_ns: int = 1_000_000_000
    backoff_ns_max: int = 60_000_000_000
    """The first and the longest pause after failed loads of a model, doubled by each: a file that was being copied is
    served soon, and one that stays broken costs a load a minute."""


class Budget(NamedTuple):
    """So many bytes of ``device`` are for models: ``configured`` by an operator, or what the machine has."""

    device: DeviceName
    bytes: int
    configured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What of a budget cannot be had: ``kept_bytes`` are those that pins and versions on trial keep."""

    bytes: int
    configured: bool
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverFits:
    """It takes more than there is, as long as nothing else is configured."""

    need_bytes: int
    limit: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsBesidePins:
    """It does not fit beside what stays in memory whatever comes."""

    need_bytes: int
    limit: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForIdle:
    """All that could leave memory for it is in use."""

    need_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForOvercommit:
    """Another version is tried above the budget, which is for one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForMachine:
    """It does not fit beside the version that it replaces, and the machine has too little left to try it above the
    budget."""

    need_bytes: int
    beside_bytes: int
    left_bytes: int
    limit: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForDevice:
    """None of the devices that it may run on takes versions now; each with its fault."""

    faults: tuple[tuple[DeviceName, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsForProcess:
    """It asks for a worker of its own, and all ``processes`` that there may be are taken or promised."""

    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentDevice:
    """It asks for a device that this machine does not have, or nobody can tell which that is; ``there`` are those of
    the kind that it has."""

    wish: DeviceWish
    there: tuple[Device, ...]


WaitsForMemory = (
    NeverFits
    | WaitsBesidePins
    | WaitsForIdle
    | WaitsForOvercommit
    | WaitsForMachine
    | WaitsForDevice
    | WaitsForProcess
)
