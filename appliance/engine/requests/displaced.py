"""Requests whose version is gone: they go to the one that serves now, and wait for it where that is out of memory, with
what keeps such requests.

What can go on at once does so at once, so that what it goes to counts as in use; for the others the turn is over first,
because only then it is known what serves, and how much of it is in memory. Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.domain.errors import ApplianceError, Cancelled
from appliance.engine.environment import Pace
from appliance.engine.port import Buffer
from appliance.engine.requests.completion import Completion
from appliance.engine.requests.outcome import not_ready
from appliance.engine.requests.request import Request
from appliance.engine.requests.rerouting import Rerouting
from appliance.telemetry.meter import Result

Refusal = tuple[ApplianceError, Result]
"""Why a request is not taken, and how that is counted."""


class ColdStarts(Protocol):
    """What keeps requests until their versions are in memory."""

    def ask(self, request: Request, tensors: Sequence[Buffer] | None, now_ns: int) -> Refusal | None:
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

    def _refused(self, request: Request, cold: ColdStarts, now_ns: int) -> Refusal | None:
        if request.cancelled:
            return Cancelled("Request cancelled"), Result.CANCELLED
        if self._rerouting.reroute(request):
            return None
        if self._rerouting.follow(request):
            return cold.ask(request, None, now_ns)
        return not_ready(request.plan.model), Result.UNAVAILABLE
