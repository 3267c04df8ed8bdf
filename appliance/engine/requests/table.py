"""All requests that have no outcome yet, and the way of one of them to the scheduler. Owner: the engine."""

from __future__ import annotations

from appliance.core.scheduling import events
from appliance.domain.inference import RequestPlan
from appliance.engine.fastpath.leases import Leases
from appliance.engine.inbox import Inbox
from appliance.engine.requests.request import Request
from appliance.engine.versions.batch_keys import BatchKeys
from appliance.engine.versions.served import Served
from appliance.workers.arena import Arena


class RequestTable:
    """By handle. ``arena`` is the memory that their tensors lie in; ``admitted`` counts all that came so far."""

    def __init__(self, *, arena: Arena, batch_keys: BatchKeys, leases: Leases, inbox: Inbox) -> None:
        self.arena = arena
        self._batch_keys = batch_keys
        self._leases = leases
        self._inbox = inbox
        self._requests: dict[int, Request] = {}
        self._last_handle = 0
        self.admitted = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, handle: int) -> Request:
        return self._requests[handle]

    def get(self, handle: int) -> Request | None:
        """The request with this handle; None when it has its outcome."""
        return self._requests.get(handle)

    def queued_of(self, served: Served, account: str) -> list[Request]:
        """The requests of a client for a version that no worker has."""
        return [
            request
            for request in self._requests.values()
            if request.served is served
            and request.submission.account == account
            and not (request.held or request.done or request.is_mirrored)
        ]

    def take_handle(self) -> int:
        """A handle never used before."""
        self._last_handle += 1
        return self._last_handle

    def begin(self, request: Request) -> None:
        """Count a request that was queued: from now on it will have an outcome."""
        self._requests[request.handle] = request
        request.served.requests.live += 1

    def blame(self, request: Request) -> None:
        """Count a request that is to blame for how it ends, and not its version."""
        request.served.requests.blamed += 1

    def fell_back(self, served: Served, requests: int) -> None:
        """Count requests that failed on a version and were answered by another."""
        served.requests.fallen_back += requests

    def end(self, request: Request, *, answered: bool) -> None:
        """Drop a request that has its outcome."""
        if answered:
            request.served.requests.answered += 1
            self._batch_keys.answered(request.batch_key)
        if request.past.fell_from is not None and answered:
            self.fell_back(request.past.fell_from, 1)
        del self._requests[request.handle]
        self.leave_batch_key(request)
        request.served.requests.live -= 1

    # --- to the scheduler

    def take_batch_key(self, request: Request) -> None:
        """Have it be known to the scheduler by its batch key."""
        request.batch_key = self._batch_keys.take(request.served, request.plan)

    def leave_batch_key(self, request: Request) -> None:
        """Give its batch key back, if it has one."""
        if request.batch_key >= 0:
            self._batch_keys.give(request.batch_key)
            request.batch_key = -1

    def arrival(self, request: Request) -> events.Arrived:
        """The event that queues it, with what it needs to be ordered; what is in flight beside it is told first."""
        self._leases.refresh(request.served.placed.group)
        plan = request.plan
        return events.Arrived(
            request.handle,
            request.batch_key,
            (plan.rows or 1) if request.served.merges else 1,
            request.memory.nbytes,
            plan.head.priority,
            request.deadline_ns,
            plan.head.timeout_us,
            request.attempts > 0 or request.past.suspect,
        )

    def queue(self, request: Request) -> None:
        """Queue it at the scheduler's next step; its tensors are in memory."""
        if request.batch_key < 0:
            self.take_batch_key(request)
        self._inbox.put(self.arrival(request))

    def withdraw(self, request: Request) -> None:
        """Take a request back from the scheduler at its next step, if it is queued there."""
        self._inbox.put(events.CancelRequested(request.handle))

    def aim(self, request: Request, plan: RequestPlan, served: Served) -> None:
        """Have it count for another version, by ``plan``; it is not queued there yet."""
        self.leave_batch_key(request)
        request.served.requests.live -= 1
        served.requests.live += 1
        request.aim(plan, served)
