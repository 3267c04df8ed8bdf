"""The words a request ends with, and when a deadline is one. Pure."""

from __future__ import annotations

from typing import assert_never

from appliance.core.scheduling import actions
from appliance.domain.errors import (
    ApplianceError,
    Cancelled,
    CapacityError,
    DeadlineExpired,
    DeadlineUnreachable,
    NotReady,
    QueueFull,
    WorkerDied,
)
from appliance.domain.inference import NO_DEADLINE, RequestPlan
from appliance.domain.model import ModelVersion, TimeoutAction
from appliance.engine.requests.request import Request
from appliance.engine.versions import routes
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
    tried = "twice" if request.attempts > 1 else "once"
    return WorkerDied(
        f"the worker of model '{request.plan.model.name}' died with the request (tried {tried}); it is being replaced"
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
    if action.reason is actions.Refusal.DEADLINE:
        return DeadlineUnreachable(routes.late_text(name), action.retry_after_ns)
    if action.reason in (actions.Refusal.NO_LANE, actions.Refusal.UNKNOWN):
        return not_ready(request.plan.model)
    return QueueFull(
        f"Exceeds maximum queue size of model '{name}' ({action.reason.value})", action.retry_after_ns
    )
