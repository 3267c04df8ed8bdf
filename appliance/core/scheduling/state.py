"""All that a scheduler keeps: groups, models, batch keys and lanes by their ids, queued requests, running batches.

What stands in more than one place is changed here alone, so that the places agree; ``check_integrity`` says whether
they do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from statistics import NormalDist

from appliance.core.scheduling import leases
from appliance.core.scheduling.actions import Action, Evicted, Lost
from appliance.core.scheduling.group import NEVER, BatchKey, Group, Lane, Model, QueuedRequest, RunningBatch
from appliance.core.scheduling.integrity import check_grants, check_group
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.queueing import enqueue, remove
from appliance.core.scheduling.statistics import SchedulerStatistics

DEVIATIONS_PER_MEAN_DEVIATION = 1.2533
"""Standard deviation over mean absolute deviation of a normal distribution."""


class Agenda:
    """When each group must next be looked at: in order, one time per group, which only this changes."""

    __slots__ = ("_entries", "first_ns")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Group]] = []
        self.first_ns = NEVER
        """The earliest time at which a group is due (NEVER: none is)."""

    def first(self) -> Group:
        """The group that is due first; there must be one."""
        return self._entries[0][2]

    def set(self, group: Group, due_ns: int) -> None:
        """``group`` is due at ``due_ns`` and not before (NEVER: not at all)."""
        entries = self._entries
        if group.due_ns < NEVER:
            del entries[bisect_left(entries, (group.due_ns, group.group))]
        group.due_ns = due_ns
        if due_ns < NEVER:
            insort(entries, (due_ns, group.group, group))
        self.first_ns = entries[0][0] if entries else NEVER

    def check_integrity(self, groups: list[Group]) -> None:
        """Assert that exactly the groups that are due at some time are listed, in order."""
        listed = sorted((group.due_ns, group.group) for group in groups if group.due_ns < NEVER)
        assert [entry[:2] for entry in self._entries] == listed, "agenda differs from its groups"


class State:
    """Of one scheduler. ``_dirty`` are groups that the next Settle looks at, ``_wake_ns`` is when it was asked for."""

    def __init__(self, config: Planning) -> None:
        self._config = config
        self._margin_ns = config.margin_ns
        self._lift = NormalDist().inv_cdf(config.quantile) * DEVIATIONS_PER_MEAN_DEVIATION
        self._groups: dict[int, Group] = {}
        self._models: dict[int, Model] = {}
        self._batch_keys: dict[int, BatchKey] = {}
        self._lanes: dict[int, Lane] = {}
        self._waiting: dict[int, QueuedRequest] = {}
        self._running: dict[int, RunningBatch] = {}
        self._queued_bytes = 0
        self._sequence = 0
        self._batches = 0
        self._dirty: dict[Group, None] = {}
        self._agenda = Agenda()
        self._wake_ns = NEVER

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def unsettled(self) -> bool:
        """Whether Settle has lanes to look at: something came for one that can take it, or one came back."""
        return bool(self._dirty)

    def price(self, batch_key: int) -> leases.Price:
        """What a front end may promise requests of ``batch_key`` by, as of now (one that is not open costs nothing)."""
        return leases.price(self._batch_keys.get(batch_key), self._margin_ns)

    def statistics(self) -> SchedulerStatistics:
        """Sums of what is queued and known: nothing is built for each lane or batch key."""
        return SchedulerStatistics(
            queued=len(self._waiting),
            queued_bytes=self._queued_bytes,
            queued_by_model={model.model: model.queued for model in self._models.values() if model.queued},
            batch_keys=len(self._batch_keys),
        )

    def check_integrity(self) -> None:
        """Assert that every number kept agrees with what it counts. Costs time in proportion to all that is
        queued."""
        for group in self._groups.values():
            check_group(group)
            check_grants(group, group in self._dirty)
        assert len(self._waiting) == sum(group.queued for group in self._groups.values()), "queued differs"
        assert self._queued_bytes == sum(entry.nbytes for entry in self._waiting.values()), (
            "queued bytes differ"
        )
        assert len(self._running) == sum(len(lane.batches) for lane in self._lanes.values()), (
            "batch without a lane"
        )
        self._agenda.check_integrity(list(self._groups.values()))
        for request, entry in self._waiting.items():
            assert entry.request == request, "request under a wrong id"
            assert entry.batch_key.model.group.due_ns <= entry.deadline_ns, "nobody would notice its deadline"

    # --- queued requests

    def _enqueue(self, entry: QueuedRequest) -> None:
        group = entry.batch_key.model.group
        assert entry.request not in self._waiting, "a request arrived twice"
        self._waiting[entry.request] = entry
        self._queued_bytes += entry.nbytes
        enqueue(group, entry)
        if group.eager:
            self._dirty[group] = None
        due_ns = min(entry.deadline_ns, entry.delay_at_ns) if entry.delay_at_ns else entry.deadline_ns
        self._due_by(group, due_ns)

    def _due_by(self, group: Group, at_ns: int) -> None:
        """Look at ``group`` at ``at_ns`` at the latest."""
        if at_ns < group.due_ns:
            self._agenda.set(group, at_ns)

    def _unlist(self, entry: QueuedRequest) -> None:
        """Forget a queued request that leaves otherwise than in a batch; its group has yet to."""
        del self._waiting[entry.request]
        self._queued_bytes -= entry.nbytes
        group = entry.batch_key.model.group
        if group.eager:
            self._dirty[group] = None

    def _remove(self, entry: QueuedRequest) -> None:
        self._unlist(entry)
        remove(entry.batch_key.model.group, entry)

    def _empty(self, batch_keys: list[BatchKey]) -> list[int]:
        """Remove everything queued for ``batch_keys``; the requests that were."""
        entries = [key[3] for batch_key in batch_keys for key in batch_key.queue]
        for entry in entries:
            self._remove(entry)
        return [entry.request for entry in entries]

    def _again(self, entries: list[QueuedRequest], now_ns: int, *, ran: bool, final: bool) -> list[Action]:
        """Queue a batch of a worker that died once more, where that can still help: only one that ``ran`` counts as
        tried, and is not tried again where that was ``final``."""
        actions: list[Action] = []
        for entry in entries:
            batch_key = entry.batch_key
            late = now_ns + batch_key.profile.estimate(entry.rows) >= entry.deadline_ns
            if batch_key.model.closed:
                actions.append(Evicted(entry.request))
            elif late or (ran and (final or entry.retried)):
                actions.append(Lost(entry.request))
            else:
                entry.retried = entry.retried or ran
                self._enqueue(entry)
        return actions
