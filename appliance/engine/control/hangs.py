"""Runs that do not end, of versions for which another could answer: noticed long before any run may take too long.

While a version is on trial or watched, what it took so far bounds what it may take (``Attempt.longest_run_ns``); one
that takes longer loses its worker, its requests go to the version before, and its trial ends with that. A request that
was given to it just before that ended is not left to hang in its next worker. Measured in
looks, not by the clock alone: where the whole machine stood still, nothing hung. Requests that the native front
end gave to a worker are looked at in ``fastpath/lanes``. Owner: the turn.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.domain.exit_cause import ExitCause
from appliance.engine.control.instance_groups import InstanceGroups
from appliance.engine.environment import Pace
from appliance.engine.requests.dispatch import Batches
from appliance.workers.port import WorkerPort

LOOK_NS: Final = 100_000_000
LOOKS_MIN: Final = 5


class _Seen(NamedTuple):
    batch: int
    since_ns: int
    looks: int


class Hangs:
    """Ends workers whose batches do not end. Only a worker that has one version and loads nothing is looked at."""

    def __init__(self, batches: Batches, groups: InstanceGroups, pool: WorkerPort, pace: Pace) -> None:
        self._batches = batches
        self._groups = groups
        self._pool = pool
        self._pace = pace
        self._seen: dict[int, _Seen] = {}
        self._due_ns = 0

    def look(self, now_ns: int) -> None:
        """Called with every turn; asks for one as long as there is something to look at."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + LOOK_NS
        before, self._seen = self._seen, {}
        for worker, batch, served in self._batches.oldest():
            if not served.run_bound_ns or not self._groups.is_alone(worker, served):
                continue
            known = before.get(worker)
            if known is None or known.batch != batch:
                known = _Seen(batch, now_ns, 0)
            self._seen[worker] = known._replace(looks=known.looks + 1)
            if known.looks >= LOOKS_MIN and now_ns - known.since_ns > served.run_bound_ns:
                self._pool.kill(worker, ExitCause.HUNG)
        if self._seen:
            self._pace.at(self._due_ns)
