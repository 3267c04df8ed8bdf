"""What the scheduler is told. All ids are small integers chosen by the engine; times are monotonic
nanoseconds.

Events are named tuples because they are made for every request: building one costs a third of a frozen
dataclass.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.domain.model import Batching


class GroupOpened(NamedTuple):
    """A set of identical lanes that serve the same models from one queue."""

    group: int


class GroupClosed(NamedTuple):
    """The group is gone, with its lanes, models and batch keys; what is still queued or running in it is lost."""

    group: int


class LaneOpened(NamedTuple):
    """A worker of ``group`` takes batches from now on. ``leasable``: also from a front end, when that is leased it."""

    lane: int
    group: int
    leasable: bool = False


class LaneClosed(NamedTuple):
    """The worker is gone. ``back_at_ns`` is when a replacement is expected (0: none will come). What it ran is retried
    once where deadlines allow, unless it is ``final``; what it had yet to begin is queued again."""

    lane: int
    back_at_ns: int
    final: bool = False


class ModelOpened(NamedTuple):
    """A model version that ``group`` serves. ``max_batch`` is in rows (1: requests are never merged)."""

    model: int
    group: int
    max_batch: int
    batching: Batching


class ModelClosed(NamedTuple):
    """The version takes no more requests. What is queued ends as Evicted, as does what would have to be
    retried; what runs goes on. Its batch keys are closed by themselves."""

    model: int


class BatchKeyOpened(NamedTuple):
    """Requests of ``model`` with equal shapes, so that they may share a batch. ``seeds`` are measured
    (rows, nanoseconds) pairs to start the profile from; may be empty."""

    batch_key: int
    model: int
    seeds: tuple[tuple[int, int], ...]


class BatchKeyClosed(NamedTuple):
    """The batch key is forgotten; the engine closes only batch keys with no request in the scheduler."""

    batch_key: int


class Arrived(NamedTuple):
    """A checked request. ``priority`` is 0 (the model's default) or a level; ``deadline_ns`` may be
    NO_DEADLINE; ``timeout_us`` is the request's own ``timeout`` parameter (0: none). ``retried``: a worker died
    with it once, or may have, so that it runs alone, and is Lost if the next one dies, too."""

    request: int
    batch_key: int
    rows: int
    nbytes: int
    priority: int
    deadline_ns: int
    timeout_us: int
    retried: bool = False


class CancelRequested(NamedTuple):
    """``request`` is not wanted any more. Queued: Dropped. Running: it runs to its end."""

    request: int


class BatchFinished(NamedTuple):
    """The worker gave ``batch`` back; its service time is learned when ``learn`` is true. ``ns`` is how long the
    worker was busy with it by its own account (0: it did not say). That is what is learned where leased work
    may have run between; else it is the time since the batch was sent, or since the one before it ended."""

    batch: int
    learn: bool
    ns: int = 0


class LeasedWork(NamedTuple):
    """What a front end has under way in ``lane``: so many requests, that keep it busy for ``work_ns`` from now on, the
    batch that runs included (``leases`` says how that is counted)."""

    lane: int
    requests: int
    work_ns: int


class LeasedRan(NamedTuple):
    """``batches`` of ``rows`` rows that a front end had sent to ``lane`` took ``ns`` each. To be told before the
    LeasedWork of the same news and before the BatchFinished of what ran after them."""

    lane: int
    batch_key: int
    rows: int
    ns: int
    batches: int


class BudgetSeen(NamedTuple):
    """The shortest time until a deadline that requests of ``batch_key`` brought to a front end, of late."""

    batch_key: int
    budget_ns: int


class Settle(NamedTuple):
    """End of a turn: dispatch what can be dispatched, expire what is late. Also sent when a timer asked for
    it."""


Membership = (
    GroupOpened
    | GroupClosed
    | LaneOpened
    | LaneClosed
    | ModelOpened
    | ModelClosed
    | BatchKeyOpened
    | BatchKeyClosed
)
"""Lanes, models and batch keys come and go."""

FrontEndNews = LeasedWork | LeasedRan | BudgetSeen
"""What a front end tells, late, of requests that it serves by itself."""

Event = Membership | Arrived | CancelRequested | BatchFinished | FrontEndNews | Settle
