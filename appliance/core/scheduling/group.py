"""What the scheduler knows of its world: groups of lanes, models, batch keys, and the batches that run.

Mutable state, owned by one ``Scheduler`` and changed only within its steps. Everything a decision reads often
is kept here as a plain number and updated where it changes; ``check_integrity`` recomputes each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.scheduling.charges import Charges
from appliance.core.scheduling.profile import ServiceTime
from appliance.core.scheduling.queue import Queue
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import Batching, TimeoutAction

NEVER = NO_DEADLINE
"""A time that does not come."""
LEVEL_ORDINARY = 1
LEVEL_DELAYED = 1 << 30
"""Where requests go whose queue time-out passed: behind all others, in order of their deadlines."""
LANE_DEPTH = 2
"""Batches that a lane holds at most: one that runs, one that follows without a round trip."""
BUDGET_QUANTILE = 0.1
BUDGET_STEP = 1 / 16
LEAST_ROWS = 2
"""Rows that a batch is planned with at least, where the model takes as many: of batches of one row nothing can be
learned about larger ones, and a plan that was too small once would stay so."""


class QueuedRequest:
    """A request in the scheduler. Changed only by ``Scheduler`` and what it calls."""

    __slots__ = (
        "arrived_ns",
        "charge_ns",
        "deadline_ns",
        "delay_at_ns",
        "level",
        "nbytes",
        "own_ns",
        "request",
        "retried",
        "rows",
        "sequence",
        "batch_key",
        "uneven",
        "waste_ns",
    )

    def __init__(
        self,
        request: int,
        batch_key: BatchKey,
        rows: int,
        nbytes: int,
        level: int,
        deadline_ns: int,
        sequence: int,
        arrived_ns: int,
    ) -> None:
        self.request = request
        self.batch_key = batch_key
        self.rows = rows
        self.nbytes = nbytes
        self.level = level
        self.deadline_ns = deadline_ns
        self.sequence = sequence
        self.arrived_ns = arrived_ns
        self.delay_at_ns = 0
        """When its queue time-out moves it behind all others (0: never)."""
        self.charge_ns = 0
        """Lane time that plans count for it while it is queued."""
        self.waste_ns = 0
        """The part of its charge that is spent ahead of it, in a batch that it does not fit."""
        self.own_ns = 0
        """Length of its own batch that its promise counts with."""
        self.uneven = rows > 1
        """It can close a batch before that has its planned size."""
        self.retried = False


class RunningBatch:
    """A batch in a lane. ``estimate_ns`` is the service time it was planned with."""

    __slots__ = ("batch", "company", "entries", "estimate_ns", "lane", "rows", "batch_key", "start_ns")

    def __init__(
        self,
        batch: int,
        lane: Lane,
        batch_key: BatchKey,
        entries: list[QueuedRequest],
        rows: int,
        start_ns: int,
        estimate_ns: int,
    ) -> None:
        self.batch = batch
        self.lane = lane
        self.batch_key = batch_key
        self.entries = entries
        self.rows = rows
        self.start_ns = start_ns
        """When it was dispatched, or, if later, when the batch before it ended."""
        self.estimate_ns = estimate_ns
        self.company = 0
        """Whether leased work ran in between, as ``leases`` has it."""


class Lane:
    """A worker as the scheduler sees it: what it runs, and when it should be free."""

    __slots__ = (
        "batches",
        "doubtful",
        "free_ns",
        "leasable",
        "leased",
        "leased_ns",
        "leased_requests",
        "group",
        "lane",
    )

    def __init__(self, lane: int, group: Group, leasable: bool = False) -> None:
        self.lane = lane
        self.group = group
        self.batches: list[RunningBatch] = []
        self.free_ns = 0
        """When batches and leased work, if there are any, should have ended."""
        self.leasable = leasable
        self.leased = False
        self.doubtful = False
        """There may be leased work that was not told."""
        self.leased_requests = 0
        """What a front end has under way here, as far as it has told."""
        self.leased_ns = 0
        """The part of that work which ``free_ns`` counts with, while batches are there that go before it."""

    def free_at(self, now_ns: int) -> int:
        """When it should be free. A batch that is overdue is expected to need as long again as it is late."""
        if not self.batches and not self.leased_requests:
            return now_ns
        return self.free_ns if self.free_ns >= now_ns else 2 * now_ns - self.free_ns


class Model:
    """A model version: how it batches, and how many of its requests are queued per level."""

    __slots__ = (
        "batching",
        "closed",
        "delay_ns",
        "group",
        "max_batch",
        "model",
        "plain",
        "queued",
        "queued_at",
        "batch_keys",
    )

    def __init__(self, model: int, group: Group, max_batch: int, batching: Batching) -> None:
        self.model = model
        self.group = group
        self.max_batch = max_batch
        self.batching = batching
        self.delay_ns = batching.max_queue_delay_us * 1000
        self.closed = False
        self.batch_keys: list[BatchKey] = []
        self.queued = 0
        self.queued_at: dict[int, int] = {}
        policy = batching.default_queue_policy
        self.plain = (
            not batching.priority_levels and not policy.default_timeout_us and not policy.max_queue_size
        )
        """No levels, time-outs or bounds of its own: every request takes the short way."""

    def level_of(self, priority: int) -> int:
        """The level of a request: the default one when it names none, or one that does not exist."""
        levels = self.batching.priority_levels
        if not levels:
            return LEVEL_ORDINARY
        if 1 <= priority <= levels:
            return priority
        return self.batching.default_priority_level or LEVEL_ORDINARY

    def time_out(self, level: int) -> tuple[int, bool]:
        """Queue time-out of ``level`` in ns (0: none), and whether it delays instead of refusing."""
        policy = self.batching.policy_of(level if self.batching.priority_levels else 0)
        return policy.default_timeout_us * 1000, policy.timeout_action is TimeoutAction.DELAY

    def set_terms(self, entry: QueuedRequest, priority: int, now_ns: int) -> None:
        """Give a request that arrives its level, and the time-out of that."""
        entry.level = self.level_of(priority)
        time_out_ns, delays = self.time_out(entry.level)
        if time_out_ns and delays:
            entry.delay_at_ns = now_ns + time_out_ns
        elif time_out_ns:
            entry.deadline_ns = min(entry.deadline_ns, now_ns + time_out_ns)

    def bound_of(self, level: int) -> int:
        """How many requests may be queued at ``level`` (0: no bound of its own)."""
        return self.batching.policy_of(level if self.batching.priority_levels else 0).max_queue_size


class Refusals:
    """Requests of a batch key in a row that were refused for their deadline, since a batch of it ended at
    ``ran_ns``; ``probe`` is the one that was let through last all the same (None: none, or it runs)."""

    __slots__ = ("in_a_row", "probe", "ran_ns")

    def __init__(self) -> None:
        self.in_a_row = 0
        self.probe: int | None = None
        self.ran_ns = 0

    def take_probe(self, entries: Sequence[QueuedRequest]) -> bool:
        """Whether the probe is among ``entries``, which run now."""
        found = self.probe is not None and any(entry.request == self.probe for entry in entries)
        if found:
            self.probe = None
        return found

    def end(self, now_ns: int) -> None:
        """A batch has ended."""
        self.in_a_row, self.ran_ns = 0, now_ns


class BatchKey:
    """Requests that may share a batch: their queue, what a batch costs, and the batch that plans assume.

    ``plan_rows`` is fixed while requests are queued, because their charges were computed with it.
    """

    __slots__ = (
        "best_rows",
        "budget_ns",
        "fixed_ns",
        "head",
        "model",
        "per_row_ns",
        "plan_ns",
        "plan_rows",
        "profile",
        "queue",
        "queued_rows",
        "refusals",
        "row_bytes",
        "batch_key",
        "uneven",
    )

    def __init__(self, batch_key: int, model: Model, profile: ServiceTime) -> None:
        self.batch_key = batch_key
        self.model = model
        self.profile = profile
        self.queue: Queue[QueuedRequest] = Queue()
        self.queued_rows = 0
        self.uneven = 0
        """How many of its queued requests are uneven."""
        self.head: HeadKey | None = None
        self.fixed_ns = 0
        self.per_row_ns = 0
        self.best_rows = model.max_batch
        self.plan_rows = model.max_batch
        self.plan_ns = 0
        self.budget_ns = 0.0
        """Low quantile of the time that requests bring with them until their deadline (0: none had one)."""
        self.row_bytes = 0
        self.refusals = Refusals()

    def learned(self, tolerance: float) -> None:
        """Take over the profile's estimate, and find the smallest batch that is nearly as cheap per row as
        the best; of more than one row, where the model takes more."""
        fixed, per_row = self.profile.fixed_ns, self.profile.per_row_ns
        self.fixed_ns, self.per_row_ns = fixed, per_row
        before_ns = self.plan_ns
        largest = self.model.max_batch
        if largest > 1 and (fixed or per_row):
            room = (1 + tolerance) * (fixed / largest + per_row) - per_row
            largest = min(max(int(-(-fixed // room)), LEAST_ROWS), largest)
        self.best_rows = largest
        self.plan_ns = fixed + per_row * self.plan_rows
        if self.queued_rows:
            self.model.group.partial_ns += self.plan_ns - before_ns

    def sized(self, entry: QueuedRequest, tolerance: float) -> None:
        """Note by its first request how large a row is. When nothing else is known, the profile starts from that
        of the most recent batch key of the model, in proportion to that size."""
        self.row_bytes = max(entry.nbytes // entry.rows, 1)
        if self.profile.known:
            return
        for other in reversed(self.model.batch_keys):
            if other.profile.known:
                ratio = self.row_bytes / other.row_bytes if other.row_bytes else 1.0
                self.profile.borrow(other.profile, min(max(ratio, 1 / 8), 8.0))
                self.learned(tolerance)
                return

    def replan(self, margin_ns: int) -> None:
        """Choose the batch that plans assume: the best one, or the largest that can wait for another like it
        and still be in time for requests such as have been seen. Only while nothing is queued."""
        rows = self.best_rows
        if self.budget_ns and self.per_row_ns:
            affordable = ((int(self.budget_ns) - margin_ns) // 2 - self.fixed_ns) // self.per_row_ns
            rows = min(rows, max(affordable, 1))
        if rows != self.plan_rows:
            self.plan_rows = rows
            self.plan_ns = self.fixed_ns + self.per_row_ns * rows

    def saw_budget(self, budget_ns: int) -> None:
        """Follow the low quantile of the times requests bring with them, by steps in proportion to it."""
        known = self.budget_ns
        if not known:
            self.budget_ns = float(budget_ns)
        elif budget_ns < known:
            self.budget_ns = known * (1 - BUDGET_STEP * (1 - BUDGET_QUANTILE))
        else:
            self.budget_ns = known * (1 + BUDGET_STEP * BUDGET_QUANTILE)


HeadKey = tuple[int, int, int, BatchKey]


class Promises:
    """``spare_ns`` holds per level a lower bound of the lane time that may be put ahead of any request queued there
    without breaking a promise. No queued request counts with more than ``own_ns_max`` for a batch of its own and what
    it wastes before it, and none has a later (level, deadline) than ``latest``. After ``recount_in`` requests that seem
    to overtake too much, the spares of a long queue are computed again."""

    __slots__ = ("latest", "own_ns_max", "recount_in", "spare_ns")

    def __init__(self) -> None:
        self.spare_ns: dict[int, int] = {}
        self.own_ns_max = 0
        self.recount_in = 0
        self.latest: tuple[int, int] = (0, 0)

    def clear(self) -> None:
        """Nothing is queued any more."""
        self.spare_ns.clear()
        self.own_ns_max = 0
        self.latest = (0, 0)


class GroupLeases:
    """How many lanes of a group a front end may be leased, and how many it is. ``plain``: none of the group's models
    stands in the way of that."""

    __slots__ = ("leasable", "leased", "plain")

    def __init__(self) -> None:
        self.leasable = self.leased = 0
        self.plain = True


class Group:
    """Identical lanes with one queue over the batch keys they serve.

    ``partial_ns`` is the planned batch of every batch key with requests queued,
    summed. ``due_ns`` is not later than the next time at which something queued must be acted on.
    """

    __slots__ = (
        "delays",
        "due_ns",
        "eager",
        "group",
        "heads",
        "held_ns",
        "lanes",
        "leases",
        "charges",
        "models",
        "partial_ns",
        "promises",
        "queued",
        "returning",
    )

    def __init__(self, group: int) -> None:
        self.group = group
        self.lanes: list[Lane] = []
        self.returning: dict[int, int] = {}
        """Lanes that are expected back, and when."""
        self.models: list[Model] = []
        self.heads: list[HeadKey] = []
        """The first key of each batch key that has requests queued, in order."""
        self.queued = 0
        self.charges = Charges()
        self.partial_ns = 0
        self.promises = Promises()
        self.delays: Queue[QueuedRequest] = Queue()
        """Requests whose queue time-out will move them, by the time it does."""
        self.eager = True
        """A lane can take what arrives: it is idle, or waits for a full batch to prefetch."""
        self.held_ns = 0
        """Since when an idle lane waits for a batch to fill (0: none waits)."""
        self.due_ns = NEVER
        self.leases = GroupLeases()

    def lane_times(self, now_ns: int) -> list[int]:
        """When each lane will be free; those expected back when none is open."""
        if self.lanes:
            times = []
            for lane in self.lanes:
                free_ns = lane.free_ns if lane.batches or lane.leased_requests else now_ns
                times.append(free_ns if free_ns >= now_ns else 2 * now_ns - free_ns)
            return times
        return [max(back_ns, now_ns) for back_ns in self.returning.values()]

    @property
    def idle(self) -> bool:
        """Nothing is queued, and no lane has anything to do."""
        return not self.queued and not any(lane.batches or lane.leased_requests for lane in self.lanes)
