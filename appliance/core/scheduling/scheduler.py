"""The scheduler: a pure state machine from events to actions.

``step(event, now_ns)`` is all there is. The caller stamps events with one monotonic clock, steps the events
of one turn one by one, ends the turn with ``Settle`` and performs the actions. Arrivals are admitted or
refused at once; lanes are filled, and what is late expires, only in ``Settle``, so that the arrivals of one
turn can share a batch.

Order is by (priority level, deadline, arrival). Each request that is not refused ends exactly once: in a
batch that finishes, or as Expired, Dropped, Lost or Evicted. Late news is normal: cancelling a request that
has ended, or finishing a batch that was lost with its lane, does nothing. An id that contradicts itself
(opened twice) is a programmer's error.
"""

from __future__ import annotations

from appliance.core.scheduling import events as on
from appliance.core.scheduling import leases
from appliance.core.scheduling.actions import (
    Action,
    Dispatch,
    Dropped,
    Expired,
    RefusalReason,
    Refused,
    WakeAt,
)
from appliance.core.scheduling.admission import admit, release_hold
from appliance.core.scheduling.batch import (
    Verdict,
    gather,
    hold_until,
    judge,
    lane_to_fill,
    may_follow,
    next_follow,
    start_at,
)
from appliance.core.scheduling.group import (
    LEVEL_ORDINARY,
    NEVER,
    BatchKey,
    Group,
    Lane,
    Model,
    QueuedRequest,
    RunningBatch,
)
from appliance.core.scheduling.membership import Membership
from appliance.core.scheduling.queueing import delay_due, next_due, take


class Scheduler(Membership):
    """Decides which request runs where and when. Owned by one engine; not thread-safe."""

    def step(self, event: on.Event, now_ns: int) -> list[Action]:
        """Take ``event``, which happened at ``now_ns`` (never less than before), and say what is to be
        done."""
        if isinstance(event, on.Arrived):
            return self._arrived(event, now_ns)
        if isinstance(event, on.BatchFinished):
            return self._finished(event, now_ns)
        if isinstance(event, on.Settle):
            return self._settle(now_ns)
        if isinstance(event, on.CancelRequested):
            return self._cancelled(event)
        if isinstance(event, on.LeasedWork | on.LeasedRan | on.BudgetSeen):
            return self._told(event, now_ns)
        return self._changed(event, now_ns)

    # --- arrivals

    def _arrived(self, event: on.Arrived, now_ns: int) -> list[Action]:
        request = event.request
        batch_key = self._batch_keys.get(event.batch_key)
        if batch_key is None or batch_key.model.closed:
            return [Refused(request, RefusalReason.UNKNOWN, 0)]
        model = batch_key.model
        group = model.group
        if not group.lanes and not group.returning:
            return [Refused(request, RefusalReason.NO_LANE, 0)]
        entry = self._entry(event, batch_key, now_ns)
        if entry.deadline_ns <= now_ns:
            return [Expired(request)]
        full = self._bound_reached(model, entry)
        if full is not None:
            return [Refused(request, full, self._retry_after(group, now_ns))]
        if entry.deadline_ns < NEVER:
            batch_key.saw_budget(entry.deadline_ns - now_ns)
        if not batch_key.row_bytes:
            batch_key.sized(entry, self._config.plan_tolerance)
        late_ns = admit(group, entry, now_ns, self._margin_ns)
        if late_ns:
            if not self._may_probe(batch_key, entry, now_ns):
                return [Refused(request, RefusalReason.DEADLINE, late_ns)]
            batch_key.refusals.probe = request
        self._enqueue(entry)
        return []

    def _entry(self, event: on.Arrived, batch_key: BatchKey, now_ns: int) -> QueuedRequest:
        """The request with its level and with one deadline, the earliest of all that hold for it."""
        request, _, rows, nbytes, priority, deadline_ns, timeout_us, retried = event
        self._sequence += 1
        entry = QueuedRequest(
            request, batch_key, rows, nbytes, LEVEL_ORDINARY, deadline_ns, self._sequence, now_ns
        )
        if timeout_us:
            entry.deadline_ns = min(deadline_ns, now_ns + timeout_us * 1000)
        if retried:
            entry.retried = entry.uneven = True
        if not batch_key.model.plain:
            batch_key.model.set_terms(entry, priority, now_ns)
        return entry

    def _bound_reached(self, model: Model, entry: QueuedRequest) -> RefusalReason | None:
        config = self._config
        if self._queued_bytes + entry.nbytes > config.max_queued_bytes:
            return RefusalReason.QUEUE_BYTES
        if len(self._waiting) >= config.max_queued_requests:
            return RefusalReason.QUEUE_FULL
        if model.plain:
            return RefusalReason.QUEUE_FULL if model.queued >= config.max_queued_per_model else None
        bound = model.bound_of(entry.level) or config.max_queued_per_model
        return RefusalReason.QUEUE_FULL if model.queued_at.get(entry.level, 0) >= bound else None

    def _retry_after(self, group: Group, now_ns: int) -> int:
        return min(group.lane_times(now_ns)) - now_ns

    def _may_probe(self, batch_key: BatchKey, entry: QueuedRequest, now_ns: int) -> bool:
        """Whether a request that seems too late is run all the same, to see whether the estimate is right: for long it
        was nothing but a reason to refuse, and no other request pays for it now. One whose deadline is over before it
        could begin shows nothing."""
        group, profile, refusals = batch_key.model.group, batch_key.profile, batch_key.refusals
        refusals.in_a_row += 1
        after = self._config.probe_after_refusals
        if not after or not group.idle or not group.lanes or entry.deadline_ns - now_ns <= self._margin_ns:
            return False
        after = min(after, profile.seen)
        pause_ns = after * profile.estimate(entry.rows)
        return not profile.measured or (refusals.in_a_row >= after and now_ns - refusals.ran_ns >= pause_ns)

    def _cancelled(self, event: on.CancelRequested) -> list[Action]:
        entry = self._waiting.get(event.request)
        if entry is None:
            return []
        self._remove(entry)
        group = entry.batch_key.model.group
        if group.leases.leased < group.leases.leasable:
            self._dirty[group] = None
        return [Dropped(entry.request)]

    # --- batches

    def _finished(self, event: on.BatchFinished, now_ns: int) -> list[Action]:
        running = self._running.pop(event.batch, None)
        if running is None:
            return []
        lane = running.lane
        lane.batches.remove(running)
        lane.free_ns = now_ns + lane.leased_ns
        for after in lane.batches:
            after.start_ns = now_ns
            lane.free_ns += after.estimate_ns
        batch_key = running.batch_key
        batch_key.refusals.end(now_ns)
        if event.learn:
            batch_key.profile.measured = True
            ns = now_ns - running.start_ns
            if running.company:
                ns = leases.service_ns(running, ns, event.ns)
            if ns and batch_key.profile.observe(running.rows, ns):
                batch_key.learned(self._config.plan_tolerance)
        self._dirty[lane.group] = None
        return []

    def _told(self, event: on.FrontEndNews, now_ns: int) -> list[Action]:
        if isinstance(event, on.LeasedWork):
            lane = self._lanes.get(event.lane)
            if lane is not None and leases.told(lane, event.requests, event.work_ns, now_ns):
                self._dirty[lane.group] = None
            return []
        batch_key = self._batch_keys.get(event.batch_key)
        if isinstance(event, on.BudgetSeen):
            if batch_key is not None:
                batch_key.saw_budget(event.budget_ns)
            return []
        lane = self._lanes.get(event.lane)
        if lane is not None:
            leases.ran(lane, event.ns * event.batches, now_ns)
        if batch_key is not None:
            leases.learn(batch_key, event, self._config.plan_tolerance, now_ns)
        return []

    def _settle(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        agenda = self._agenda
        while agenda.first_ns <= now_ns:
            group = agenda.first()
            self._expire(group, now_ns, actions)
            agenda.set(group, next_due(group))
            self._dirty[group] = None
        if self._dirty:
            for group in self._dirty:
                if group.queued:
                    self._fill(group, now_ns, actions)
                else:
                    group.eager = True
                if group.leases.leasable:
                    leases.settle(group, actions)
            self._dirty.clear()
        if self._wake_ns <= now_ns:
            self._wake_ns = NEVER
        first_ns = agenda.first_ns
        if first_ns != self._wake_ns and first_ns < NEVER:
            self._wake_ns = first_ns
            actions.append(WakeAt(first_ns))
        return actions

    def _fill(self, group: Group, now_ns: int, actions: list[Action]) -> None:
        """Give batches to the lanes of ``group`` that can take one."""
        config = self._config
        while group.queued:
            lane = lane_to_fill(group, now_ns, config.prefetch_ns, config.margin_ns)
            if lane is None:
                group.eager = any(may_follow(lane, now_ns, config.prefetch_ns) for lane in group.lanes)
                release_hold(group, now_ns)
                if not group.eager and config.prefetch_ns and group.lanes:
                    self._due_by(group, next_follow(group, config.prefetch_ns))
                if group.leases.leasable:
                    self._due_by(group, leases.drained(group))
                return
            batch_key = group.heads[0][3]
            entry = batch_key.queue.first()[3]
            start_ns = start_at(group, lane, now_ns, config.margin_ns)
            verdict = judge(group, entry, lane, start_ns, now_ns, config.margin_ns)
            if verdict is Verdict.RUN:
                if group.held_ns:
                    release_hold(group, now_ns)
                actions.append(self._dispatch(group, batch_key, lane, start_ns, now_ns))
            elif verdict is Verdict.LATE:
                self._remove(entry)
                actions.append(Expired(entry.request))
            else:
                group.held_ns = group.held_ns or now_ns
                until_ns = hold_until(group, batch_key, now_ns, config.margin_ns)
                self._due_by(group, until_ns)
                break
        else:
            release_hold(group, now_ns)
        group.eager = True

    def _dispatch(
        self, group: Group, batch_key: BatchKey, lane: Lane, start_ns: int, now_ns: int
    ) -> Dispatch:
        entries, rows = gather(group, batch_key, lane, start_ns, self._margin_ns, now_ns)
        take(group, batch_key, entries)
        if batch_key.refusals.take_probe(entries):
            batch_key.profile.doubt()
        for entry in entries:
            del self._waiting[entry.request]
            self._queued_bytes -= entry.nbytes
        self._batches += 1
        estimate_ns = batch_key.fixed_ns + batch_key.per_row_ns * rows
        running = RunningBatch(self._batches, lane, batch_key, entries, rows, now_ns, estimate_ns)
        self._running[running.batch] = running
        if lane.leasable:
            start_ns = leases.joined(lane, running, now_ns)
        lane.batches.append(running)
        lane.free_ns = start_ns + estimate_ns
        return Dispatch(
            running.batch, lane.lane, batch_key.batch_key, tuple([entry.request for entry in entries])
        )

    # --- time

    def _expire(self, group: Group, now_ns: int, actions: list[Action]) -> None:
        for batch_key in [head[3] for head in group.heads]:
            key = batch_key.queue.first() if batch_key.queue else None
            while key is not None:
                level, deadline_ns, _, entry = key
                if deadline_ns <= now_ns:
                    self._remove(entry)
                    actions.append(Expired(entry.request))
                key = batch_key.queue.seek(level if deadline_ns <= now_ns else level + 1)
        delay_due(group, now_ns)
