"""A world for the scheduler, made from a seed: a virtual clock, workers that take scripted time, clients,
accidents.

Three kinds: ``exact`` (service times as estimated), ``early`` (never longer than estimated, mostly shorter)
and ``wild`` (noise, batch keys nobody measured, crashing lanes, closing models, queue time-outs that delay). In
the first two every deadline that was admitted must be met. A ``Referee`` watches each step in all of them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Action, Dispatch, WakeAt
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import Batching, QueuePolicy, TimeoutAction
from tests.core.scheduler_detail import is_empty
from tests.simulation.referee import Referee, Scope

KINDS = ("exact", "early", "wild", "exact", "wild")
MICROSECOND = 1_000
MILLISECOND = 1_000_000
Trace = Callable[[int, object, object], None]
Happening = on.Event | Callable[[], None] | None
"""What is planned for a time: news for the scheduler, something else, or only a Settle."""


@dataclass(slots=True, kw_only=True)
class Template:
    """A batch key with the service time it really has: ``fixed_ns`` + rows * ``per_row_ns``."""

    batch_key: int
    model: int
    max_batch: int
    fixed_ns: int
    per_row_ns: int
    open: bool = True

    def service_ns(self, rows: int) -> int:
        """What a batch of ``rows`` takes."""
        return self.fixed_ns + self.per_row_ns * rows


class World:
    """One scenario. ``run`` plays it to its end; an AssertionError means a rule was broken."""

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.random = random.Random(seed)
        self.kind = KINDS[seed % len(KINDS)]
        self.config = self._config()
        self.scheduler = Scheduler(self.config)
        scope = Scope(promises=self.kind != "wild", margin_ns=self.config.margin_ns)
        self.referee = Referee(self.config, scope)
        self.now_ns = self.random.randrange(1, 1 << 45)
        self._trace = trace
        self._calendar: list[tuple[int, int, Happening]] = []
        self._ticket = 0
        self._lanes: dict[int, int] = {}
        self._lane_ends: dict[int, int] = {}
        self._batch_rows: dict[int, int] = {}
        self._templates: list[Template] = []
        self._requests = 0

    def run(self) -> Referee:
        """Open the world, let requests come, close it; every request must have ended."""
        self._open()
        self._plan_arrivals()
        if self.kind == "wild":
            self._plan_accidents()
        while self._calendar:
            self._turn()
        self.referee.all_ended()
        self._close()
        return self.referee

    # --- making the world

    def _config(self) -> Planning:
        rng = self.random
        tight = rng.random() < 0.2
        return Planning(
            max_queued_requests=rng.randrange(4, 30) if tight else 1000,
            max_queued_bytes=rng.randrange(2_000, 20_000) if tight else 1 << 30,
            max_queued_per_model=rng.randrange(2, 20) if tight else 1000,
            margin_ns=rng.choice((0, 100 * MICROSECOND, MILLISECOND)),
            prefetch_ns=rng.choice((0, 3 * MILLISECOND, 20 * MILLISECOND)),
            probe_after_refusals=rng.choice((0, 4)) if self.kind == "wild" else 0,
        )

    def _open(self) -> None:
        rng = self.random
        batch_keys = 0
        for group in range(rng.choice((1, 1, 2))):
            self._step(on.GroupOpened(group))
            for _ in range(rng.choice((1, 1, 2, 3))):
                self._open_lane(len(self._lanes), group)
            for _ in range(rng.choice((1, 2, 3))):
                model = batch_keys + 100
                max_batch = rng.choice((1, 2, 4, 8, 16))
                self._step(on.ModelOpened(model, group, max_batch, self._batching(max_batch)))
                for _ in range(rng.choice((1, 1, 2))):
                    self._open_batch_key(batch_keys, model, max_batch)
                    batch_keys += 1

    def _open_lane(self, lane: int, group: int) -> None:
        self._lanes[lane] = group
        self._lane_ends[lane] = 0
        self._step(on.LaneOpened(lane, group))

    def _open_batch_key(self, batch_key: int, model: int, max_batch: int) -> None:
        rng = self.random
        fixed_ns = rng.choice((0, rng.randrange(1, 12 * MILLISECOND), rng.randrange(1, MILLISECOND)))
        per_row_ns = rng.choice((rng.randrange(1, MILLISECOND), rng.randrange(1, 4 * MILLISECOND)))
        template = Template(
            batch_key=batch_key, model=model, max_batch=max_batch, fixed_ns=fixed_ns, per_row_ns=per_row_ns
        )
        self._templates.append(template)
        sizes = {1, max_batch}
        seeds = tuple((rows, template.service_ns(rows)) for rows in sorted(sizes))
        if self.kind == "wild":
            seeds = rng.choice(((), seeds, seeds[:1]))
        self._step(on.BatchKeyOpened(batch_key, model, seeds))

    def _batching(self, max_batch: int) -> Batching:
        rng = self.random
        levels = rng.choice((0, 0, 0, 2, 3))
        waits = rng.random() < 0.25
        sizes = (
            tuple(sorted({rng.randrange(1, max_batch + 1) for _ in range(2)})) if rng.random() < 0.5 else ()
        )
        return Batching(
            preferred_batch_size=sizes if waits else (),
            max_queue_delay_us=rng.randrange(100, 8_000) if waits else 0,
            priority_levels=levels,
            default_priority_level=rng.randrange(1, levels + 1) if levels else 0,
            default_queue_policy=self._policy(),
            priority_queue_policy={1: self._policy()} if levels and rng.random() < 0.5 else {},
        )

    def _policy(self) -> QueuePolicy:
        rng = self.random
        delays = self.kind == "wild" and rng.random() < 0.5
        return QueuePolicy(
            timeout_action=TimeoutAction.DELAY if delays else TimeoutAction.REJECT,
            default_timeout_us=rng.randrange(2_000, 50_000) if rng.random() < 0.2 else 0,
            max_queue_size=rng.randrange(1, 12) if rng.random() < 0.15 else 0,
        )

    # --- what will happen

    def _plan_arrivals(self) -> None:
        """Clients come in bursts, at 0.3 to 3 times what the lanes can serve."""
        rng = self.random
        count = rng.randrange(30, 130)
        per_row = [t.fixed_ns / t.max_batch + t.per_row_ns for t in self._templates]
        mean_ns = sum(per_row) / len(per_row) / len(self._lanes) / rng.choice((0.3, 0.8, 1.2, 3.0))
        burst = rng.choice((1, 1, 4, 16))
        at_ns = self.now_ns
        slack = rng.choice((1.2, 2, 5, 20))
        while count > 0:
            at_ns += int(rng.expovariate(1 / (mean_ns * burst)))
            for _ in range(rng.randrange(1, burst * 2)):
                count -= 1
                self._at(at_ns, self._arrival(at_ns, slack))

    def _arrival(self, at_ns: int, slack: float) -> on.Arrived:
        rng = self.random
        template = rng.choice(self._templates)
        rows = rng.choice((1, 1, 1, rng.randrange(1, template.max_batch + 1)))
        budget_ns = int(
            template.service_ns(rows) * rng.uniform(0.8, 1.5) * rng.choice((1, slack, slack, 3 * slack))
        )
        deadline_ns = at_ns + budget_ns + self.config.margin_ns if rng.random() < 0.9 else NO_DEADLINE
        self._requests += 1
        request = self._requests
        if rng.random() < 0.1:
            self._at(at_ns + rng.randrange(0, 20 * MILLISECOND), on.CancelRequested(request))
        timeout_us = rng.randrange(1, 40_000) if rng.random() < 0.1 else 0
        priority = rng.choice((0, 0, 1, 2, 3))
        return on.Arrived(
            request, template.batch_key, rows, rng.randrange(1, 500), priority, deadline_ns, timeout_us
        )

    def _plan_accidents(self) -> None:
        rng = self.random
        end_ns = max(at_ns for at_ns, _, _ in self._calendar)
        for _ in range(rng.choice((0, 1, 3))):
            at_ns = rng.randrange(self.now_ns, end_ns + 1)
            lane = rng.choice(list(self._lanes))
            back_at_ns = at_ns + rng.randrange(1, 20 * MILLISECOND) if rng.random() < 0.8 else 0
            self._at(at_ns, on.LaneClosed(lane, back_at_ns))
            if back_at_ns:
                back_ns = back_at_ns + rng.randrange(-min(MILLISECOND, back_at_ns - at_ns), 5 * MILLISECOND)
                self._at(back_ns, on.LaneOpened(lane, self._lanes[lane]))
        if rng.random() < 0.3:
            self._at(
                rng.randrange(self.now_ns, end_ns + 1), on.ModelClosed(rng.choice(self._templates).model)
            )

    def _at(self, at_ns: int, event: Happening) -> None:
        self._ticket += 1
        heapq.heappush(self._calendar, (at_ns, self._ticket, event))

    # --- playing it

    def _turn(self) -> None:
        """Everything that happens at one instant, and the Settle that ends it."""
        self.now_ns = self._calendar[0][0]
        while self._calendar and self._calendar[0][0] == self.now_ns:
            self._happen(heapq.heappop(self._calendar)[2])
        self._step(on.Settle())

    def _happen(self, event: Happening) -> None:
        if callable(event):
            event()
        elif event is not None and self._possible(event):
            self._step(event)

    def _possible(self, event: on.Event) -> bool:
        """Whether the engine would say this now: accidents were planned without knowing each other."""
        if isinstance(event, on.LaneClosed):
            return event.lane in self.referee.lanes
        if isinstance(event, on.LaneOpened):
            return event.lane in self.referee.returning
        if isinstance(event, on.ModelClosed):
            for template in self._templates:
                template.open = template.open and template.model != event.model
        if isinstance(event, on.Arrived):
            return next(t.open for t in self._templates if t.batch_key == event.batch_key)
        return True

    def _step(self, event: on.Event) -> None:
        actions = self.scheduler.step(event, self.now_ns)
        if self._trace is not None:
            self._trace(self.now_ns, event, actions)
        self.referee.after(event, actions, self.now_ns)
        self.scheduler.check_integrity()
        if isinstance(event, on.LaneClosed):
            self._lane_ends[event.lane] = 0
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        if isinstance(action, WakeAt):
            self._at(action.at_ns, None)
        elif isinstance(action, Dispatch):
            rows = sum(self.referee.requests[request].event.rows for request in action.requests)
            start_ns = max(self.now_ns, self._lane_ends[action.lane])
            end_ns = start_ns + self._service_ns(action.batch_key, rows)
            self._lane_ends[action.lane] = end_ns
            learn = self.kind == "exact" or (self.kind == "wild" and self.random.random() < 0.9)
            self._at(end_ns, on.BatchFinished(action.batch, learn))

    def _service_ns(self, batch_key: int, rows: int) -> int:
        rng = self.random
        planned_ns = next(t for t in self._templates if t.batch_key == batch_key).service_ns(rows)
        if self.kind == "exact":
            return planned_ns
        if self.kind == "early":
            return int(planned_ns * rng.choice((1, rng.uniform(0.2, 1))))
        return int(
            planned_ns * rng.choice((1, rng.uniform(0.5, 2), rng.uniform(0.9, 1.1), rng.expovariate(1)))
        )

    def _close(self) -> None:
        for template in self._templates:
            self._step(on.BatchKeyClosed(template.batch_key))
        for model in {template.model for template in self._templates if template.open}:
            self._step(on.ModelClosed(model))
        for group in set(self._lanes.values()):
            self._step(on.GroupClosed(group))
        assert is_empty(self.scheduler)
