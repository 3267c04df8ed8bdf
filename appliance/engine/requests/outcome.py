"""How requests end: the words for it, when a deadline is one, how each end is counted, and the line that is written of
those that failed or were slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from appliance.core.scheduling import actions
from appliance.domain.errors import (
    ApplianceError,
    Cancelled,
    CapacityError,
    DeadlineExpired,
    DeadlineUnreachable,
    InvalidRequest,
    NotReady,
    QueueFull,
    WorkerDied,
)
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome, RequestPlan
from appliance.domain.model import ModelVersion, TimeoutAction
from appliance.engine.environment import RequestLog
from appliance.engine.requests.request import Request
from appliance.engine.versions import routes
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import Result

Ended = actions.Refused | actions.Expired | actions.Dropped | actions.Lost
"""Ends of a request that never ran, or not to its end."""


def deadline_of(plan: RequestPlan, arrived_ns: int, transport_ns: int, default_ms: int) -> int:
    """The earliest of the transport's deadline, the request's time-out and the configured default."""
    deadline_ns = transport_ns
    if deadline_ns >= NO_DEADLINE and default_ms:
        deadline_ns = arrived_ns + default_ms * 1_000_000
    timeout_us = plan.head.timeout_us
    if timeout_us and not _delays(plan):
        deadline_ns = min(deadline_ns, arrived_ns + timeout_us * 1_000)
    return deadline_ns


def _delays(plan: RequestPlan) -> bool:
    batching = plan.model.batching
    if batching is None:
        return False
    level = plan.head.priority or batching.default_priority_level
    return batching.policy_of(level).timeout_action is TimeoutAction.DELAY


def not_ready(model: ModelVersion) -> NotReady:
    return routes.not_ready(model.name, model.version)


def unserved(served: Served) -> NotReady:
    """The error of a request for a version that serves no more, or has no device now."""
    why = f"; version {served.model.version} {served.reason}" if served.barred else ""
    return routes.not_ready(served.model.name, served.model.version, why)


def result_of(error: ApplianceError) -> Result:
    """How a request is counted that a front end refused with ``error``."""
    match error:
        case NotReady():
            return Result.UNAVAILABLE
        case CapacityError():
            return Result.REFUSED
        case DeadlineExpired():
            return Result.EXPIRED
        case Cancelled():
            return Result.CANCELLED
        case _:
            return Result.INVALID


def died(request: Request) -> WorkerDied:
    """What is said of a request that a worker died of, or may have."""
    death = request.past.death
    how = f", which ran alone: {death.detail}" if death and death.alone else ""
    return WorkerDied(
        f"the worker of model '{request.plan.model.name}' died with the request{how}; do not send it again as it is: "
        "a client whose requests end workers is refused for a while"
    )


def end_of(request: Request, action: Ended) -> tuple[ApplianceError, Result]:
    """What the scheduler's word on a queued request means to the client, and how it is counted."""
    match action:
        case actions.Refused():
            return refusal(request, action), Result.REFUSED
        case actions.Expired():
            return DeadlineExpired("Request timeout expired"), Result.EXPIRED
        case actions.Dropped():
            return Cancelled("Request cancelled"), Result.CANCELLED
        case actions.Lost():
            return died(request), Result.FAILED
        case _:
            assert_never(action)


def refusal(request: Request, action: actions.Refused) -> ApplianceError:
    name = request.plan.model.name
    if action.reason is actions.RefusalReason.DEADLINE:
        return DeadlineUnreachable(routes.late_text(name), action.retry_after_ns)
    if action.reason in (actions.RefusalReason.NO_LANE, actions.RefusalReason.UNKNOWN):
        return not_ready(request.plan.model)
    return QueueFull(
        f"Exceeds maximum queue size of model '{name}' ({action.reason.value})", action.retry_after_ns
    )


class Accounts:
    """``wall_ms`` is the wall clock in milliseconds. A request is slow, and logged, after ``slow_request_ms`` (0:
    never)."""

    def __init__(
        self, routes: Routes, log: RequestLog, wall_ms: Callable[[], int], slow_request_ms: int
    ) -> None:
        self._routes = routes
        self._log = log
        self._wall_ms = wall_ms
        self._slow_ns = slow_request_ms * 1_000_000

    def ended(self, request: Request, outcome: Outcome, result: Result, now_ns: int) -> None:
        """``request`` ended at ``now_ns`` with ``outcome``."""
        total_ns = now_ns - request.arrived_ns
        meter = request.served.meter
        mirrored = request.is_mirrored
        if mirrored and request.mirror is not None:
            meter = request.mirror.split.unseen
        trace = request.submission.trace
        if trace is not None:
            trace.ended(request, result, None if isinstance(outcome, Answer) else outcome, now_ns)
        if isinstance(outcome, Answer):
            queue_ns = request.dispatched_ns - request.arrived_ns
            meter.succeeded(request.plan.rows, queue_ns, request.stages_ns, total_ns, self._wall_ms())
            if self._slow_ns and total_ns > self._slow_ns and not mirrored:
                self._log.request(request=request, result=result, error=None, total_ns=total_ns)
            return
        meter.ended(result, total_ns)
        if not mirrored:
            self._log.request(request=request, result=result, error=outcome, total_ns=total_ns)

    def rejected(self, error: ApplianceError, request_id: str, client: str) -> None:
        """A front end refused a request before it became one."""
        name, version = error.model if isinstance(error, InvalidRequest | NotReady) else ("", 0)
        served, result = self._routes.find(name, version), result_of(error)
        if served is not None:
            served.meter.ended(result, 0)
        self._log.rejected(
            model=name, version=version, request_id=request_id, client=client, result=result, error=error
        )
