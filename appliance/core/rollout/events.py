"""What the rollout is told. Versions are named by their ids; times are monotonic nanoseconds, but for the wall clock's
in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from appliance.core.memory.budget import WaitsForMemory
from appliance.core.rollout.catalog import Catalog
from appliance.domain.assessment import Assessment
from appliance.domain.side_by_side import SideBySide


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``catalog`` is wanted from now on. ``asked``: names of models, or keys of versions, of which an operator wants
    what was given up to be tried again."""

    catalog: Catalog
    asked: frozenset[str]
    wall_ms: int


class Tick(NamedTuple):
    """Time has passed. ``loading`` are the versions that load in the background, wanted or not."""

    loading: frozenset[int]
    wall_ms: int


class Changed(NamedTuple):
    """What names mean has changed."""

    wall_ms: int


class Stopping(NamedTuple):
    """The daemon is asked to stop: what serves or is on trial has not failed, so that its attempt does not count."""


class Loaded(NamedTuple):
    """A worker holds a version, and perhaps assessed it; ``seeds`` and ``packed``: see Version."""

    version: int
    assessment: Assessment | None
    seeds: tuple[tuple[int, int], ...]
    packed: bool


class Opened(NamedTuple):
    """All workers of its group hold a version: it can take requests, and shall not before its trial says so."""

    version: int


class Refused(NamedTuple):
    """The runtime will not have a version, or it broke its promise. ``unsupported``: see LoadRefused."""

    version: int
    reason: str
    unsupported: bool = False


class Crashed(NamedTuple):
    """A worker ended because of a version. ``repeated``: that was once too often."""

    version: int
    detail: str
    repeated: bool


class Compared(NamedTuple):
    """An answer of a version lay beside the real one; ``difference`` in words, None where it is near enough."""

    version: int
    difference: str | None


class Missed(NamedTuple):
    """A request was none for a version that serves, and would have been one for the version before."""

    version: int


class Figures(NamedTuple):
    """What a version did since it was loaded: requests answered and failed, how long their runs took, as counts per
    bucket of BOUNDS_NS, and how many ``batches`` of so many rows there were."""

    answered: int
    failed: int
    runs: tuple[int, ...]
    batches: tuple[tuple[int, int], ...] = ()


class FiguresRead(NamedTuple):
    """Answers ReadFigures: what a version did on its own account and for requests that were mirrored, and what the
    version before did."""

    version: int
    new: Figures
    mirrored: Figures
    old: Figures
    reference: bool


class MemoryAnswered(NamedTuple):
    """Answers ReserveMemory. At most one of ``rests``, ``there`` and ``refused`` is so; of none, it waits."""

    version: int
    asked: bool = True
    """Memory was asked for, as ``reserve`` said."""
    rests: bool = False
    """It begins out of memory, for there is no room."""
    there: bool = False
    """It may be loaded."""
    reason: WaitsForMemory | None = None
    """What it waits for, if that may never come."""
    again_ns: int = 0
    """When to ask again; 0: soon."""
    kept: bool = False
    """Memory is kept for it meanwhile."""
    refused: str = ""
    """Why it can never be on this machine, in words."""


class AttemptsRecorded(NamedTuple):
    """Answers RecordAttempts: they are on the disk, or why not."""

    versions: tuple[int, ...]
    problem: str | None


class FormBuilt(NamedTuple):
    """A packed form of a version is there; an engine was ``compared`` with its session."""

    version: int
    compared: tuple[SideBySide, ...] = ()


class FormDropped(NamedTuple):
    """A version runs from no packed form any more. ``refused``: it will not either, for that was to blame."""

    version: int
    refused: bool


class Displaced(NamedTuple):
    """The device of a version that serves takes versions no more, and another one that it may run on does."""

    version: int


class Drained(NamedTuple):
    """The last requests of these versions have ended."""

    versions: tuple[int, ...]


VersionEvent = (
    Loaded
    | Opened
    | Refused
    | Crashed
    | Compared
    | Missed
    | FiguresRead
    | FormBuilt
    | FormDropped
    | Displaced
)
"""What happened to the version that it names, which may have gone meanwhile."""
Event = VersionEvent | Wanted | Tick | Changed | Stopping | MemoryAnswered | AttemptsRecorded | Drained
