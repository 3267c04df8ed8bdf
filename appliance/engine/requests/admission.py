"""Where requests come in: admitted or refused at once, and queued with their tensors.

A request is admitted or refused within ``submit``, before its tensors are copied: under overload a refusal must cost
little and come at once. All else waits in the inbox for the next turn. Tensor bytes are copied once, into the slot, in
``submit``. One owner: the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.domain.errors import ApplianceError, Stopping
from appliance.domain.inference import Outcome, RequestPlan
from appliance.engine.environment import Shell
from appliance.engine.port import BUFFERS, Submission, Tensor
from appliance.engine.requests.dispatch import Dispatch
from appliance.engine.requests.mirroring import Mirroring
from appliance.engine.requests.outcome import Accounts, deadline_of, end_of, not_ready, result_of
from appliance.engine.requests.request import Request
from appliance.engine.requests.table import RequestTable
from appliance.engine.requests.waiting_room import ColdStarts, CountedRefusal
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import TrafficSplit
from appliance.telemetry.meter import Result


class Admission:
    """``default_deadline_ms`` is that of requests that bring none (0: none)."""

    def __init__(
        self,
        *,
        default_deadline_ms: int,
        shell: Shell,
        routes: Routes,
        accounts: Accounts,
        table: RequestTable,
        dispatch: Dispatch,
        mirroring: Mirroring,
        cold: ColdStarts,
    ) -> None:
        self._default_deadline_ms = default_deadline_ms
        self._clock = shell.clock
        self._pace = shell.pace
        self._routes = routes
        self._accounts = accounts
        self._table = table
        self._dispatch = dispatch
        self._mirroring = mirroring
        self._cold = cold
        self._announced = False
        self._closed_ns = 0

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken."""
        return not self._closed_ns

    @property
    def welcome(self) -> bool:
        """Whether new requests are not better sent elsewhere, though they may be taken still."""
        return self.accepting and not self._announced

    @property
    def live(self) -> int:
        """Requests that have no outcome yet."""
        return len(self._table)

    @property
    def admitted(self) -> int:
        """Requests admitted so far."""
        return self._table.admitted

    def rejected(self, error: ApplianceError, request_id: str, client: str) -> None:
        """See EnginePort."""
        self._accounts.rejected(error, request_id, client)

    def announce_stop(self) -> None:
        """Take requests on, and let it be known that this ends soon."""
        self._announced = True

    def close(self) -> None:
        """Take only requests that arrived before: those that the native front end had by then may come later."""
        self._closed_ns = self._closed_ns or self._clock()

    def submit(self, submission: Submission, tensors: Sequence[Tensor]) -> int:
        """See EnginePort."""
        plan = submission.plan
        model = plan.model
        served = self._routes.find(model.name, model.version)
        if served is None or served.model is not model:
            error = not_ready(model)
            self._accounts.rejected(error, submission.request_id, submission.client)
            raise error
        deadline_ns = deadline_of(
            plan, submission.arrived_ns, submission.deadline_ns, self._default_deadline_ms
        )
        request = Request(self._table.take_handle(), submission, served, deadline_ns)
        split = served.trial.split
        try:
            other = None if split is None else split.take(plan, submission.headers)
            if split and other and not split.shadow and self._try(request, split, other, tensors):
                refused = None
            else:
                refused = self._admit(request, tensors)
        except Exception as bug:
            self._pace.broken(bug)
            raise
        if refused is not None:
            self._table.leave_batch_key(request)
            self._accounts.ended(request, *refused, self._clock())
            try:
                raise refused[0]
            finally:
                del refused  # the error's traceback holds this frame: a cycle would keep the tensors
        if submission.trace is not None:
            submission.trace.admitted_ns = self._clock()
        self._table.begin(request)
        self._table.admitted += 1
        if split is not None and other is not None and split.shadow:
            self._mirror(request, split, other, tensors)
        self._pace.arrived()
        return request.handle

    def _admit(self, request: Request, tensors: Sequence[Tensor]) -> CountedRefusal | None:
        """Queue a request with its tensors; or why not."""
        served = request.served
        if not self.accepting and request.arrived_ns >= self._closed_ns:
            return Stopping("Server is stopping"), Result.UNAVAILABLE
        refused = self._dispatch.refusal(request)
        if refused is not None:
            return refused
        request.measure(tensors)
        now_ns = self._clock()
        if not served.opened:
            return self._cold.ask(request, tensors, now_ns)
        self._table.take_batch_key(request)
        ended = self._dispatch.arrive(request, now_ns)
        if ended is not None:
            return end_of(request, ended)
        unstored = request.store(self._table.arena, tensors)
        if unstored is None:
            return None
        self._dispatch.take_back(request, now_ns)
        return unstored, result_of(unstored)

    def _try(
        self, request: Request, split: TrafficSplit, other: RequestPlan, tensors: Sequence[Tensor]
    ) -> bool:
        """Give a request of its share to the version on trial; False, and as if nothing had been, when that does not
        take it."""
        plan, served = request.plan, request.served
        request.aim(other, split.served)
        if split.served.opened and self._admit(request, tensors) is None:
            return True
        self._table.leave_batch_key(request)
        request.aim(plan, served)
        split.taken -= 1
        return False

    def _mirror(
        self, request: Request, split: TrafficSplit, other: RequestPlan, tensors: Sequence[Tensor]
    ) -> None:
        """Run a queued request on the version on trial as well, if there is room."""
        if not all(isinstance(tensor, BUFFERS) for tensor in tensors):
            tensors = request.stored(len(tensors))  # what lies outside may be another by now
        copy = self._mirroring.copy(request, split, other, self._table.take_handle())
        if copy is None:
            self._mirroring.leave_out()
        elif self._admit(copy, tensors) is not None:
            self._table.leave_batch_key(copy)
            self._mirroring.leave_out()
        else:
            self._mirroring.pair(request, copy, split, other)
            self._table.begin(copy)

    def has_memory(self, plan: RequestPlan, tensors: Sequence[Tensor]) -> bool:
        """See EnginePort."""
        served = self._routes.find(plan.model.name, plan.model.version)
        if served is None or served.model is not plan.model:
            return True
        imagined = Request(0, Submission(plan, "", 0, 0, _nobody), served, 0)
        imagined.measure(tensors)
        return imagined.fits(self._table.arena)

    def cancel(self, handle: int) -> None:
        """See EnginePort."""
        request = self._table.get(handle)
        if request is not None and not request.cancelled:
            request.cancelled = True
            if not self._cold.cancel(request, self._clock()):
                self._table.withdraw(request)
            self._pace.soon()


def _nobody(_: Outcome) -> None:
    raise AssertionError("a request that was only imagined has ended")
