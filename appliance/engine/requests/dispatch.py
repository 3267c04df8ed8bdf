"""The way between the scheduler and the workers: it is told what came in, and what it wants done is done.

The batches that workers have are kept here, with what is noted on their requests when one goes and comes back. Owner:
the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from appliance.core.scheduling import actions, events
from appliance.core.scheduling.events import BatchFinished, CancelRequested
from appliance.engine.environment import Pace
from appliance.engine.fastpath.leases import Leases
from appliance.engine.inbox import Inbox
from appliance.engine.requests.completion import ATTEMPTS_MAX, Completion
from appliance.engine.requests.crashes import Crashes
from appliance.engine.requests.outcome import Ended, died, end_of
from appliance.engine.requests.request import Batch, Request
from appliance.engine.requests.table import RequestTable
from appliance.engine.requests.waiting_room import ColdStarts, CountedRefusal, Displaced
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import Result
from appliance.workers.arena import Arena
from appliance.workers.port import Run, RunFinished, RunResult, WorkerPort


class Batches:
    """By batch id. ``given`` counts the requests that each worker got so far."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._batches: dict[int, tuple[Batch, tuple[Request, ...]]] = {}
        self.given: dict[int, int] = {}

    def go(self, action: actions.Dispatch, requests: tuple[Request, ...], now_ns: int) -> Run:
        """Give ``requests`` to a worker; what that is told."""
        served = requests[0].served
        batch = Batch(action.lane, served, now_ns)
        memory = self._arena.of_worker(action.lane)
        for request in requests:
            if request.attempts:
                served.meter.retried()
            if memory is not None:
                request.bring(self._arena, memory)
            request.attempts += 1
            request.held = True
            request.batch = batch
            batch.rows += request.plan.rows
        self._batches[action.batch] = (batch, requests)
        self.given[action.lane] = self.given.get(action.lane, 0) + len(requests)
        return Run(action.batch, served.id, tuple([request.item() for request in requests]))

    def back(self, event: RunFinished, finished: list[tuple[Request, RunResult]]) -> BatchFinished:
        """Take a batch back: its requests are added to ``finished``; what the scheduler is told."""
        batch, requests = self._batches.pop(event.batch)
        batch.stages_ns = stages = (event.gather_ns, event.run_ns, event.scatter_ns)
        finished += zip(requests, event.results, strict=True)
        failed = [result.status.failed for result in event.results]
        if not all(failed):
            batch.served.meter.batch_finished(batch.rows, *stages)
        return BatchFinished(event.batch, not any(failed), sum(stages))

    def lost(self, worker: int, batches: Iterable[int]) -> list[CancelRequested]:
        """Drop batches that ended with their worker, which touches their requests' memory no more; what the scheduler
        is told when it has queued these once more: some of them were cancelled meanwhile."""
        self.given.pop(worker, None)
        cancelled: list[CancelRequested] = []
        for number in batches:
            _, requests = self._batches.pop(number)
            for request in requests:
                request.held = False
                if request.cancelled:
                    cancelled.append(CancelRequested(request.handle))
        return cancelled

    def oldest(self) -> Iterator[tuple[int, int, Served]]:
        """Of each worker that has any, the batch that was given first, and the version that it is for."""
        told: set[int] = set()
        for number, (batch, _) in self._batches.items():
            if batch.worker not in told:
                told.add(batch.worker)
                yield batch.worker, number, batch.served

    def ran(self, batches: Sequence[int]) -> tuple[Request, ...]:
        """The requests of the first of these."""
        return self._batches[batches[0]][1] if batches else ()

    def running_by_model(self) -> Counter[int]:
        """How many requests of each model version run."""
        running: Counter[int] = Counter()
        for batch, requests in self._batches.values():
            running[batch.served.id] += len(requests)
        return running


class Dispatch:
    """Steps the scheduler and performs its actions."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        pool: WorkerPort,
        pace: Pace,
        leases: Leases,
        table: RequestTable,
        completion: Completion,
        crashes: Crashes,
        displaced: Displaced,
    ) -> None:
        self._inbox = inbox
        self._scheduler = inbox.scheduler
        self._pool = pool
        self._pace = pace
        self._leases = leases
        self._table = table
        self._completion = completion
        self.crashes = crashes
        self._displaced = displaced
        self.batches = Batches(table.arena)

    def step(self, now_ns: int) -> None:
        """Tell the scheduler all that has come in, and do what it wants done."""
        while self._inbox:
            for event in self._inbox.take():
                for action in self._scheduler.step(event, now_ns):
                    self._perform(action, now_ns)

    def settle(self, now_ns: int) -> None:
        """Have the scheduler form batches of what is queued."""
        for action in self._scheduler.step(events.Settle(), now_ns):
            self._perform(action, now_ns)

    def refusal(self, request: Request) -> CountedRefusal | None:
        """Why a request is not to be queued, before it is asked how much there is to do; None where it may be."""
        if request.attempts >= ATTEMPTS_MAX:
            self._table.blame(request)
            return died(request), Result.FAILED
        held = self.crashes.refusal(request)
        return (held, Result.REFUSED) if held is not None else None

    def arrive(self, request: Request, now_ns: int) -> Ended | None:
        """Queue a request on the spot, behind all that came before it; or why not."""
        arrival = self._table.arrival(request)
        self.step(now_ns)
        for action in self._scheduler.step(arrival, now_ns):
            assert isinstance(action, Ended), "an arrival is queued or ends"
            return action
        return None

    def take_back(self, request: Request, now_ns: int) -> None:
        """Drop a request that was queued a moment ago."""
        self._scheduler.step(events.CancelRequested(request.handle), now_ns)

    def settle_displaced(self, cold: ColdStarts, now_ns: int) -> None:
        """See what becomes of requests whose version is gone, now that it is known what serves."""
        self._displaced.settle(cold, now_ns)

    def _perform(self, action: actions.Action, now_ns: int) -> None:
        if type(action) is actions.Dispatch:
            requests = tuple([self._table[handle] for handle in action.requests])
            self._pool.dispatch(action.lane, self.batches.go(action, requests, now_ns))
        elif type(action) is actions.WakeAt:
            self._pace.at(action.at_ns)
        elif type(action) is actions.GrantLease or type(action) is actions.RevokeLease:
            self._leases.perform(action)
        elif isinstance(action, Ended | actions.Evicted):
            self._left(self._table[action.request], action)

    def _left(self, request: Request, action: Ended | actions.Evicted) -> None:
        """See to a request that is queued no more, and has not run to its end."""
        if request.cancelled:
            self._completion.cancelled(request)
        elif isinstance(action, actions.Evicted):
            self._displaced.add(request)
        elif type(action) is actions.Lost:
            self._completion.died(request)
        elif type(action) is actions.Dropped and (refused := self.crashes.refusal(request)) is not None:
            self._completion.end(request, refused, Result.REFUSED)
        else:
            self._completion.end(request, *end_of(request, action))
