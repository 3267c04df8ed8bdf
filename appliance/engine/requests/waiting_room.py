"""Requests that wait, with their tensors in memory, for their model to come back, or for what serves in its place.

A displaced request that can go on at once does so at once, so that what it goes to counts as in use; for the others the
turn is over first, because only then it is known what serves, and how much of it is in memory. Owner: the engine.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol

from appliance.core.memory.actions import Miss, Refuse
from appliance.core.memory.budget import Limit
from appliance.domain.errors import (
    ApplianceError,
    Cancelled,
    CapacityError,
    DeadlineExpired,
    ModelAway,
    QueueFull,
)
from appliance.domain.inference import NO_DEADLINE
from appliance.engine.environment import Pace
from appliance.engine.port import Tensor
from appliance.engine.requests.completion import Completion
from appliance.engine.requests.outcome import unserved
from appliance.engine.requests.request import Request
from appliance.engine.requests.rerouting import Rerouting
from appliance.engine.requests.table import RequestTable
from appliance.engine.versions.wording import limit_text, megabytes
from appliance.telemetry.meter import Result

GONE_MAX = 64
"""Requests that wait no more keep their deadline until there are so many of them, and more than those that wait."""

CountedRefusal = tuple[ApplianceError, Result]
"""Why a request is not taken, and how that is counted."""


class ColdStarts(Protocol):
    """What keeps requests until their versions are in memory."""

    def ask(self, request: Request, tensors: Sequence[Tensor] | None, now_ns: int) -> CountedRefusal | None:
        """Have a request wait with its tensors, or say why not. ``tensors`` None: it has waited before, for another
        version, and they are where they were."""

    def cancel(self, request: Request, now_ns: int) -> bool:
        """End a request that was cancelled; False when it is not kept here."""


class Displaced:
    """Asks for a turn, of which ``settle`` is the end."""

    def __init__(self, rerouting: Rerouting, completion: Completion, pace: Pace) -> None:
        self._rerouting = rerouting
        self._completion = completion
        self._pace = pace
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        """Take a request whose version closed under it, or is not looked after any more."""
        if not self._rerouting.reroute(request):
            self._requests.append(request)
            self._pace.soon()

    def settle(self, cold: ColdStarts, now_ns: int) -> None:
        """See what becomes of those that could not go on at once."""
        if not self._requests:
            return
        requests, self._requests = self._requests, []
        for request in requests:
            refused = self._refused(request, cold, now_ns)
            if refused is not None:
                self._completion.end(request, *refused)

    def _refused(self, request: Request, cold: ColdStarts, now_ns: int) -> CountedRefusal | None:
        if request.cancelled:
            return Cancelled("Request cancelled"), Result.CANCELLED
        if self._rerouting.reroute(request):
            return None
        if self._rerouting.follow(request) or self._rerouting.stays(request):
            return cold.ask(request, None, now_ns)
        return unserved(request.served), Result.UNAVAILABLE


class WaitingRoom:
    """``counts`` says how many wait for each model id."""

    def __init__(self, table: RequestTable, completion: Completion, displaced: Displaced) -> None:
        self._table = table
        self._completion = completion
        self._displaced = displaced
        self._requests: dict[int, Request] = {}
        self._deadlines: list[tuple[int, int]] = []
        self.counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def store(self, request: Request, tensors: Sequence[Tensor]) -> ApplianceError | None:
        """Copy its tensors into memory; gives why not."""
        return request.store(self._table.arena, tensors)

    def enter(self, request: Request) -> int | None:
        """Have ``request`` wait from now on; gives its deadline if it is the first one to come."""
        self._requests[request.handle] = request
        model = request.served.id
        self.counts[model] = self.counts.get(model, 0) + 1
        if request.deadline_ns >= NO_DEADLINE:
            return None
        if len(self._deadlines) > 2 * len(self._requests) + GONE_MAX:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._requests]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (request.deadline_ns, request.handle))
        return request.deadline_ns if self._deadlines[0][1] == request.handle else None

    def _leave(self, handle: int) -> Request | None:
        """It waits no more; None when it did not."""
        request = self._requests.pop(handle, None)
        if request is not None:
            model = request.served.id
            self.counts[model] -= 1
            if not self.counts[model]:
                del self.counts[model]
        return request

    # --- how waiting ends

    def proceed(self, handles: Iterable[int]) -> None:
        """Give requests to the scheduler: their model is there."""
        for request in filter(None, map(self._leave, handles)):
            self._table.queue(request)

    def refuse(self, handle: int, error: CapacityError) -> bool:
        """End a request with ``error``; whether it waited."""
        request = self._leave(handle)
        if request is None:
            return False
        self._completion.end(request, error, Result.REFUSED)
        return True

    def cancel(self, request: Request) -> bool:
        """End a request that was cancelled; whether it waited."""
        if self._leave(request.handle) is None:
            return False
        self._completion.end(request, Cancelled("Request cancelled"), Result.CANCELLED)
        return True

    def expire(self, now_ns: int) -> list[Request]:
        """End and return the requests whose deadline has passed."""
        late: list[Request] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            request = self._leave(heapq.heappop(self._deadlines)[1])
            if request is not None:
                self._completion.end(request, DeadlineExpired("Request timeout expired"), Result.EXPIRED)
                late.append(request)
        return late

    def displace(self, model: int) -> None:
        """Take the requests for a model, which goes, to the version that serves in its place."""
        for request in [each for each in self._requests.values() if each.served.id == model]:
            self._leave(request.handle)
            self._displaced.add(request)

    @property
    def next_deadline_ns(self) -> int:
        """The first deadline there is; NO_DEADLINE when there is none."""
        while self._deadlines and self._deadlines[0][1] not in self._requests:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else NO_DEADLINE


def refusal(name: str, action: Refuse, size_bytes: int, limit: Limit) -> CapacityError:
    """Why a request for a model that is not in memory does not wait for it. ``size_bytes`` is what the model takes,
    ``limit`` what there is."""
    after_ns = action.retry_after_ns
    away = f"model '{name}' is not in memory"
    match action.reason:
        case Miss.FULL:
            text = "Exceeds maximum queue size: too many requests wait for models that are loaded"
            return QueueFull(text, after_ns)
        case Miss.DEADLINE:
            return ModelAway(f"{away} and cannot be loaded before the request's deadline", after_ns)
        case Miss.NO_ROOM:
            return ModelAway(f"{away}, and there is no room that could be made for it now", after_ns)
        case Miss.NEVER:
            fits_not = f"it takes {megabytes(size_bytes)}, and {limit_text(limit)}"
            return ModelAway(f"{away} and cannot be: {fits_not}", after_ns)
        case Miss.FAILING:
            return ModelAway(f"{away}, and its last loads failed", after_ns)
