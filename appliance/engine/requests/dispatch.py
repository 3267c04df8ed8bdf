"""The way between the scheduler and the workers: it is told what came in, and what it wants done is done.

Owner: the engine.
"""

from __future__ import annotations

from appliance.core.scheduling import actions, events
from appliance.engine.environment import Pace
from appliance.engine.fastpath.leases import Leases
from appliance.engine.inbox import Inbox
from appliance.engine.requests.batches import Batches
from appliance.engine.requests.cold import ColdStarts
from appliance.engine.requests.completion import Completion
from appliance.engine.requests.displaced import Displaced
from appliance.engine.requests.outcome import Ended, end_of
from appliance.engine.requests.request import Request
from appliance.engine.requests.rerouting import Rerouting
from appliance.engine.requests.table import RequestTable
from appliance.workers.port import WorkerPort


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
        rerouting: Rerouting,
        displaced: Displaced,
    ) -> None:
        self._inbox = inbox
        self._scheduler = inbox.scheduler
        self._pool = pool
        self._pace = pace
        self._leases = leases
        self._table = table
        self._completion = completion
        self._rerouting = rerouting
        self._displaced = displaced
        self.batches = Batches()

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
        elif type(action) is not actions.Lost or not self._rerouting.elsewhere(request):
            self._completion.end(request, *end_of(request, action))
