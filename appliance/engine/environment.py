"""What the engine needs from whoever runs it: turns at the right time, and somewhere to write lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.domain.errors import ApplianceError
from appliance.domain.model import ModelVersion
from appliance.telemetry.meter import Result
from appliance.telemetry.request_line import LoggedRequest
from appliance.telemetry.trace import Tracer


class RequestLog(Protocol):
    """Where failed and slow requests are written, one line each."""

    def request(
        self, *, request: LoggedRequest, result: Result, error: ApplianceError | None, total_ns: int
    ) -> None:
        """Write the line; must not raise."""

    def slow(self, *, model: ModelVersion, request_id: str, client: str, stages_ns: Sequence[int]) -> None:
        """Write the line of a slow request that the front end served by itself; ``stages_ns``: nanoseconds of queue,
        gather, run, scatter and in all; must not raise."""

    def rejected(
        self,
        *,
        model: str,
        version: int,
        request_id: str,
        client: str,
        result: Result,
        error: ApplianceError,
    ) -> None:
        """Write the line of a request that a front end refused, which is counted as ``result``; ``model`` "" when it
        never got that far; must not raise."""

    def event(self, what: str, **fields: object) -> None:
        """Write what happened to versions and workers; must not raise."""


class Pace(Protocol):
    """How the engine asks for turns."""

    def soon(self) -> None:
        """Take a turn soon."""

    def arrived(self) -> None:
        """A request was admitted; outcomes must not be given before this returns."""

    def news(self) -> None:
        """A worker said something."""

    def at(self, at_ns: int) -> None:
        """Take a turn at this time, whatever turns there are before it."""

    def broken(self, error: BaseException) -> None:
        """The engine's state can no longer be trusted: no more turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """What surrounds an engine. ``clock`` is monotonic, in nanoseconds; ``wall_ms`` is the wall clock in milliseconds:
    for people, and for pauses that outlive the process. ``memory_of`` knows the bytes of a process by its pid."""

    clock: Callable[[], int]
    wall_ms: Callable[[], int]
    pace: Pace
    log: RequestLog
    memory_of: Callable[[int], int]
    tracer: Tracer | None = None
