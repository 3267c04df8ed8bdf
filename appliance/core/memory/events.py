"""What the accountant is told. Models are small integers chosen by the engine; times are monotonic nanoseconds."""

from __future__ import annotations

from typing import NamedTuple

from appliance.core.memory.budget import Budget
from appliance.core.memory.footprint import Footprint, Residency
from appliance.domain.device import DeviceName


class Added(NamedTuple):
    """A model serves from now on, and is as it is now. ``load_ns`` and ``page_in_ns`` are what these took before (0:
    not known). What was reserved for it is its own."""

    model: int
    device: DeviceName
    residency: Residency
    footprint: Footprint
    load_ns: int = 0
    page_in_ns: int = 0


class Left(NamedTuple):
    """A version serves no more, or never will, and takes ``bytes`` until it is Gone; no request waits for it any more.
    ``heir`` serves in its place and takes ``heir_bytes`` (0: not known)."""

    model: int
    bytes: int
    heir: int | None = None
    heir_bytes: int = 0


class Gone(NamedTuple):
    """A version takes no memory any more, with whatever was being done to it or reserved for it."""

    model: int


class Retained(NamedTuple):
    """The operator's wishes: ``pinned`` is RESIDENT always; else it stays so for ``keep_warm_ns`` after its last
    request. ``held``: it is RESIDENT for the time being."""

    model: int
    pinned: bool
    keep_warm_ns: int
    held: bool = False


class BudgetSet(NamedTuple):
    """So much memory all models of a device together may take."""

    budget: Budget


class Measured(NamedTuple):
    """The memory of a model that serves is otherwise than it was said to be."""

    model: int
    footprint: Footprint


Told = Added | Left | Gone | Retained | BudgetSet | Measured


class Changed(NamedTuple):
    """All of this at once: nothing is decided before the last of it is known."""

    news: tuple[Told, ...]


class Used(NamedTuple):
    """So many requests went to a model that was RESIDENT, since this was last said."""

    model: int
    requests: int


class Asked(NamedTuple):
    """A request of so many bytes needs ``model`` by ``deadline_ns``. Answered by Serve, Wait or Refuse."""

    model: int
    request: int
    deadline_ns: int
    bytes: int


class Withdrawn(NamedTuple):
    """A request that waits was cancelled, or its deadline has passed."""

    model: int
    request: int


class Done(NamedTuple):
    """What was wanted of a model is done: it is as that leads to. It took ``ns``; ``bytes`` were read (0: nothing to
    learn from)."""

    model: int
    ns: int = 0
    bytes: int = 0


class Declined(NamedTuple):
    """A model could not be evicted or unloaded: a request had come in meanwhile. It is as it was."""

    model: int


class Failed(NamedTuple):
    """A load or page-in failed, or the process is gone: the model is COLD."""

    model: int


class UseChecked(NamedTuple):
    """Of the models that CheckUse named, these have nothing in flight."""

    device: DeviceName
    idle: frozenset[int]


class ReservationWanted(NamedTuple):
    """A version on its way to serving needs ``bytes``, and ``replaces`` one that serves and stays meanwhile. Answered
    by GrantReservation, HoldReservation or RefuseReservation; to be asked again until it is granted."""

    model: int
    device: DeviceName
    bytes: int
    replaces: int | None = None


class FreeMeasured(NamedTuple):
    """The machine has so much memory left."""

    device: DeviceName
    bytes: int


class ColdStartOffered(NamedTuple):
    """A version that is known to serve can begin out of memory: StartCold when there is no room for it now."""

    model: int
    device: DeviceName
    footprint: Footprint


class Settle(NamedTuple):
    """Time has passed."""


OfModel = Used | Asked | Withdrawn | Done | Declined | Failed
"""What happens to one model that serves."""
OfCandidate = ReservationWanted | FreeMeasured | ColdStartOffered
"""What is asked for versions on their way to serving."""
Event = Told | Changed | OfModel | OfCandidate | UseChecked | Settle
