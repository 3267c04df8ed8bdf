"""How requests end: what a worker's result means, where outputs go that did not fit, and when outcomes are given out.

Owner: the engine. Outcomes are given out after a turn, so that workers are busy again before answers are encoded.
"""

from __future__ import annotations

from typing import Final

from appliance.domain.errors import (
    Cancelled,
    CapacityError,
    DeadlineExpired,
    InvalidRequest,
    QueueFull,
    RunFailed,
)
from appliance.domain.inference import Answer, Outcome
from appliance.engine.requests.crashes import Crashes
from appliance.engine.requests.mirroring import Mirroring
from appliance.engine.requests.outcome import Accounts, died
from appliance.engine.requests.request import Request
from appliance.engine.requests.rerouting import Rerouting
from appliance.engine.requests.table import RequestTable
from appliance.telemetry.meter import Result
from appliance.workers import port as workers

ATTEMPTS_MAX: Final = 2
"""How often a request is given to a worker before it ends with one that dies."""


class Completion:
    """Takes back what workers give, and gives outcomes out."""

    def __init__(
        self,
        *,
        pool: workers.WorkerPort,
        accounts: Accounts,
        table: RequestTable,
        rerouting: Rerouting,
        mirroring: Mirroring,
        crashes: Crashes,
    ) -> None:
        self._pool = pool
        self._accounts = accounts
        self._table = table
        self._rerouting = rerouting
        self._mirroring = mirroring
        self._crashes = crashes
        self._outcomes: list[tuple[Request, Outcome, Result]] = []
        self._fetching: dict[int, Request] = {}

    def finish(self, request: Request, result: workers.RunResult, now_ns: int) -> None:
        """Take a request back from a worker."""
        request.held = False
        if request.cancelled:
            if result.status is workers.ItemStatus.TOO_LARGE:
                self._forget(request)
            self.cancelled(request)
        elif result.status is workers.ItemStatus.TOO_LARGE:
            self._fetch(request, result)
        elif result.status.failed:
            self._failed(request, result)
        elif now_ns > request.deadline_ns:
            self.end(request, DeadlineExpired("Request timeout expired while it ran"), Result.EXPIRED)
        else:
            request.learn_output_bytes(result.sizes)
            self.end(request, request.answer(self._table.arena, result), Result.SUCCESS)

    def cancelled(self, request: Request) -> None:
        """End a request that was cancelled."""
        self.end(request, Cancelled("Request cancelled"), Result.CANCELLED)

    def _failed(self, request: Request, result: workers.RunResult) -> None:
        text = f"model '{request.plan.model.name}' failed: {result.error}"
        if self._rerouting.elsewhere(request):
            return
        if result.status is workers.ItemStatus.BEYOND:
            self.end(request, CapacityError(text, retry_after_ns=-1), Result.FAILED)
            return
        if result.status is workers.ItemStatus.INVALID:
            self.end(request, InvalidRequest(result.error), Result.INVALID)
            return
        self.end(request, RunFailed(text), Result.FAILED)

    def _fetch(self, request: Request, result: workers.RunResult) -> None:
        """Find outputs that are larger than expected a place of their own, and have them stored there."""
        memory, arena = request.memory, self._table.arena
        request.place_outputs(arena)
        if memory.make_room(arena, result.needed):
            request.held = True
            self._fetching[request.handle] = request
            fetch = workers.Fetch(request.handle, memory.out_offset, memory.out_capacity)
            self._pool.fetch(request.worker, fetch)
            return
        self._forget(request)
        text = f"Exceeds maximum queue size: no memory for {result.needed} bytes of outputs"
        self.end(request, QueueFull(text), Result.REFUSED)

    def _forget(self, request: Request) -> None:
        """Have the worker drop the outputs that it holds."""
        self._pool.fetch(request.worker, workers.Fetch(request.handle, 0, 0))

    def fetched(self, event: workers.Fetched) -> Request | None:
        """The request whose outputs lie where they should; None when it was cancelled."""
        return self._fetching.pop(event.result.ticket, None)

    def lost(self, worker: int) -> None:
        """Run again, where that can help, what a worker took along that was to store outputs once more. To be told
        after ``finish`` of all that it gave back."""
        for request in [request for request in self._fetching.values() if request.worker == worker]:
            del self._fetching[request.handle]
            request.held = False
            request.place_outputs(self._table.arena)
            if request.cancelled:
                self.cancelled(request)
            elif self._rerouting.elsewhere(request):
                continue
            elif request.attempts < ATTEMPTS_MAX:
                self._table.queue(request)
            else:
                self.end(request, died(request), Result.FAILED)

    def died(self, request: Request) -> None:
        """See to a request whose worker died and that its version does not run once more: another may, or its own after
        all where it was one of several."""
        death = request.past.death
        if self._rerouting.elsewhere(request):
            return
        if (
            death is not None
            and not death.alone
            and request.attempts < ATTEMPTS_MAX
            and request.served.opened
        ):
            self._table.queue(request)
        else:
            if death is not None and death.alone:
                self._table.blame(request)
            self.end(request, died(request), Result.FAILED)

    def end(self, request: Request, outcome: Outcome, result: Result) -> None:
        """Give it this outcome, after the turn."""
        assert not request.done
        request.done = True
        if request.past.death is not None:
            self._crashes.request_ended(request, outcome)
        self._outcomes.append((request, outcome, result))

    def hand_out(self, now_ns: int) -> bool:
        """Give out all outcomes there are; callbacks may submit again. Gives whether there were any."""
        if not self._outcomes:
            return False
        outcomes, self._outcomes = self._outcomes, []
        for request, outcome, result in outcomes:
            answered = isinstance(outcome, Answer)
            self._table.end(request, answered=answered)
            self._mirroring.ended(request, outcome)
            self._accounts.ended(request, outcome, result, now_ns)
            if not answered:
                request.free(self._table.arena)
            request.submission.on_done(outcome)
        return True
