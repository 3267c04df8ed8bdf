"""What models may take of a device, and why memory is not to be had there: as values, for others to put into words."""

from __future__ import annotations

from typing import NamedTuple


class Budget(NamedTuple):
    """So many bytes of ``device`` are for models. ``setting`` names the setting that says so; "": the machine does."""

    device: str
    bytes: int
    setting: str = ""


class Limit(NamedTuple):
    """A budget, and what of it nobody takes from versions that are pinned or beside one on trial."""

    budget: Budget
    pinned_bytes: int = 0


class NeverFits(NamedTuple):
    """The version takes more than there is, whoever leaves."""

    wanted_bytes: int
    limit: Limit


class PinnedLeaveTooLittle(NamedTuple):
    """The version fits, but not beside what is pinned now."""

    wanted_bytes: int
    limit: Limit


class AllInUse(NamedTuple):
    """What could leave memory for the version is in use."""

    wanted_bytes: int


class OvercommitTaken(NamedTuple):
    """Another version is tried above the budget, or leaves from there."""


class MachineFull(NamedTuple):
    """The version does not fit beside the one it replaces, and the machine has too little to try it above the
    budget."""

    wanted_bytes: int
    beside_bytes: int
    limit: Limit
    free_bytes: int


Shortage = NeverFits | PinnedLeaveTooLittle | AllInUse | OvercommitTaken | MachineFull
"""Why a version on its way to serving has no memory, where that may never come."""
