"""Counts how each request ended, and writes a line for those that failed or were slow. Owner: the engine."""

from __future__ import annotations

from collections.abc import Callable

from appliance.domain.errors import ApplianceError, InvalidRequest, NotReady
from appliance.domain.inference import Answer, Outcome
from appliance.engine.environment import RequestLog
from appliance.engine.requests.outcome import result_of
from appliance.engine.requests.request import Request
from appliance.engine.versions.routes import Routes
from appliance.telemetry.meter import Result


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
