"""Requests that go elsewhere than they were meant to: to a version on trial, back from it, or beside it.

A request of the canary's share is planned again for the version on trial; what that refuses, fails or leaves behind
goes to the version that serves, so that a trial costs nobody an answer. In the shadow a twin of the request runs for
comparison alone: with the room that others leave, and never answered to anybody. Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from appliance.domain.errors import ApplianceError
from appliance.domain.inference import Answer, Outcome, RequestPlan
from appliance.domain.model import VersionState
from appliance.domain.validation import plan_request
from appliance.engine.control.candidate import interchangeable
from appliance.engine.control.likeness import Kept, kept, unlikeness
from appliance.engine.control.swap_settings import SwapConfig
from appliance.engine.port import Buffer
from appliance.engine.requests.request import Request
from appliance.engine.requests.shapes import Shapes
from appliance.engine.versions.diversion import Diversion
from appliance.engine.versions.routes import Routes, Served
from appliance.telemetry.meter import VersionMeter
from appliance.workers.arena import Arena

TWIN_NS: Final = 5_000_000_000
"""A twin that waits longer is forgotten."""
SERVING: Final = frozenset({VersionState.READY, VersionState.LOADING})
"""A version in another state has been replaced or given up."""
ROOM_PARTS: Final = 2
"""Twins are made only while less than one part in so many of the arena is in use."""


class Detour:
    """What is special about one request: it failed on ``fell_from``, or it and a twin are compared. Shared by both."""

    __slots__ = ("_compared", "_config", "_kept", "diversion", "fell_from", "plan", "twin")

    def __init__(
        self,
        config: SwapConfig,
        compared: Callable[[Served, str], None],
        diversion: Diversion | None = None,
        plan: RequestPlan | None = None,
    ) -> None:
        self._config = config
        self._compared = compared
        self._kept: Kept | None = None
        self.diversion = diversion
        self.plan = plan
        self.twin: Request | None = None
        self.fell_from: Served | None = None

    @property
    def unseen(self) -> VersionMeter | None:
        """Where twins are counted."""
        return self.diversion.unseen if self.diversion is not None else None

    def ended(self, request: Request, outcome: Outcome) -> None:
        """The request or its twin has its outcome, whose memory is still there."""
        if self.fell_from is not None and isinstance(outcome, Answer):
            self.fell_from.fallen_back += 1
        diversion = self.diversion
        if diversion is None or self.twin is None:
            return
        if request is self.twin:
            diversion.in_flight -= 1
        if not isinstance(outcome, Answer):
            return
        mine = kept(outcome, self._config.shadow_bytes)
        if self._kept is None:
            self._kept = mine
            return
        new, old = (mine, self._kept) if request is self.twin else (self._kept, mine)
        self._compared(diversion.served, unlikeness(new, old, self._config))


class Detours:
    """``admit`` queues a request with its tensors and gives why not; ``arrive`` queues one again that has its memory
    already; ``begin`` counts one that was queued; ``compared`` is told of a version on trial how an answer of it
    differed; ``left_out`` whether there was room for a twin (False) or not."""

    def __init__(
        self,
        *,
        config: SwapConfig,
        arena: Arena,
        routes: Routes,
        shapes: Shapes,
        admit: Callable[[Request, Sequence[Buffer]], bool],
        arrive: Callable[[Request], None],
        begin: Callable[[Request], None],
        take_handle: Callable[[], int],
        compared: Callable[[Served, str], None],
        left_out: Callable[[bool], None],
    ) -> None:
        self._config = config
        self._arena = arena
        self._routes = routes
        self._shapes = shapes
        self._admit = admit
        self._arrive = arrive
        self._begin = begin
        self._take_handle = take_handle
        self._compared = compared
        self._left_out = left_out

    # --- before a request is queued

    def divert(
        self, diversion: Diversion, request: Request, tensors: Sequence[Buffer], headers: Mapping[str, str]
    ) -> bool:
        """Give ``request``, if it is of the share, to the version on trial; True when that has queued it."""
        plan, served = request.plan, request.served
        other = diversion.take(plan, headers)
        if other is None:
            return False
        if diversion.shadow:
            request.detour = Detour(self._config, self._compared, diversion, other)
            return False
        request.aim(other, diversion.served)
        if diversion.served.opened and self._admit(request, tensors):
            return True
        self._shapes.give(request.shape)
        request.shape = -1
        request.aim(plan, served)
        diversion.taken -= 1
        return False

    def shadow(self, request: Request, tensors: Sequence[Buffer]) -> None:
        """``request`` is queued: run its twin as well, if there is room."""
        detour = request.detour
        if detour is None or detour.diversion is None or detour.plan is None:
            return
        diversion, now_ns = detour.diversion, request.arrived_ns
        usage = self._arena.statistics()
        room = usage.allocated_bytes * ROOM_PARTS < usage.limit_bytes
        twin = Request(
            self._take_handle(),
            detour.plan,
            diversion.served,
            request.request_id,
            now_ns,
            now_ns + TWIN_NS,
            _release,
        )
        if (
            not room
            or diversion.in_flight >= self._config.shadow_in_flight
            or not diversion.served.opened
            or not self._admit(twin, tensors)
        ):
            self._shapes.give(twin.shape)
            request.detour = None
            self._left_out(True)
            return
        self._left_out(False)
        twin.detour, detour.twin = detour, twin
        diversion.in_flight += 1
        self._begin(twin)

    # --- after

    def elsewhere(self, request: Request) -> bool:
        """It failed: let the version before its own run it, if there is one, or the one that took over."""
        served = request.served
        fallback = served.fallback if served.state in SERVING else self._routes.current(served.model.name)
        if fallback is None or fallback is served or not fallback.opened:
            return False
        if (
            request.is_twin
            or request.plan.head.model_version
            or not interchangeable(served.model, fallback.model)
        ):
            return False
        try:
            plan = plan_request(fallback.model, request.plan.head)
        except ApplianceError:
            return False
        if request.detour is None:
            request.detour = Detour(self._config, self._compared)
        request.detour.fell_from = served
        self._move(request, plan, fallback)
        return True

    def reroute(self, request: Request) -> bool:
        """The version closed under a queued request: give it to the one that serves now, if it fits and is there."""
        heir = self._heir(request)
        if heir is None or not heir[1].opened:
            return False
        self._move(request, *heir)
        return True

    def follow(self, request: Request) -> bool:
        """As ``reroute``, to one that is out of memory: whether the request may wait for that from now on."""
        heir = self._heir(request)
        if heir is None:
            return False
        self._aim(request, *heir)
        return True

    def _heir(self, request: Request) -> tuple[RequestPlan, Served] | None:
        """What serves now in the place of its version, and what it is to that; None when that would not take it."""
        head = request.plan.head
        if request.is_twin:
            return None
        try:
            served = self._routes.resolve(head.model_name, head.model_version)
            if served is request.served or not interchangeable(served.model, request.plan.model):
                return None
            return plan_request(served.model, head), served
        except ApplianceError:
            return None

    def _move(self, request: Request, plan: RequestPlan, served: Served) -> None:
        self._aim(request, plan, served)
        request.shape = self._shapes.take(served, plan)
        self._arrive(request)

    def _aim(self, request: Request, plan: RequestPlan, served: Served) -> None:
        self._shapes.give(request.shape)
        request.shape = -1
        request.served.live -= 1
        served.live += 1
        request.aim(plan, served)


def _release(outcome: Outcome) -> None:
    """Nobody is given a twin's answer."""
    if isinstance(outcome, Answer):
        outcome.release()
