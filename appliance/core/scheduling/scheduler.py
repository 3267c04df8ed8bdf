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

from statistics import NormalDist
from typing import assert_never

from appliance.core.scheduling import events as on
from appliance.core.scheduling import leases
from appliance.core.scheduling.actions import (
    Action,
    Dispatch,
    Dropped,
    Evicted,
    Expired,
    Lost,
    Refusal,
    Refused,
    WakeAt,
)
from appliance.core.scheduling.admission import admit, release_hold
from appliance.core.scheduling.agenda import Agenda
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
from appliance.core.scheduling.group import LEVEL_ORDINARY, NEVER, Group, Lane, Model, Running, Shape, Waiting
from appliance.core.scheduling.integrity import check_grants, check_group
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.profile import ServiceTime
from appliance.core.scheduling.register import Register
from appliance.core.scheduling.statistics import SchedulerStatistics, lane_statistics, shape_statistics

DEVIATIONS_PER_MEAN_DEVIATION = 1.2533
"""Standard deviation over mean absolute deviation of a normal distribution."""


class Scheduler:
    """Decides which request runs where and when. Owned by one engine; not thread-safe."""

    def __init__(self, config: Planning) -> None:
        self._config = config
        self._margin_ns = config.margin_ns
        self._lift = NormalDist().inv_cdf(config.quantile) * DEVIATIONS_PER_MEAN_DEVIATION
        self._groups: dict[int, Group] = {}
        self._models: dict[int, Model] = {}
        self._shapes: dict[int, Shape] = {}
        self._lanes: dict[int, Lane] = {}
        self._waiting = Register()
        self._running: dict[int, Running] = {}
        self._queued_bytes = 0
        self._sequence = 0
        self._batches = 0
        self._dirty: dict[Group, None] = {}
        self._agenda = Agenda()
        self._wake_ns = NEVER

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

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def unsettled(self) -> bool:
        """Whether Settle has lanes to look at: something came for one that can take it, or one came back."""
        return bool(self._dirty)

    def price(self, shape: int) -> leases.Price:
        """What a front end may promise requests of ``shape`` by, as of now (a shape that is not open costs nothing)."""
        return leases.price(self._shapes.get(shape), self._margin_ns)

    def statistics(self) -> SchedulerStatistics:
        """What is queued, what runs, and what is known."""
        return SchedulerStatistics(
            queued=len(self._waiting),
            queued_bytes=self._queued_bytes,
            running=sum(len(running.entries) for running in self._running.values()),
            queued_by_model={model.model: model.queued for model in self._models.values() if model.queued},
            lanes=tuple(lane_statistics(lane) for lane in self._lanes.values()),
            shapes=tuple(shape_statistics(shape) for shape in self._shapes.values()),
        )

    def check_integrity(self) -> None:
        """Assert that every number kept agrees with what it counts. Costs time in proportion to all that is
        queued."""
        for group in self._groups.values():
            check_group(group)
            check_grants(group, group in self._dirty)
        assert len(self._waiting) == sum(group.queued for group in self._groups.values()), "queued differs"
        assert self._queued_bytes == sum(entry.nbytes for entry in self._waiting), "queued bytes differ"
        assert len(self._running) == sum(len(lane.batches) for lane in self._lanes.values()), (
            "batch without a lane"
        )
        self._agenda.check_integrity(list(self._groups.values()))
        self._waiting.check_integrity()
        for entry in self._waiting:
            assert entry.shape.model.group.due_ns <= entry.deadline_ns, "nobody would notice its deadline"

    # --- arrivals

    def _arrived(self, event: on.Arrived, now_ns: int) -> list[Action]:
        request = event.request
        shape = self._shapes.get(event.shape)
        if shape is None or shape.model.closed:
            return [Refused(request, Refusal.UNKNOWN, 0)]
        model = shape.model
        group = model.group
        if not group.lanes and not group.returning:
            return [Refused(request, Refusal.NO_LANE, 0)]
        entry = self._entry(event, shape, now_ns)
        if entry.deadline_ns <= now_ns:
            return [Expired(request)]
        full = self._bound_reached(model, entry)
        if full is not None:
            return [Refused(request, full, self._retry_after(group, now_ns))]
        if entry.deadline_ns < NEVER:
            shape.saw_budget(entry.deadline_ns - now_ns)
        if not shape.row_bytes:
            shape.sized(entry, self._config.plan_tolerance)
        late_ns = admit(group, entry, now_ns, self._margin_ns)
        if late_ns and not self._may_probe(group, shape):
            return [Refused(request, Refusal.DEADLINE, late_ns)]
        self._enqueue(entry)
        return []

    def _entry(self, event: on.Arrived, shape: Shape, now_ns: int) -> Waiting:
        """The request with its level and with one deadline, the earliest of all that hold for it."""
        request, _, rows, nbytes, priority, deadline_ns, timeout_us, retried = event
        self._sequence += 1
        entry = Waiting(request, shape, rows, nbytes, LEVEL_ORDINARY, deadline_ns, self._sequence, now_ns)
        if timeout_us:
            entry.deadline_ns = min(deadline_ns, now_ns + timeout_us * 1000)
        if retried:
            entry.retried = entry.uneven = True
        if not shape.model.plain:
            shape.model.set_terms(entry, priority, now_ns)
        return entry

    def _bound_reached(self, model: Model, entry: Waiting) -> Refusal | None:
        config = self._config
        if self._queued_bytes + entry.nbytes > config.max_queued_bytes:
            return Refusal.QUEUE_BYTES
        if len(self._waiting) >= config.max_queued_requests:
            return Refusal.QUEUE_FULL
        if model.plain:
            return Refusal.QUEUE_FULL if model.queued >= config.max_queued_per_model else None
        bound = model.bound_of(entry.level) or config.max_queued_per_model
        return Refusal.QUEUE_FULL if model.queued_at.get(entry.level, 0) >= bound else None

    def _retry_after(self, group: Group, now_ns: int) -> int:
        return min(group.lane_times(now_ns)) - now_ns

    def _may_probe(self, group: Group, shape: Shape) -> bool:
        """Whether a request that seems too late is run all the same, to see whether the estimate is right."""
        shape.refused_in_a_row += 1
        after = self._config.probe_after_refusals
        if (
            (shape.profile.measured and shape.refused_in_a_row < after)
            or not after
            or not group.idle
            or not group.lanes
        ):
            return False
        shape.refused_in_a_row = 0
        return True

    def _enqueue(self, entry: Waiting) -> None:
        group = entry.shape.model.group
        self._waiting.add(entry)
        self._queued_bytes += entry.nbytes
        group.enqueue(entry)
        if group.eager:
            self._dirty[group] = None
        due_ns = min(entry.deadline_ns, entry.delay_at_ns) if entry.delay_at_ns else entry.deadline_ns
        self._due_by(group, due_ns)

    def _due_by(self, group: Group, at_ns: int) -> None:
        """Look at ``group`` at ``at_ns`` at the latest."""
        if at_ns < group.due_ns:
            self._agenda.set(group, at_ns)

    def _unlist(self, entry: Waiting) -> None:
        """Forget a queued request that leaves otherwise than in a batch; its group has yet to."""
        self._waiting.remove(entry.request)
        self._queued_bytes -= entry.nbytes
        group = entry.shape.model.group
        if group.eager:
            self._dirty[group] = None

    def _remove(self, entry: Waiting) -> None:
        self._unlist(entry)
        entry.shape.model.group.remove(entry)

    def _cancelled(self, event: on.CancelRequested) -> list[Action]:
        entry = self._waiting.find(event.request)
        if entry is None:
            return []
        self._remove(entry)
        group = entry.shape.model.group
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
        shape = running.shape
        shape.refused_in_a_row = 0
        if event.learn:
            shape.profile.measured = True
            ns = now_ns - running.start_ns
            if running.company:
                ns = leases.service_ns(running, ns, event.ns)
            if ns and shape.profile.observe(running.rows, ns):
                shape.learned(self._config.plan_tolerance)
        self._dirty[lane.group] = None
        return []

    def _told(self, event: on.FrontEndNews, now_ns: int) -> list[Action]:
        if isinstance(event, on.LeasedWork):
            lane = self._lanes.get(event.lane)
            if lane is not None and leases.told(lane, event.requests, event.work_ns, now_ns):
                self._dirty[lane.group] = None
            return []
        shape = self._shapes.get(event.shape)
        if isinstance(event, on.BudgetSeen):
            if shape is not None:
                shape.saw_budget(event.budget_ns)
            return []
        lane = self._lanes.get(event.lane)
        if lane is not None:
            leases.ran(lane, event.ns * event.batches, now_ns)
        if shape is not None:
            leases.learn(shape, event.rows, event.ns, event.batches, self._config.plan_tolerance)
        return []

    def _settle(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        agenda = self._agenda
        while agenda.first_ns <= now_ns:
            group = agenda.first()
            self._expire(group, now_ns, actions)
            agenda.set(group, group.next_due())
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
            shape = group.heads[0][3]
            entry = shape.queue.first()[3]
            start_ns = start_at(group, lane, now_ns, config.margin_ns)
            verdict = judge(group, entry, lane, start_ns, now_ns, config.margin_ns)
            if verdict is Verdict.RUN:
                if group.held_ns:
                    release_hold(group, now_ns)
                actions.append(self._dispatch(group, shape, lane, start_ns, now_ns))
            elif verdict is Verdict.LATE:
                self._remove(entry)
                actions.append(Expired(entry.request))
            else:
                group.held_ns = group.held_ns or now_ns
                until_ns = hold_until(group, shape, now_ns, config.margin_ns)
                self._due_by(group, until_ns)
                break
        else:
            release_hold(group, now_ns)
        group.eager = True

    def _dispatch(self, group: Group, shape: Shape, lane: Lane, start_ns: int, now_ns: int) -> Dispatch:
        entries, rows = gather(group, shape, lane, start_ns, self._margin_ns, now_ns)
        group.take(shape, entries)
        for entry in entries:
            self._waiting.remove(entry.request)
            self._queued_bytes -= entry.nbytes
        self._batches += 1
        estimate_ns = shape.fixed_ns + shape.per_row_ns * rows
        running = Running(self._batches, lane, shape, entries, rows, now_ns, estimate_ns)
        self._running[running.batch] = running
        if lane.leasable:
            start_ns = leases.joined(lane, running, now_ns)
        lane.batches.append(running)
        lane.free_ns = start_ns + estimate_ns
        return Dispatch(running.batch, lane.lane, shape.shape, tuple([entry.request for entry in entries]))

    # --- time

    def _expire(self, group: Group, now_ns: int, actions: list[Action]) -> None:
        for shape in [head[3] for head in group.heads]:
            key = shape.queue.first() if shape.queue else None
            while key is not None:
                level, deadline_ns, _, entry = key
                if deadline_ns <= now_ns:
                    self._remove(entry)
                    actions.append(Expired(entry.request))
                key = shape.queue.seek(level if deadline_ns <= now_ns else level + 1)
        group.delay_due(now_ns)

    # --- lanes and models come and go

    def _changed(self, event: on.Membership, now_ns: int) -> list[Action]:
        match event:
            case on.GroupOpened():
                assert event.group not in self._groups, "group opened twice"
                self._groups[event.group] = Group(event.group)
            case on.GroupClosed():
                return self._group_closed(event, now_ns)
            case on.LaneOpened():
                self._lane_opened(event, now_ns)
            case on.LaneClosed():
                return self._lane_closed(event, now_ns)
            case on.ModelOpened():
                assert event.model not in self._models, "model opened twice"
                model = Model(event.model, self._groups[event.group], event.max_batch, event.batching)
                self._models[event.model] = model
                model.group.models.append(model)
                self._regrant(model.group)
            case on.ModelClosed():
                return self._model_closed(event)
            case on.ShapeOpened():
                self._shape_opened(event)
            case on.ShapeClosed():
                self._shape_closed(event)
            case _:
                assert_never(event)
        return []

    def _lane_opened(self, event: on.LaneOpened, now_ns: int) -> None:
        assert event.lane not in self._lanes, "lane opened twice"
        group = self._groups[event.group]
        release_hold(group, now_ns)
        if group.returning:
            group.returning.pop(event.lane if event.lane in group.returning else next(iter(group.returning)))
        lane = self._lanes[event.lane] = Lane(event.lane, group, event.leasable)
        group.lanes.append(lane)
        leases.opened(lane)
        self._dirty[group] = None

    def _lane_closed(self, event: on.LaneClosed, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        lane = self._lanes.pop(event.lane, None)
        if lane is not None:
            group = lane.group
            release_hold(group, now_ns)
            group.lanes.remove(lane)
            leases.closed(lane)
            for running in lane.batches:
                del self._running[running.batch]
                actions += self._again(running.entries, now_ns)
        else:
            awaited = [group for group in self._groups.values() if event.lane in group.returning]
            if not awaited:
                return actions
            group = awaited[0]
            del group.returning[event.lane]
        if event.back_at_ns:
            group.returning[event.lane] = event.back_at_ns
        if not group.lanes and not group.returning:
            actions += [Lost(request) for request in self._empty([head[3] for head in group.heads])]
        return actions

    def _again(self, entries: list[Waiting], now_ns: int) -> list[Action]:
        """Queue requests whose worker died with them once more, where that can still help."""
        actions: list[Action] = []
        for entry in entries:
            shape = entry.shape
            if shape.model.closed:
                actions.append(Evicted(entry.request))
            elif entry.retried or now_ns + shape.profile.estimate(entry.rows) >= entry.deadline_ns:
                actions.append(Lost(entry.request))
            else:
                entry.retried = True
                self._enqueue(entry)
        return actions

    def _empty(self, shapes: list[Shape]) -> list[int]:
        """Remove everything queued for ``shapes``; the requests that were."""
        entries = [key[3] for shape in shapes for key in shape.queue]
        for entry in entries:
            self._remove(entry)
        return [entry.request for entry in entries]

    def _model_closed(self, event: on.ModelClosed) -> list[Action]:
        model = self._models[event.model]
        model.closed = True
        evicted: list[Action] = [Evicted(request) for request in self._empty(model.shapes)]
        self._drop_if_done(model)
        self._regrant(model.group)
        return evicted

    def _shape_opened(self, event: on.ShapeOpened) -> None:
        assert event.shape not in self._shapes, "shape opened twice"
        model = self._models[event.model]
        shape = Shape(event.shape, model, ServiceTime(self._lift, event.seeds))
        self._shapes[event.shape] = shape
        model.shapes.append(shape)
        shape.learned(self._config.plan_tolerance)

    def _shape_closed(self, event: on.ShapeClosed) -> None:
        shape = self._shapes.get(event.shape)
        if shape is None:
            return
        assert not shape.queue, "shape closed with requests queued"
        del self._shapes[event.shape]
        shape.model.shapes.remove(shape)
        self._drop_if_done(shape.model)

    def _regrant(self, group: Group) -> None:
        """The models of ``group`` have changed: see in Settle to its leases."""
        if group.leases.leasable:
            leases.survey(group)
            self._dirty[group] = None

    def _drop_if_done(self, model: Model) -> None:
        if model.closed and not model.shapes:
            del self._models[model.model]
            model.group.models.remove(model)

    def _group_closed(self, event: on.GroupClosed, now_ns: int) -> list[Action]:
        """Close its lanes for good, then all that it served: nothing can end later than this."""
        actions: list[Action] = []
        group = self._groups[event.group]
        for lane in [*(lane.lane for lane in group.lanes), *group.returning]:
            actions += self._lane_closed(on.LaneClosed(lane, 0), now_ns)
        for model in list(group.models):
            actions += self._model_closed(on.ModelClosed(model.model))
            for shape in list(model.shapes):
                self._shape_closed(on.ShapeClosed(shape.shape))
        self._agenda.set(group, NEVER)
        self._dirty.pop(group, None)
        del self._groups[event.group]
        return actions
