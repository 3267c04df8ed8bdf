"""How much memory there is for models, and why there is none to load a version now, as data: its readers decide by
its kind, and people are told in words elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Budget(NamedTuple):
    """So many bytes of ``device`` are for models: ``configured`` by an operator, or what the machine has."""

    device: str
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


WaitsForMemory = NeverFits | WaitsBesidePins | WaitsForIdle | WaitsForOvercommit | WaitsForMachine
