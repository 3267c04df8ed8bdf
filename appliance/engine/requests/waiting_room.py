"""Requests that wait, with their tensors in memory, for their model to come back. Owner: the residence."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from appliance.domain.inference import NO_DEADLINE
from appliance.engine.requests.request import Request


class WaitingRoom:
    """``counts`` says how many wait for each model id."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._deadlines: list[tuple[int, int]] = []
        self.counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, request: Request) -> int | None:
        """``request`` waits from now on; gives its deadline if it is the first one to come."""
        self._requests[request.handle] = request
        model = request.served.id
        self.counts[model] = self.counts.get(model, 0) + 1
        if request.deadline_ns >= NO_DEADLINE:
            return None
        heapq.heappush(self._deadlines, (request.deadline_ns, request.handle))
        return request.deadline_ns if self._deadlines[0][1] == request.handle else None

    def leave(self, handle: int) -> Request | None:
        """It waits no more; None when it did not."""
        request = self._requests.pop(handle, None)
        if request is not None:
            model = request.served.id
            self.counts[model] -= 1
            if not self.counts[model]:
                del self.counts[model]
        return request

    def of(self, model: int) -> list[Request]:
        """All that wait for a model, in the order in which they came."""
        return [request for request in self._requests.values() if request.served.id == model]

    def late(self, now_ns: int) -> Iterator[Request]:
        """Those whose deadline has passed; they wait no more."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            request = self.leave(heapq.heappop(self._deadlines)[1])
            if request is not None:
                yield request

    @property
    def next_deadline_ns(self) -> int:
        """The first deadline there is; NO_DEADLINE when there is none."""
        while self._deadlines and self._deadlines[0][1] not in self._requests:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else NO_DEADLINE
