"""An open loop of clients against one model on one lane, in virtual time: how much of what is offered is
answered in time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Action, Dispatch, Expired, Refused, WakeAt
from appliance.core.scheduling.planning import Planning
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.model import Batching

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What clients ask for, and what the worker takes: ``fixed_ns`` + rows * ``per_row_ns``, give or take
    ``noise``."""

    fixed_ns: int
    per_row_ns: int
    max_batch: int
    budgets_ns: tuple[int, ...]
    requests_per_second: float
    noise: float = 0.0
    seeded: bool = True
    way_ns: int = 300_000
    """Time outside the scheduler that each request needs of its budget, in and out together."""

    @property
    def capacity(self) -> float:
        """Requests per second that full batches make."""
        return self.max_batch * SECOND / (self.fixed_ns + self.max_batch * self.per_row_ns)


@dataclass(slots=True)
class Tally:
    """How the requests ended."""

    offered: int = 0
    in_time: int = 0
    late: int = 0
    refused: int = 0
    expired: int = 0
    batches: int = 0
    by_front_end: int = 0
    """Requests that a front end sent to its lane by itself."""


def play(offer: Offer, seconds: float, seed: int, measured_ns: int | None = None) -> Tally:
    """Offer it for ``seconds`` of virtual time, and count. ``measured_ns`` is a wrong service time of one row
    that the scheduler is told at first."""
    return Play(offer, seed, measured_ns).run(int(seconds * SECOND))


class Play:
    """One lane and its clients; the worker takes batches one after another."""

    leasable = False

    def __init__(self, offer: Offer, seed: int, measured_ns: int | None) -> None:
        self.offer = offer
        self.measured_ns = measured_ns
        self.random = random.Random(seed)
        self.scheduler = Scheduler(Planning())
        self.tally = Tally()
        self.calendar: list[tuple[int, int, on.Event | Callable[[], None]]] = []
        self.deadlines: dict[int, int] = {}
        self.batches: dict[int, tuple[int, ...]] = {}
        self.lane_end_ns = 0
        self.now_ns = SECOND

    def run(self, span_ns: int) -> Tally:
        offer = self.offer
        seeds: tuple[tuple[int, int], ...] = ()
        if self.measured_ns is not None:
            seeds = ((1, self.measured_ns),)
        elif offer.seeded:
            seeds = tuple((rows, offer.fixed_ns + rows * offer.per_row_ns) for rows in (1, offer.max_batch))
        opening: tuple[on.Event, ...] = (
            on.GroupOpened(1),
            on.LaneOpened(1, 1, self.leasable),
            on.ModelOpened(1, 1, offer.max_batch, Batching()),
            on.BatchKeyOpened(1, 1, seeds),
        )
        for first in (*opening, on.Settle()):
            self._step(first)
        self._arrivals(span_ns)
        while self.calendar:
            self.now_ns = self.calendar[0][0]
            while self.calendar and self.calendar[0][0] == self.now_ns:
                event = heapq.heappop(self.calendar)[2]
                if callable(event):
                    event()
                else:
                    self._step(event)
            self._step(on.Settle())
        return self.tally

    def _arrivals(self, span_ns: int) -> None:
        at_ns, end_ns, request = self.now_ns, self.now_ns + span_ns, 0
        while at_ns < end_ns:
            at_ns += int(self.random.expovariate(self.offer.requests_per_second) * SECOND)
            request += 1
            self.deadlines[request] = at_ns + self.random.choice(self.offer.budgets_ns)
            arrival = on.Arrived(request, 1, 1, 100, 0, self.deadlines[request], 0)
            self._at(at_ns + self.offer.way_ns // 2, arrival)
        self.tally.offered = request

    def _at(self, at_ns: int, event: on.Event | Callable[[], None]) -> None:
        heapq.heappush(self.calendar, (at_ns, len(self.calendar) + self.random.randrange(1 << 60), event))

    def _step(self, event: on.Event) -> None:
        actions = self.scheduler.step(event, self.now_ns)
        if isinstance(event, on.BatchFinished):
            for request in self.batches.pop(event.batch):
                self._answered(request)
        for action in actions:
            self._perform(action)

    def _answered(self, request: int) -> None:
        if self.now_ns + self.offer.way_ns // 2 <= self.deadlines[request]:
            self.tally.in_time += 1
        else:
            self.tally.late += 1

    def _service_ns(self, rows: int) -> int:
        planned_ns = self.offer.fixed_ns + rows * self.offer.per_row_ns
        return int(planned_ns * (1 + self.offer.noise * self.random.uniform(-1, 1)))

    def _perform(self, action: Action) -> None:
        match action:
            case Dispatch():
                self.batches[action.batch] = action.requests
                self.tally.batches += 1
                took_ns = self._service_ns(len(action.requests))
                self.lane_end_ns = max(self.lane_end_ns, self.now_ns) + took_ns
                self._at(self.lane_end_ns, on.BatchFinished(action.batch, True))
            case Refused():
                self.tally.refused += 1
            case Expired():
                self.tally.expired += 1
            case WakeAt():
                self._at(action.at_ns, on.Settle())
            case _:
                raise AssertionError(f"unexpected {action}")
