"""Lanes that the front end serves by itself and that make no progress: their workers are ended, like those of a batch
that hangs (``hangs``). Looked at now and then, and only as long as something is in flight there. Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from appliance.engine.environment import Pace
from appliance.engine.fastpath.direct import LeasingFrontEnd
from appliance.engine.versions.served import Served
from appliance.workers.port import ExitCause, WorkerPort

LOOK_NS: Final = 250_000_000
"""How often lanes are looked at, however many turns there are; while nothing is in flight, only after turns."""

Bound = tuple[int, bool]
"""How long a lane may be without progress, and whether that is less than workers allow: then it does not count where
the engine looks late itself, as on a machine that stood still."""


class Stalls:
    """Looks at times that it asks for itself."""

    def __init__(self, workers: WorkerPort, pace: Pace) -> None:
        self._workers = workers
        self._pace = pace
        self._look_ns = 0
        self._asked = False
        """Whether there is a turn at ``_look_ns``."""

    def look(
        self, front_end: LeasingFrontEnd, groups: Mapping[int, int], versions: Iterable[Served], now_ns: int
    ) -> None:
        """``groups`` are those of the front end's lanes, ``versions`` those that may run there, some of them
        often."""
        if now_ns < self._look_ns:
            if groups and not self._asked:  # what has begun since may be all that there is for long
                self._ask()
            return
        late = now_ns - self._look_ns > LOOK_NS
        self._look_ns, self._asked = now_ns + LOOK_NS, False
        owing = [(lane, since_ns) for lane in groups if (since_ns := front_end.load(lane)[2])]
        if not owing:
            return
        bounds = self._bounds({groups[lane] for lane, _ in owing}, versions)
        for lane, since_ns in owing:
            bound_ns, tighter = bounds[groups[lane]]
            if now_ns - since_ns > bound_ns and not (tighter and late):
                self._workers.kill(lane, ExitCause.HUNG)
        self._ask()

    def _ask(self) -> None:
        self._asked = True
        self._pace.at(self._look_ns)

    def _bounds(self, groups: Collection[int], versions: Iterable[Served]) -> dict[int, Bound]:
        there: dict[int, dict[int, Served]] = {group: {} for group in groups}
        for served in versions:
            models = there.get(served.placed.group)
            if models is not None:
                models[served.id] = served
        return {group: self._bound(models.values()) for group, models in there.items()}

    def _bound(self, models: Collection[Served]) -> Bound:
        """The longest that any of the models may run."""
        timeout_ns = max((self._workers.run_timeout_ns(each.model) for each in models), default=0)
        bound_ns = min(max((each.run_bound_ns or timeout_ns for each in models), default=0), timeout_ns)
        return bound_ns, bound_ns < timeout_ns
