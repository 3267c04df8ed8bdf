"""Mirrored requests: copies that run on a version on trial for comparison alone, and are never answered.

They run with the room that others leave: what finds none is left out. Owner: the engine.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.errors import WorkerDied
from appliance.domain.inference import Answer, Outcome, RequestPlan
from appliance.engine.environment import Pace
from appliance.engine.port import Submission
from appliance.engine.requests.request import Mirror, Request
from appliance.engine.requests.similarity import Kept, kept, unlikeness
from appliance.engine.versions.served import Served, TrafficSplit
from appliance.workers.arena import Arena

WAIT_NS: Final = 5_000_000_000
"""A mirrored request that waits longer is forgotten."""
ROOM_PARTS: Final = 2
"""Requests are mirrored only while less than one part in so many of the arena is in use."""


class Comparison(NamedTuple):
    """An answer of a version on trial beside the one that was given; ``difference`` in words, None when it is near
    enough."""

    served: Served
    difference: str | None


class MirrorReport(NamedTuple):
    """What happened since the last one: comparisons, versions whose workers died with what was answered, requests that
    were mirrored, and those that found no room."""

    compared: tuple[Comparison, ...]
    died: tuple[Served, ...]
    mirrored: int
    left_out: int


NOTHING: Final = MirrorReport((), (), 0, 0)


class Mirroring:
    """Makes mirrored requests and compares what comes of them; asks for a turn when there is something to report."""

    def __init__(self, config: RolloutPolicy, arena: Arena, pace: Pace) -> None:
        self._config = config
        self._arena = arena
        self._pace = pace
        self._compared: list[Comparison] = []
        self._died: list[Served] = []
        self._mirrored = self._left_out = 0

    def copy(self, request: Request, split: TrafficSplit, plan: RequestPlan, handle: int) -> Request | None:
        """A copy of ``request`` for the version on trial; None when there is no room for it now."""
        usage = self._arena.statistics()
        room = usage.allocated_bytes * ROOM_PARTS < usage.limit_bytes
        if not room or split.in_flight >= self._config.mirrored_in_flight or not split.served.opened:
            return None
        now_ns = request.arrived_ns
        submission = Submission(plan, request.request_id, now_ns, now_ns + WAIT_NS, _release)
        return Request(handle, submission, split.served, now_ns + WAIT_NS)

    def pair(self, request: Request, copy: Request, split: TrafficSplit, plan: RequestPlan) -> None:
        """Compare what comes of both: the copy is queued."""
        request.mirror = copy.mirror = mirror = Mirror(split, plan)
        mirror.copy = copy
        split.in_flight += 1
        self._mirrored += 1

    def leave_out(self) -> None:
        """Count a request that was to be mirrored and found no room."""
        self._left_out += 1

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Take in the outcome of a request or of its copy, whose memory is still there."""
        mirror = request.mirror
        if mirror is None:
            return
        if request.is_mirrored:
            mirror.split.in_flight -= 1
        mine: Kept | WorkerDied
        if isinstance(outcome, Answer):
            mine = kept(outcome, self._config.mirrored_bytes)
        elif request.is_mirrored and isinstance(outcome, WorkerDied):
            mine = outcome
        else:
            return
        if mirror.kept is None:
            mirror.kept = mine
            return
        new, old = (mine, mirror.kept) if request.is_mirrored else (mirror.kept, mine)
        if isinstance(new, WorkerDied) or isinstance(old, WorkerDied):
            self._died.append(mirror.split.served)
        else:
            self._compared.append(Comparison(mirror.split.served, unlikeness(new, old, self._config)))
        self._pace.soon()

    def report(self) -> MirrorReport:
        """What happened since this was asked last."""
        if not (self._compared or self._died or self._mirrored or self._left_out):
            return NOTHING
        report = MirrorReport(tuple(self._compared), tuple(self._died), self._mirrored, self._left_out)
        self._compared.clear()
        self._died.clear()
        self._mirrored = self._left_out = 0
        return report


def _release(outcome: Outcome) -> None:
    """Drop the answer of a copy."""
    if isinstance(outcome, Answer):
        outcome.release()
