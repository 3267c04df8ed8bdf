"""Watches a scheduler from outside and objects when it breaks a rule.

It sees only events, actions and the clock, and keeps its own account of every request, batch and lane, by the
simplest means: sets and full scans. It knows nothing of charges, plans or promises, only what they are good
for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from appliance.core.scheduling import actions as do
from appliance.core.scheduling import events as on
from appliance.core.scheduling.planning import Planning
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import Batching, TimeoutAction

DELAYED = 1 << 40
DEPTH_MAX = 2


class RuleBroken(AssertionError):
    """The scheduler did what it must not, or left out what it must do."""


class State(Enum):
    """Where a request is."""

    QUEUED = 0
    RUNNING = 1
    ENDED = 2


@dataclass(slots=True, kw_only=True)
class Request:
    """One request as the referee knows it."""

    event: on.Arrived
    group: int
    model: int
    level: int
    deadline_ns: int
    delay_at_ns: int
    arrived_ns: int
    number: int
    state: State = State.QUEUED
    losses: int = 0
    """How many workers died with it."""

    @property
    def key(self) -> tuple[int, int, int]:
        """Its place in the order."""
        return (self.level, self.deadline_ns, self.number)


@dataclass(slots=True, kw_only=True)
class Scope:
    """What a referee was told to expect of the world it watches."""

    promises: bool
    """Service times are never longer than estimated, and no lane fails: an admitted deadline must be met."""
    margin_ns: int
    excuse_ns: Callable[[Request, int], int] | None = None
    """How much later than promised a request may be as of a time, because of what the scheduler could not know."""


@dataclass(slots=True)
class Referee:
    """Keeps the account. ``after`` is called with every step and what came of it."""

    config: Planning
    scope: Scope
    lanes: dict[int, int] = field(default_factory=dict)
    returning: dict[int, int] = field(default_factory=dict)
    models: dict[int, on.ModelOpened] = field(default_factory=dict)
    batch_keys: dict[int, int] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    queued: dict[int, Request] = field(default_factory=dict)
    batches: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    leasable: set[int] = field(default_factory=set)
    leased: set[int] = field(default_factory=set)
    leased_work: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of lanes with requests of a front end's, as far as was told: how much work, and since when it may run."""
    closed: set[int] = field(default_factory=set)
    wake_ns: int = NO_DEADLINE
    outcomes: dict[str, int] = field(default_factory=dict)
    late: int = 0

    def require(self, condition: bool, rule: str) -> None:
        """Object unless ``condition`` holds."""
        if not condition:
            raise RuleBroken(rule)

    # --- before and after a step

    def after(self, event: on.Event, actions: list[do.Action], now_ns: int) -> None:
        """Book ``event`` and the ``actions`` it led to."""
        self._book(event, now_ns)
        if isinstance(event, on.Arrived):
            self._arrival_answered(event, actions, now_ns)
        else:
            for action in actions:
                self._act(event, action, now_ns)
        if isinstance(event, on.LaneClosed | on.GroupClosed):
            self._check_retries(now_ns)
        if isinstance(event, on.Settle):
            self._check_settled(now_ns)
        self._check_bounds()

    def all_ended(self) -> None:
        """Object when a request is still somewhere."""
        left = [request for request, known in self.requests.items() if known.state is not State.ENDED]
        self.require(not left, f"requests {left} never ended")
        self.require(not self.batches, "batches are left")

    # --- events

    def _book(self, event: on.Event, now_ns: int) -> None:
        match event:
            case on.LaneOpened():
                self.lanes[event.lane] = event.group
                self.returning.pop(event.lane, None)
                if event.leasable:
                    self.leasable.add(event.lane)
            case on.LaneClosed():
                self._lane_closed(event)
            case on.GroupClosed():
                for lane in [lane for lane, group in self.lanes.items() if group == event.group]:
                    self._lane_closed(on.LaneClosed(lane, 0))
            case on.ModelOpened():
                self.models[event.model] = event
            case on.LeasedWork():
                self.leased_work.pop(event.lane, None)
                if event.requests and event.lane in self.lanes:
                    self.leased_work[event.lane] = (event.work_ns, now_ns)
            case on.ModelClosed():
                self.closed.add(event.model)
            case on.BatchKeyOpened():
                self.batch_keys[event.batch_key] = event.model
            case on.BatchFinished():
                self._batch_finished(event, now_ns)
            case on.Settle():
                for request in self.queued.values():
                    if 0 < request.delay_at_ns <= now_ns < request.deadline_ns:
                        request.level = DELAYED
                        request.delay_at_ns = 0
                if self.wake_ns <= now_ns:
                    self.wake_ns = NO_DEADLINE
            case _:
                pass

    def _lane_closed(self, event: on.LaneClosed) -> None:
        group = self.lanes.pop(event.lane)
        self.leasable.discard(event.lane)
        self.leased.discard(event.lane)
        self.leased_work.pop(event.lane, None)
        if event.back_at_ns:
            self.returning[event.lane] = group
        for place, batch in enumerate(
            [each for each, (lane, _) in self.batches.items() if lane == event.lane]
        ):
            for request in self.batches.pop(batch)[1]:
                known = self.requests[request]
                known.losses += not place  # what had yet to begin was not tried
                known.state = State.QUEUED
                self.queued[request] = known

    def _batch_finished(self, event: on.BatchFinished, now_ns: int) -> None:
        if event.batch not in self.batches:
            return
        lane, requests = self.batches.pop(event.batch)
        if lane in self.leased_work:
            self.leased_work[lane] = (self.leased_work[lane][0], now_ns)
        for request in requests:
            known = self.requests[request]
            known.state = State.ENDED
            self._count("answered")
            limit_ns = known.deadline_ns - (self.scope.margin_ns if self.scope.promises else 0)
            if now_ns > limit_ns:
                self.late += 1
                late_ns = now_ns - limit_ns
                self.require(
                    not self.scope.promises or late_ns <= self._excuse(known, now_ns),
                    f"request {request} was answered {late_ns} ns late",
                )

    def _excuse(self, known: Request, now_ns: int) -> int:
        return 0 if self.scope.excuse_ns is None else self.scope.excuse_ns(known, now_ns)

    # --- actions

    def _arrival_answered(self, event: on.Arrived, actions: list[do.Action], now_ns: int) -> None:
        self.require(len(actions) <= 1, "an arrival has one answer at most")
        known = self._request(event, now_ns)
        if not actions:
            self.requests[event.request] = self.queued[event.request] = known
            self.require(known.deadline_ns > now_ns, "admitted after its deadline")
            return
        match actions[0]:
            case do.Refused(request, reason, retry_after_ns):
                self.require(request == event.request, "refused another request")
                self.require(retry_after_ns >= 0, "retry in the past")
                self._count(f"refused: {reason.value}")
                if reason is do.RefusalReason.DEADLINE:
                    self._check_refusal(known, now_ns)
                if reason is do.RefusalReason.NO_LANE:
                    open_lanes = [*self.lanes.values(), *self.returning.values()]
                    self.require(known.group not in open_lanes, "refused although there are lanes")
            case do.Expired(request):
                self.require(request == event.request and known.deadline_ns <= now_ns, "expired too early")
                self._count("expired")
            case _:
                raise RuleBroken(f"{actions[0]} does not answer an arrival")

    def _request(self, event: on.Arrived, now_ns: int) -> Request:
        model = self.models[self.batch_keys[event.batch_key]]
        level, deadline_ns, delay_at_ns = terms(model.batching, event, now_ns)
        return Request(
            event=event,
            group=model.group,
            model=model.model,
            level=level,
            deadline_ns=deadline_ns,
            delay_at_ns=delay_at_ns,
            arrived_ns=now_ns,
            number=len(self.requests),
            losses=int(event.retried),
        )

    def _check_refusal(self, known: Request, now_ns: int) -> None:
        self.require(known.deadline_ns < NO_DEADLINE or self._overtakes(known), "refused without a deadline")

    def _overtakes(self, known: Request) -> bool:
        return any(known.key < other.key for other in self.queued.values() if other.group == known.group)

    def _act(self, event: on.Event, action: do.Action, now_ns: int) -> None:
        match action:
            case do.Dispatch():
                self.require(isinstance(event, on.Settle), "dispatched outside Settle")
                self._dispatched(action)
            case do.Expired(request):
                known = self._end(request, "expired")
                self.require(
                    not self.scope.promises or self._excuse(known, now_ns) > self.scope.margin_ns,
                    f"request {request} was admitted and expired",
                )
                self.require(isinstance(event, on.Settle), "expired outside Settle")
                self.require(known.deadline_ns < NO_DEADLINE, "expired without a deadline")
            case do.Dropped(request):
                self._end(request, "dropped")
                self.require(event == on.CancelRequested(request), "dropped without being cancelled")
            case do.Evicted(request):
                self._end(request, "evicted")
                self.require(
                    isinstance(event, on.ModelClosed | on.LaneClosed | on.GroupClosed), "evicted why?"
                )
            case do.Lost(request):
                self._end(request, "lost")
                self.require(isinstance(event, on.LaneClosed | on.GroupClosed), "lost with its lane there")
            case do.WakeAt(at_ns):
                self.require(at_ns > now_ns, "wake-up in the past")
                self.require(at_ns != self.wake_ns, "told the same wish twice")
                self.wake_ns = at_ns
            case do.GrantLease(lane):
                self.require(isinstance(event, on.Settle), "leased outside Settle")
                self.require(lane in self.leasable - self.leased, f"lane {lane} cannot be leased now")
                self.leased.add(lane)
                self._count("leased")
            case do.RevokeLease(lane):
                self.require(isinstance(event, on.Settle), "revoked outside Settle")
                self.require(lane in self.leased, f"lane {lane} is not leased")
                self.leased.discard(lane)
                self._count("revoked")
            case do.Refused():
                raise RuleBroken(f"{action} without an arrival")

    def _end(self, request: int, outcome: str) -> Request:
        known = self.requests.get(request)
        self.require(known is not None, f"request {request} was never admitted")
        assert known is not None
        self.require(known.state is State.QUEUED, f"request {request} was {known.state.name} and {outcome}")
        known.state = State.ENDED
        del self.queued[request]
        self._count(outcome)
        return known

    def _dispatched(self, action: do.Dispatch) -> None:
        self.require(action.lane in self.lanes, "dispatched to a closed lane")
        self.require(action.batch not in self.batches, "batch id used twice")
        held = [lane for lane, _ in self.batches.values() if lane == action.lane]
        self.require(len(held) < DEPTH_MAX, "lane too deep")
        waiting = [request for request in self.queued.values() if request.group == self.lanes[action.lane]]
        same = sorted(
            (r for r in waiting if r.event.batch_key == action.batch_key), key=lambda request: request.key
        )
        batch = same[: len(action.requests)]
        chosen = tuple(request.event.request for request in batch)
        self.require(chosen == action.requests, f"batch {action.requests}, but first in order were {chosen}")
        self.require(batch[0].key == min(request.key for request in waiting), "a more urgent request waits")
        rows = sum(request.event.rows for request in batch)
        self.require(rows <= self.models[self.batch_keys[action.batch_key]].max_batch, "batch too large")
        for request in batch:
            self.require(request.losses <= 1, "tried a third time")
            self.require(not request.losses or len(batch) == 1, "retried together with others")
            request.state = State.RUNNING
            del self.queued[request.event.request]
        self.batches[action.batch] = (action.lane, list(action.requests))

    # --- standing rules

    def _check_retries(self, now_ns: int) -> None:
        for request in self.queued.values():
            self.require(request.losses < 2, "lost twice and still queued")

    def _check_settled(self, now_ns: int) -> None:
        for request in self.queued.values():
            self.require(request.deadline_ns > now_ns, "late and still queued")
            due_ns = min(request.deadline_ns, request.delay_at_ns or NO_DEADLINE)
            self.require(self.wake_ns <= due_ns, "nothing will wake up for a deadline")
        self._check_grants()
        busy = {lane for lane, _ in self.batches.values()}
        for lane, (ns, since_ns) in self.leased_work.items():
            if (
                now_ns < since_ns + ns or not self.scope.promises
            ):  # what is overdue is expected to go on for as long
                busy.add(lane)
        for lane, group in self.lanes.items():
            if lane not in busy:
                waiting = [request for request in self.queued.values() if request.group == group]
                self.require(
                    not waiting or self._may_wait(waiting, now_ns), f"lane {lane} idles while requests wait"
                )

    def _check_grants(self) -> None:
        """A lane is leased when nothing waits for it and no open model of its group orders or holds its queue."""
        crowded = {request.group for request in self.queued.values()}
        for model, opened in self.models.items():
            batching, policy = opened.batching, opened.batching.default_queue_policy
            special = batching.priority_levels or batching.max_queue_delay_us or policy.max_queue_size
            if model not in self.closed and (special or policy.default_timeout_us):
                crowded.add(opened.group)
        for lane in self.leasable:
            may = self.lanes[lane] not in crowded
            self.require(may == (lane in self.leased), f"lane {lane} {'not' if may else 'still'} leased")

    def _may_wait(self, waiting: list[Request], now_ns: int) -> bool:
        """Whether an idle lane may let these fill a batch: all of one batch key, fewer than wanted, the oldest
        not too old."""
        batching = self.models[waiting[0].model].batching
        wanted = min(batching.preferred_batch_size, default=self.models[waiting[0].model].max_batch)
        oldest_ns = min(request.arrived_ns for request in waiting)
        return (
            len({request.event.batch_key for request in waiting}) == 1
            and sum(request.event.rows for request in waiting) < wanted
            and now_ns < oldest_ns + batching.max_queue_delay_us * 1000
        )

    def _check_bounds(self) -> None:
        fresh = [request for request in self.queued.values() if not request.losses]
        self.require(len(fresh) <= self.config.max_queued_requests, "more queued than allowed")
        nbytes = sum(request.event.nbytes for request in fresh)
        self.require(nbytes <= self.config.max_queued_bytes, "more bytes queued than allowed")
        counts: dict[tuple[int, int], int] = {}
        for request in fresh:
            if request.level < DELAYED:
                place = (request.model, request.level)
                counts[place] = counts.get(place, 0) + 1
        for (model, level), count in counts.items():
            batching = self.models[model].batching
            bound = batching.policy_of(level if batching.priority_levels else 0).max_queue_size
            self.require(count <= (bound or self.config.max_queued_per_model), "level longer than allowed")

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def terms(batching: Batching, event: on.Arrived, now_ns: int) -> tuple[int, int, int]:
    """Level, deadline and time of delay that the rules give a request."""
    level = 1
    if batching.priority_levels:
        in_range = 1 <= event.priority <= batching.priority_levels
        level = event.priority if in_range else batching.default_priority_level
    policy = batching.policy_of(level if batching.priority_levels else 0)
    deadlines = [event.deadline_ns]
    if event.timeout_us:
        deadlines.append(now_ns + event.timeout_us * 1000)
    delay_at_ns = 0
    if policy.default_timeout_us and policy.timeout_action is TimeoutAction.DELAY:
        delay_at_ns = now_ns + policy.default_timeout_us * 1000
    elif policy.default_timeout_us:
        deadlines.append(now_ns + policy.default_timeout_us * 1000)
    return level, min(deadlines), delay_at_ns
