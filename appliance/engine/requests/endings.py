"""How requests end: what a worker's result means, where outputs go that did not fit, and when outcomes are given out.

Owner: the engine. Outcomes are given out after a turn, so that workers are busy again before answers are encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.domain.errors import Cancelled, DeadlineExpired, InvalidRequest, QueueFull, RunFailed
from appliance.domain.inference import Answer, Outcome
from appliance.engine.requests.accounts import Accounts
from appliance.engine.requests.outcome import died
from appliance.engine.requests.request import Request
from appliance.engine.requests.shapes import Shapes
from appliance.telemetry.meter import Result
from appliance.workers import port as workers
from appliance.workers.arena import Arena

ATTEMPTS_MAX: Final = 2
"""How often a request is given to a worker before it ends with one that dies."""


class Endings:
    """``requests`` are all that have no outcome yet. ``elsewhere`` takes a request that failed to a version that may
    do better, if there is one; ``again`` queues one that lies in memory once more."""

    def __init__(
        self,
        *,
        arena: Arena,
        pool: workers.WorkerPort,
        accounts: Accounts,
        shapes: Shapes,
        requests: dict[int, Request],
        elsewhere: Callable[[Request], bool],
        again: Callable[[Request], None],
    ) -> None:
        self._arena = arena
        self._pool = pool
        self._accounts = accounts
        self._shapes = shapes
        self._requests = requests
        self._elsewhere = elsewhere
        self._again = again
        self._outcomes: list[tuple[Request, Outcome, Result]] = []
        self._fetching: dict[int, Request] = {}

    def finish(self, request: Request, result: workers.RunResult, now_ns: int) -> None:
        """A worker gave it back."""
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
            self.end(request, request.answer(self._arena, result), Result.SUCCESS)

    def cancelled(self, request: Request) -> None:
        """Nobody waits for its outcome."""
        self.end(request, Cancelled("Request cancelled"), Result.CANCELLED)

    def _failed(self, request: Request, result: workers.RunResult) -> None:
        if self._elsewhere(request):
            return
        if result.status is workers.ItemStatus.INVALID:
            self.end(request, InvalidRequest(result.error), Result.INVALID)
            return
        text = f"model '{request.plan.model.name}' failed: {result.error}"
        self.end(request, RunFailed(text), Result.FAILED)

    def _fetch(self, request: Request, result: workers.RunResult) -> None:
        """The outputs are larger than expected: give them a place of their own."""
        request.place_outputs(self._arena)
        request.out_slot = self._arena.allocate(result.needed)
        if request.out_slot is not None:
            request.held = True
            self._fetching[request.handle] = request
            request.out_offset, request.out_capacity = request.out_slot.offset, request.out_slot.size
            self._pool.fetch(
                request.worker, workers.Fetch(request.handle, request.out_offset, request.out_capacity)
            )
            return
        self._forget(request)
        text = f"Exceeds maximum queue size: no memory for {result.needed} bytes of outputs"
        self.end(request, QueueFull(text), Result.REFUSED)

    def _forget(self, request: Request) -> None:
        """Nobody wants the outputs that its worker holds."""
        self._pool.fetch(request.worker, workers.Fetch(request.handle, 0, 0))

    def fetched(self, event: workers.Fetched) -> Request | None:
        """Its outputs lie where they should; None when nobody waits for them."""
        return self._fetching.pop(event.result.ticket, None)

    def lost(self, worker: int) -> None:
        """A worker ended that was to store outputs once more: what it took along runs again, where that can help. To be
        told after ``finish`` of all that it gave back."""
        for request in [request for request in self._fetching.values() if request.worker == worker]:
            del self._fetching[request.handle]
            request.held = False
            request.place_outputs(self._arena)
            if request.cancelled:
                self.cancelled(request)
            elif self._elsewhere(request):
                continue
            elif request.attempts < ATTEMPTS_MAX:
                self._again(request)
            else:
                self.end(request, died(request), Result.FAILED)

    def end(self, request: Request, outcome: Outcome, result: Result) -> None:
        """This is its outcome."""
        assert not request.done
        request.done = True
        self._outcomes.append((request, outcome, result))

    def hand_out(self, now_ns: int) -> bool:
        """Give out all outcomes there are; callbacks may submit again. Gives whether there were any."""
        if not self._outcomes:
            return False
        outcomes, self._outcomes = self._outcomes, []
        for request, outcome, result in outcomes:
            del self._requests[request.handle]
            if request.shape >= 0:
                self._shapes.give(request.shape)
            request.served.live -= 1
            if request.detour is not None:
                request.detour.ended(request, outcome)
            self._accounts.ended(request, outcome, result, now_ns)
            if not isinstance(outcome, Answer):
                request.free(self._arena)
            request.on_done(outcome)
        return True
