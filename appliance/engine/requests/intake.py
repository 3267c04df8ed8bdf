"""Where requests come in: admitted or refused at once, and queued with their tensors.

A request is admitted or refused within ``submit``, before its tensors are copied: under overload a refusal must cost
little and come at once. All else waits in the inbox for the next turn. Tensor bytes are copied once, into the slot, in
``submit``. One owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from appliance.core.scheduling import actions, events
from appliance.core.scheduling.scheduler import Scheduler
from appliance.domain.errors import ApplianceError, QueueFull, Stopping
from appliance.domain.inference import Outcome, RequestPlan
from appliance.engine.control.swap_settings import SwapConfig
from appliance.engine.control.swaps import Swaps
from appliance.engine.environment import Pace
from appliance.engine.fastpath.grants import Grants
from appliance.engine.port import NO_HEADERS, Buffer
from appliance.engine.requests.accounts import Accounts
from appliance.engine.requests.detours import Detours
from appliance.engine.requests.outcome import Ended, deadline_of, end_of, not_ready
from appliance.engine.requests.request import Request
from appliance.engine.requests.shapes import Shapes
from appliance.engine.settings import EngineConfig
from appliance.engine.versions.routes import Routes
from appliance.telemetry.meter import Result
from appliance.telemetry.trace import Trace
from appliance.workers.arena import Arena

Refusal = tuple[ApplianceError, Result]
"""Why a request is not taken, and how that is counted."""


class Intake:
    """``perform`` does what the scheduler wants; ``ask`` has a request wait whose version is not in memory, or gives
    why not; ``cancel_waiting`` ends one that waits there, False when it does not."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        swap: SwapConfig,
        scheduler: Scheduler,
        arena: Arena,
        routes: Routes,
        swaps: Swaps,
        accounts: Accounts,
        shapes: Shapes,
        direct: Grants,
        pace: Pace,
        clock: Callable[[], int],
        perform: Callable[[actions.Action, int], None],
        ask: Callable[[Request, Sequence[Buffer], int], Refusal | None],
        cancel_waiting: Callable[[Request, int], bool],
    ) -> None:
        self._default_deadline_ms = config.default_deadline_ms
        self._scheduler = scheduler
        self._arena = arena
        self._routes = routes
        self._accounts = accounts
        self._shapes = shapes
        self._direct = direct
        self._pace = pace
        self._clock = clock
        self._perform = perform
        self._ask = ask
        self._cancel_waiting = cancel_waiting
        self.inbox: list[events.Event] = []
        self.requests: dict[int, Request] = {}
        """All that have no outcome yet."""
        self._closed_ns = 0
        self.admitted = self._last_handle = 0
        self.detours = Detours(
            config=swap,
            arena=arena,
            routes=routes,
            shapes=shapes,
            admit=lambda request, tensors: self._admit(request, tensors) is None,
            arrive=self.again,
            begin=self._begin,
            take_handle=self._take_handle,
            compared=swaps.compared,
            left_out=swaps.accounts.count_shadow,
        )

    def submit(
        self,
        plan: RequestPlan,
        tensors: Sequence[Buffer],
        *,
        request_id: str,
        arrived_ns: int,
        deadline_ns: int,
        on_done: Callable[[Outcome], None],
        attempts: int = 0,
        client: str = "",
        trace: Trace | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> int:
        """See EnginePort."""
        model = plan.model
        served = self._routes.find(model.name, model.version)
        if served is None or served.model is not model:
            error = not_ready(model)
            self._accounts.rejected(error, request_id, client)
            raise error
        deadline_ns = deadline_of(plan, arrived_ns, deadline_ns, self._default_deadline_ms)
        request = Request(self._take_handle(), plan, served, request_id, arrived_ns, deadline_ns, on_done)
        request.attempts, request.client, request.trace = attempts, client, trace
        diversion = served.diversion
        try:
            if diversion is not None and self.detours.divert(diversion, request, tensors, headers):
                refused = None
            else:
                refused = self._admit(request, tensors)
        except Exception as bug:
            self._pace.broken(bug)
            raise
        if refused is not None:
            self._shapes.give(request.shape)
            self._accounts.ended(request, *refused, self._clock())
            try:
                raise refused[0]
            finally:
                del refused  # the error's traceback holds this frame: a cycle would keep the tensors
        if trace is not None:
            trace.admitted_ns = self._clock()
        self._begin(request)
        self.admitted += 1
        if request.detour is not None:
            self.detours.shadow(request, tensors)
        self._pace.arrived()
        return request.handle

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken."""
        return not self._closed_ns

    def close(self) -> None:
        """Take only requests that arrived before: those that the native door had by then may come later."""
        self._closed_ns = self._closed_ns or self._clock()

    def proceed(self, request: Request) -> None:
        """It waited for its version, which is in memory now."""
        request.shape = self._shapes.take(request.served, request.plan)
        self.again(request)

    def again(self, request: Request) -> None:
        """It is to be queued as it is, with its memory."""
        self._direct.refresh(request.served.group)
        self.inbox.append(_arrival(request))

    def _take_handle(self) -> int:
        self._last_handle += 1
        return self._last_handle

    def _begin(self, request: Request) -> None:
        self.requests[request.handle] = request
        request.served.live += 1

    def _admit(self, request: Request, tensors: Sequence[Buffer]) -> Refusal | None:
        """Queue ``request`` with its tensors; or why not."""
        served = request.served
        if not self.accepting and request.arrived_ns >= self._closed_ns:
            return Stopping("Server is stopping"), Result.UNAVAILABLE
        request.measure(tensors)
        if not served.opened:
            return self._ask(request, tensors, self._clock())
        request.shape = self._shapes.take(served, request.plan)
        now_ns = self._clock()
        self._direct.refresh(served.group)
        self.step(now_ns)
        for action in self._scheduler.step(_arrival(request), now_ns):
            assert isinstance(action, Ended), "an arrival is queued or ends"
            return end_of(request, action)
        if request.store(self._arena, tensors):
            return None
        self._scheduler.step(events.CancelRequested(request.handle), now_ns)
        return QueueFull("Exceeds maximum queue size: no memory left for tensors"), Result.REFUSED

    def has_memory(self, plan: RequestPlan, tensors: Sequence[Buffer]) -> bool:
        """See EnginePort."""
        served = self._routes.find(plan.model.name, plan.model.version)
        if served is None or served.model is not plan.model:
            return True
        imagined = Request(0, plan, served, "", 0, 0, _nobody)
        imagined.measure(tensors)
        return imagined.fits(self._arena)

    def cancel(self, handle: int) -> None:
        """See EnginePort."""
        request = self.requests.get(handle)
        if request is not None and not request.cancelled:
            request.cancelled = True
            if not self._cancel_waiting(request, self._clock()):
                self.inbox.append(events.CancelRequested(handle))
            self._pace.soon()

    def feed(self, event: events.Event) -> None:
        """The scheduler is to know of something at its next step."""
        self.inbox.append(self._direct.note(event))
        if type(event) is events.ModelClosed:
            self._shapes.forget(event.model)

    def step(self, now_ns: int) -> None:
        """Tell the scheduler all that has come in, and do what it wants done."""
        while self.inbox:
            inbox, self.inbox = self.inbox, []
            for event in inbox:
                for action in self._scheduler.step(event, now_ns):
                    self._perform(action, now_ns)


def _nobody(_: Outcome) -> None:
    raise AssertionError("a request that was only imagined has ended")


def _arrival(request: Request) -> events.Arrived:
    plan = request.plan
    return events.Arrived(
        request.handle,
        request.shape,
        (plan.rows or 1) if request.layout.merging else 1,
        sum(request.sizes),
        plan.head.priority,
        request.deadline_ns,
        plan.head.timeout_us,
        request.attempts > 0,
    )
