"""What the one log line of a failed or slow request says, and how many such lines a second there may be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.domain.inference import RequestPlan
from appliance.domain.model import ModelVersion
from appliance.telemetry.meter import Result

SECOND_NS = 1_000_000_000


class LoggedRequest(Protocol):
    """A request that has ended. Times are monotonic nanoseconds; ``dispatched_ns`` is 0 when no worker got it."""

    @property
    def request_id(self) -> str:
        """The caller's id, or ""."""

    @property
    def client(self) -> str:
        """The client, by its certificate, or ""."""

    @property
    def plan(self) -> RequestPlan:
        """What was asked, checked."""

    @property
    def arrived_ns(self) -> int:
        """When it came in."""

    @property
    def dispatched_ns(self) -> int:
        """When a worker got it."""

    @property
    def stages_ns(self) -> tuple[int, int, int]:
        """Gather, run and scatter of its batch."""

    @property
    def batch_rows(self) -> int:
        """Rows of its batch."""

    @property
    def attempts(self) -> int:
        """How often it was given to a worker."""


def request_fields(
    request: LoggedRequest, result: Result, error: Exception | None, total_ns: int
) -> dict[str, object]:
    """The fields of the line; durations in microseconds. Fields that say nothing are left out."""
    plan = request.plan
    fields: dict[str, object] = {
        "outcome": result.value,
        "model": plan.model.name,
        "version": plan.model.version,
        "request_id": request.request_id,
        "rows": plan.rows,
        "total_us": total_ns // 1_000,
    }
    if request.dispatched_ns:
        gather_ns, run_ns, scatter_ns = request.stages_ns
        queue_ns = request.dispatched_ns - request.arrived_ns
        fields |= _stages_us(queue_ns, gather_ns, run_ns, scatter_ns)
        fields["batch_rows"] = request.batch_rows
        fields["attempts"] = request.attempts
    if request.client:
        fields["client"] = request.client
    if error is not None:
        fields["error"] = str(error)
    return fields


def slow_fields(
    model: ModelVersion, request_id: str, client: str, stages_ns: Sequence[int]
) -> dict[str, object]:
    """The fields of the line of a request that the front end served by itself; ``stages_ns`` are queue, gather, run,
    scatter and in all."""
    queue_ns, gather_ns, run_ns, scatter_ns, total_ns = stages_ns
    fields: dict[str, object] = {
        "outcome": Result.SUCCESS.value,
        "model": model.name,
        "version": model.version,
        "request_id": request_id,
        "total_us": total_ns // 1_000,
        **_stages_us(queue_ns, gather_ns, run_ns, scatter_ns),
    }
    if client:
        fields["client"] = client
    return fields


def _stages_us(queue_ns: int, gather_ns: int, run_ns: int, scatter_ns: int) -> dict[str, object]:
    return {
        "queue_us": queue_ns // 1_000,
        "gather_us": gather_ns // 1_000,
        "run_us": run_ns // 1_000,
        "scatter_us": scatter_ns // 1_000,
    }


class LineBudget:
    """So many lines in each second; counts those that were left out. ``per_second`` 0 means no bound."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._second = -1
        self._used = 0
        self._left_out = 0

    def take(self, now_ns: int) -> bool:
        """Whether a line may be written now; when not, it counts as left out."""
        second = now_ns // SECOND_NS
        if second != self._second:
            self._second, self._used = second, 0
        if self._per_second and self._used >= self._per_second:
            self._left_out += 1
            return False
        self._used += 1
        return True

    def left_out(self) -> int:
        """How many were left out since this was asked last."""
        count, self._left_out = self._left_out, 0
        return count
