"""What residency is told and what it wants done. Models are small integers chosen by the engine; times are
monotonic nanoseconds."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Form(Enum):
    """How much of a model is in memory. WEIGHTS_EVICTED: its session is kept, its weights are not; COLD: no process."""

    RESIDENT = "resident"
    WEIGHTS_EVICTED = "weights_evicted"
    COLD = "cold"


class Coldness(Enum):
    """Why a request for a model that is not resident was refused at once."""

    DEADLINE = "the model would be loaded too late"
    FULL = "too much waits for models that are loaded"
    NO_ROOM = "there is no room for the model now"
    NEVER = "the model does not fit beside what is pinned"
    FAILING = "the model failed to load"


class Footprint(NamedTuple):
    """Memory of a model while it is RESIDENT, and how much of it evicting its weights gives back (0: that cannot
    be)."""

    bytes: int
    evictable_bytes: int


class Added(NamedTuple):
    """A model, as it is now. ``load_ns`` and ``page_in_ns`` are what these took before (0: not known)."""

    model: int
    form: Form
    footprint: Footprint
    load_ns: int = 0
    page_in_ns: int = 0


class Removed(NamedTuple):
    """The model is gone, with whatever was being done to it; nobody waits for it any more."""

    model: int


class Kept(NamedTuple):
    """The operator's wishes: ``pinned`` is RESIDENT always; else it stays so for ``keep_warm_ns`` after its last
    request. ``held``: it is RESIDENT for the time being."""

    model: int
    pinned: bool
    keep_warm_ns: int
    held: bool = False

    @property
    def stays(self) -> bool:
        """Whether nobody takes its memory."""
        return self.pinned or self.held


class BudgetChanged(NamedTuple):
    """So much memory all models together may take; ``whole_bytes`` when nothing of it is lent (0: nothing is)."""

    bytes: int
    whole_bytes: int = 0


class Measured(NamedTuple):
    """The memory of a model is otherwise than it was said to be."""

    model: int
    footprint: Footprint


Told = Added | Removed | Kept | BudgetChanged | Measured


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
    """What was wanted of a model is done: it has the form that this leads to. It took ``ns``; ``bytes`` were read
    (0: nothing to learn from)."""

    model: int
    ns: int = 0
    bytes: int = 0


class Declined(NamedTuple):
    """A model could not be evicted or unloaded: a request had come in meanwhile. It is as it was."""

    model: int


class Failed(NamedTuple):
    """A load or page-in failed, or the process is gone: the model is COLD."""

    model: int


class Settle(NamedTuple):
    """Time has passed."""


Event = Told | Changed | Used | Asked | Withdrawn | Done | Declined | Failed | Settle


class Load(NamedTuple):
    """COLD to RESIDENT. ``background``: nobody waits for it."""

    model: int
    background: bool


class PageIn(NamedTuple):
    """WEIGHTS_EVICTED to RESIDENT."""

    model: int
    background: bool


class EvictWeights(NamedTuple):
    """RESIDENT to WEIGHTS_EVICTED; from now on every request for it asks."""

    model: int


class Unload(NamedTuple):
    """RESIDENT or WEIGHTS_EVICTED to COLD: end its process; from now on every request for it asks."""

    model: int


class Serve(NamedTuple):
    """The model is RESIDENT: this request need not wait."""

    model: int
    request: int


class Wait(NamedTuple):
    """This request may wait: its model should be there in ``ready_ns``."""

    model: int
    request: int
    ready_ns: int


class Refuse(NamedTuple):
    """This request does not wait; ``retry_after_ns`` is when its model should be there, or may be looked for
    again (negative: never)."""

    model: int
    request: int
    reason: Coldness
    retry_after_ns: int


class Release(NamedTuple):
    """The model is RESIDENT: what waits for it goes on."""

    model: int
    requests: tuple[int, ...]


class WakeAt(NamedTuple):
    """Send Settle at this time at the latest. Replaces earlier wishes."""

    at_ns: int


Action = Load | PageIn | EvictWeights | Unload | Serve | Wait | Refuse | Release | WakeAt
