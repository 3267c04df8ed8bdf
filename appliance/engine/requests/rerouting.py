"""Requests that go to another version than they were meant for, because theirs failed or is gone. Owner: the engine."""

from __future__ import annotations

from typing import Final

from appliance.domain.errors import ApplianceError
from appliance.domain.inference import RequestPlan
from appliance.domain.model import VersionState, interchangeable
from appliance.domain.validation import plan_request
from appliance.engine.requests.request import Request
from appliance.engine.requests.table import RequestTable
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served

SERVING: Final = frozenset({VersionState.READY, VersionState.LOADING})
"""A version in another state has been replaced or given up."""


class Rerouting:
    """Aims requests anew; their tensors lie where they lay, so only versions with equal inputs and outputs take over
    from one another."""

    def __init__(self, routes: Routes, table: RequestTable) -> None:
        self._routes = routes
        self._table = table

    def elsewhere(self, request: Request) -> bool:
        """Give a request that failed to the version before its own, or to the one that took over; one whose worker
        died of it to any other that serves; never back to where it fell from. False when there is none that takes
        it."""
        served = request.served
        fallback = (
            served.trial.fallback if served.state in SERVING else self._routes.current(served.model.name)
        )
        if (
            fallback is None
            and request.past.death
            and request.past.death.alone
            and request.past.fell_from is None
        ):
            fallback = self._routes.other(served)
        if fallback is None or fallback is served or not fallback.opened:
            return False
        if (
            fallback is request.past.fell_from
            or request.is_mirrored
            or request.plan.head.model_version
            or not interchangeable(served.model, fallback.model)
        ):
            return False
        try:
            plan = plan_request(fallback.model, request.plan.head)
        except ApplianceError:
            return False
        request.past.fell_from = served
        self._move(request, plan, fallback)
        return True

    def reroute(self, request: Request) -> bool:
        """Give a queued request, whose version closed under it, to the one that serves now, if it fits and is there;
        that may be its own, which opened again."""
        if request.served.opened:
            self._move(request, request.plan, request.served)
            return True
        heir = self._heir(request)
        if heir is None or not heir[1].opened:
            return False
        self._move(request, *heir)
        return True

    def follow(self, request: Request) -> bool:
        """Aim it at the version that serves now, which is out of memory; False when that would not take it."""
        heir = self._heir(request)
        if heir is None:
            return False
        self._table.aim(request, *heir)
        return True

    def stays(self, request: Request) -> bool:
        """Aim a request at its own version once more, which serves on, and left memory with requests in its queue: its
        device has a fault. False when it does not."""
        served, head = request.served, request.plan.head
        if request.is_mirrored or served.opened:
            return False
        try:
            same = self._routes.resolve(head.model_name, head.model_version) is served
        except ApplianceError:
            return False
        if same:
            self._table.aim(request, request.plan, served)
        return same

    def _heir(self, request: Request) -> tuple[RequestPlan, Served] | None:
        """What serves now in the place of its version, and what it is to that; None when that would not take it."""
        head = request.plan.head
        if request.is_mirrored:
            return None
        try:
            served = self._routes.resolve(head.model_name, head.model_version)
            if served is request.served or not interchangeable(served.model, request.plan.model):
                return None
            return plan_request(served.model, head), served
        except ApplianceError:
            return None

    def _move(self, request: Request, plan: RequestPlan, served: Served) -> None:
        self._table.aim(request, plan, served)
        self._table.queue(request)
