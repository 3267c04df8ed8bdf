"""A world of the scheduler with a front end that is leased lanes: what it may do by itself it does, and tells late.

Requests come by the front end or to the scheduler. The front end sends what its prices promise to the leased lane of
the group with the least work, up to a limit, refuses or hands over the rest, and hands over what a worker died with.
News of it come up to 2 ms late, before requests of the scheduler's or not. Lanes cannot all be leased; models that
may not pass the scheduler by come and go.

The referee sees to the leases themselves. Here is checked that every request ends once, and in the worlds of kind
``exact`` and ``early`` that promises hold but for what could not be known: a request of the scheduler's may be late by
leased batches with requests that were not told when it was admitted, and one of the front end's by the scheduler's
batches that ran in its lane meanwhile, or since the front end believed what ran there before it to run.
"""

from __future__ import annotations

from functools import partial

from appliance.core.scheduling import events as on
from appliance.core.scheduling.actions import Action, Dispatch, GrantLease, RevokeLease
from appliance.core.scheduling.leases import Price
from appliance.domain.inference import NO_DEADLINE
from appliance.domain.model import Batching
from tests.simulation.referee import Request, Scope
from tests.simulation.scheduler_world import MICROSECOND, MILLISECOND, Happening, Trace, World
from tests.simulation.simulated_front_end import Flight, Sent, ServerLane, Worker

SPECIAL_MODEL = 900
STRANGER = -1
"""The batch key of batches that nothing shall be learned from."""


class LeasedWorld(World):
    """One scenario with a front end."""

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        super().__init__(seed, trace)
        rng = self.random
        promises = self.kind != "wild"
        self.referee.scope = Scope(
            promises=promises, margin_ns=self.config.margin_ns, excuse_ns=self._excuse_ns
        )
        self._native_share = rng.choice((0.3, 0.7, 1.0))
        self._limit = rng.choice((1, 4, 16, 512))
        self._news_ns = rng.choice((MICROSECOND, 300 * MICROSECOND, 2 * MILLISECOND))
        self._refreshes = rng.random() < 0.5
        """Leased work is told before each request of the scheduler's and with each revocation."""
        self._refuses = rng.random() < 0.5
        self._by_turns = rng.random() < 0.3
        self._server: dict[int, ServerLane] = {}
        self._workers: dict[int, Worker] = {}
        self._prices: dict[int, Price] = {}
        self._native: set[int] = set()
        self._with_front_end: dict[int, on.Arrived] = {}
        self._ends: dict[int, str] = {}
        self._news_due = False
        self._order = 0
        """Counts submissions and news, to tell what was known when."""
        self._submitted: dict[int, int] = {}
        self._told: dict[int, tuple[int, int]] = {}
        """When a lane's work was last told, and how many requests there were."""
        self._known: dict[int, dict[int, int]] = {}
        """Of each of the scheduler's requests, what had been told of each lane when it came."""
        self._leased_runs: list[tuple[int, int, int, int]] = []
        """Lane, start, how long it is believed to take, and the order of the latest request in the batch."""
        self._sent_runs: list[tuple[int, int, int]] = []

    # --- making the world

    def _open(self) -> None:
        super()._open()
        self._publish()
        rng = self.random
        if rng.random() < 0.3:
            at_ns = self.now_ns + rng.randrange(200 * MILLISECOND)
            special = on.ModelOpened(SPECIAL_MODEL, self._lanes[0], 4, Batching(max_queue_delay_us=500))
            self._at(at_ns, special)
            self._at(at_ns + rng.randrange(1, 200 * MILLISECOND), on.ModelClosed(SPECIAL_MODEL))

    def _open_lane(self, lane: int, group: int) -> None:
        self._lanes[lane] = group
        self._begin(on.LaneOpened(lane, group))

    def _begin(self, event: on.LaneOpened) -> None:
        leasable = self.random.random() < 0.85
        if leasable:
            self._server[event.lane] = ServerLane(event.lane, event.group, self._limit)
        self._workers[event.lane] = Worker(by_turns=self._by_turns)
        self._told.pop(event.lane, None)
        self._step(event._replace(leasable=leasable))

    def _batching(self, max_batch: int) -> Batching:
        return Batching() if self.random.random() < 0.85 else super()._batching(max_batch)

    def _arrival(self, at_ns: int, slack: float) -> on.Arrived:
        event = super()._arrival(at_ns, slack)
        if not event.timeout_us and self.random.random() < self._native_share:
            self._native.add(event.request)
        return event

    def _publish(self) -> None:
        for template in self._templates:
            self._prices[template.batch_key] = self.scheduler.price(template.batch_key)

    # --- what happens

    def _happen(self, event: Happening) -> None:
        if isinstance(event, on.LaneOpened):
            if self._possible(event):
                self._begin(event)
        elif isinstance(event, on.LaneClosed):
            if self._possible(event):
                self._end(event)
        elif isinstance(event, on.Arrived) and self._possible(event):
            if event.request not in self._native or not self._receive(event):
                self._hand_over(event)
        elif isinstance(event, on.CancelRequested) and event.request in self._with_front_end:
            self._say("cancelled at the front end", event.request)
        else:
            super()._happen(event)

    def _possible(self, event: on.Event) -> bool:
        if isinstance(event, on.Arrived) and self._ends.get(event.request):
            raise AssertionError(f"request {event.request} comes after its end")
        return super()._possible(event)

    def _receive(self, event: on.Arrived) -> bool:
        """The front end's decision: true when the request needs the scheduler no more."""
        group = self._group(event.batch_key)
        lanes = [
            lane
            for lane in self._server.values()
            if lane.group == group and lane.leased and len(lane.flights) < lane.limit
        ]
        if not lanes:
            return False
        lane = min(lanes, key=lambda lane: (lane.work_ns, len(lane.flights)))
        price = self._prices[event.batch_key]
        if event.deadline_ns < NO_DEADLINE and not lane.in_time(
            event.batch_key, event.rows, price, event.deadline_ns, self.now_ns
        ):
            if not lane.flights or not self._refuses:
                return False
            self._ended(event.request, "refused at the front end")
            return True
        flight = lane.submit(
            event.request, event.batch_key, event.rows, event.deadline_ns, price, self.now_ns
        )
        self._say("submitted", flight)
        self._with_front_end[event.request] = event
        self._submitted[event.request] = self._next()
        self._workers[lane.lane].ring.append(flight)
        self._note()
        self._wake(lane.lane)
        return True

    def _hand_over(self, event: on.Arrived) -> None:
        """The scheduler's now, with what the front end knows told before or not."""
        group = self._group(event.batch_key)
        if self._refreshes:
            for lane in self._server.values():
                if lane.group == group:
                    self._tell(lane)
        self._known[event.request] = {lane: order for lane, (order, _) in self._told.items()}
        self._step(event)

    def _end(self, event: on.LaneClosed) -> None:
        """A worker died: what the front end had sent it comes back as requests of their own."""
        del self._workers[event.lane]
        front_end = self._server.pop(event.lane, None)
        self._step(event)
        for flight in front_end.flights if front_end else ():
            arrival = self._with_front_end.pop(flight.request)
            if self._possible(arrival):
                self._hand_over(arrival._replace(retried=True))

    def _group(self, batch_key: int) -> int:
        return self.referee.models[self.referee.batch_keys[batch_key]].group

    # --- actions

    def _perform(self, action: Action) -> None:
        match action:
            case Dispatch():
                rows = sum(self.referee.requests[request].event.rows for request in action.requests)
                sent = Sent(batch=action.batch, batch_key=action.batch_key, rows=rows)
                self._workers[action.lane].mail.append(sent)
                self._wake(action.lane)
            case GrantLease(lane):
                self._server[lane].leased = True
            case RevokeLease(lane):
                self._server[lane].leased = False
                if self._refreshes:
                    self._tell(self._server[lane])
            case _:
                super()._perform(action)

    # --- workers

    def _wake(self, lane: int) -> None:
        worker = self._workers[lane]
        if worker.busy:
            return
        sizes = {template.batch_key: template.max_batch for template in self._templates}
        work, expired = worker.take(sizes, self.now_ns)
        for flight in expired:
            self._server[lane].flights.remove(flight)
            self._check_promise(flight, lane, self.now_ns + flight.deadline_ns - flight.start_by_ns)
            self._believed(lane, [flight])
            self._finish(flight, "expired at the worker")
            self._note()
        if work is None:
            return
        worker.busy = True
        if isinstance(work, Sent):
            ns = self._service_ns(work.batch_key, work.rows)
            self._sent_runs.append((lane, self.now_ns, self.now_ns + ns))
        else:
            ns = self._service_ns(work[0].batch_key, sum(flight.rows for flight in work))
            self._believed(lane, work)
        self._at(self.now_ns + ns, partial(self._ran, lane, worker, work, ns))

    def _believed(self, lane: int, flights: list[Flight]) -> None:
        latest = max(self._submitted[flight.request] for flight in flights)
        believed_ns = flights[0].price.batch_ns + sum(flight.charge_ns for flight in flights)
        self._leased_runs.append((lane, self.now_ns, believed_ns, latest))

    def _ran(self, lane: int, worker: Worker, work: Sent | list[Flight], ns: int) -> None:
        """A batch ended, unless its worker did before."""
        if self._workers.get(lane) is not worker:
            return
        worker.busy = False
        if isinstance(work, Sent):
            if self.random.random() < 0.5:
                self._news()
            learn = self.kind == "exact" or (self.kind == "wild" and self.random.random() < 0.9)
            told_ns = 0 if self.kind == "wild" and self.random.random() < 0.3 else ns
            self._step(on.BatchFinished(work.batch, learn, told_ns))
        else:
            self._server[lane].completed(work, ns, self.now_ns)
            self._note()
            for flight in work:
                self._completed(flight, lane)
        self._wake(lane)

    def _completed(self, flight: Flight, lane: int) -> None:
        if self.kind == "wild" and self.random.random() < 0.05:
            arrival = self._with_front_end.pop(flight.request)
            if self._possible(arrival):
                self._hand_over(arrival)
            return
        self._check_promise(flight, lane, self.now_ns)
        self._finish(flight, "answered by the front end")

    def _finish(self, flight: Flight, outcome: str) -> None:
        del self._with_front_end[flight.request]
        self._ended(flight.request, outcome)

    def _ended(self, request: int, outcome: str) -> None:
        assert request not in self._ends, f"request {request} ended twice"
        assert request not in self.referee.requests, f"request {request} was the scheduler's"
        self._ends[request] = outcome
        self.referee.outcomes[outcome] = self.referee.outcomes.get(outcome, 0) + 1
        self._say(outcome, request)

    # --- news

    def _note(self) -> None:
        """Something happened at the front end that will be told."""
        if not self._news_due:
            self._news_due = True
            self._at(self.now_ns + self.random.randrange(self._news_ns), self._news)

    def _news(self) -> None:
        self._news_due = False
        for lane in self._server.values():
            if lane.flights or self._told.get(lane.lane, (0, 0))[1]:
                self._tell(lane)
        self._publish()

    def _tell(self, lane: ServerLane) -> None:
        """What ran in it, and what is under way."""
        for (batch_key, rows), (count, sum_ns) in lane.ran.items():
            learned = STRANGER if self.kind == "early" else batch_key
            self._step(on.LeasedRan(lane.lane, learned, rows, sum_ns // count, count))
        lane.ran.clear()
        self._told[lane.lane] = (self._next(), len(lane.flights))
        self._step(on.LeasedWork(lane.lane, len(lane.flights), lane.work_ns))

    def _next(self) -> int:
        self._order += 1
        return self._order

    # --- promises

    def _excuse_ns(self, known: Request, now_ns: int) -> int:
        """The leased batches in the way of a request that could not be known when it was admitted, as long as the
        scheduler believes them to be, once it is told: so long it avoids their lane."""
        told = self._known[known.event.request]
        group = known.group
        return sum(
            believed_ns
            for lane, start_ns, believed_ns, latest in self._leased_runs
            if self._lanes[lane] == group and start_ns <= now_ns and latest > told.get(lane, 0)
        )

    def _check_promise(self, flight: Flight, lane: int, end_ns: int) -> None:
        if self.kind == "wild" or flight.deadline_ns >= NO_DEADLINE:
            return
        late_ns = end_ns - (flight.deadline_ns - self.config.margin_ns)
        excuse_ns = sum(
            ran_ns - start_ns
            for other, start_ns, ran_ns in self._sent_runs
            if other == lane and start_ns <= self.now_ns and ran_ns > flight.since_ns
        )
        assert late_ns <= excuse_ns, f"leased request {flight.request} was {late_ns} ns late"

    # --- the end

    def _close(self) -> None:
        assert not self._with_front_end, f"requests {sorted(self._with_front_end)} never left the front end"
        super()._close()

    def _say(self, what: str, about: object) -> None:
        if self._trace is not None:
            self._trace(self.now_ns, what, about)
