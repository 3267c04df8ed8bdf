"""Requests whose version is gone: they go to the one that serves now, and wait for it where that is out of memory.

Who can go on at once does so at once, so that what it goes to counts as in use; for the others the turn is over first,
because only then it is known what serves, and how much of it is in memory. Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.domain.errors import ApplianceError, Cancelled
from appliance.engine.requests.outcome import not_ready
from appliance.engine.requests.request import Request
from appliance.telemetry.meter import Result


class Displaced:
    """``reroute`` gives a request to the version that serves now, if that is there and takes it; ``follow`` aims it at
    one that is not, for which it is to ``wait``, or why not. ``end`` ends it; ``soon`` asks for a turn, of which
    ``settle`` is the end."""

    def __init__(
        self,
        *,
        reroute: Callable[[Request], bool],
        follow: Callable[[Request], bool],
        wait: Callable[[Request, int], tuple[ApplianceError, Result] | None],
        end: Callable[[Request, ApplianceError, Result], None],
        soon: Callable[[], None],
    ) -> None:
        self._reroute = reroute
        self._follow = follow
        self._wait = wait
        self._end = end
        self._soon = soon
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        """Its version closed under it, or is not looked after any more."""
        if not self._reroute(request):
            self._requests.append(request)
            self._soon()

    def settle(self, now_ns: int) -> None:
        """See what becomes of those that could not go on at once."""
        if not self._requests:
            return
        requests, self._requests = self._requests, []
        for request in requests:
            refused = self._refused(request, now_ns)
            if refused is not None:
                self._end(request, *refused)

    def _refused(self, request: Request, now_ns: int) -> tuple[ApplianceError, Result] | None:
        if request.cancelled:
            return Cancelled("Request cancelled"), Result.CANCELLED
        if self._reroute(request):
            return None
        if self._follow(request):
            return self._wait(request, now_ns)
        return not_ready(request.plan.model), Result.UNAVAILABLE
