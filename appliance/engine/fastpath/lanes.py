"""The lanes that the front end shares with workers: which it has, which are leased, which have work; and which of them
make no progress.

The front end may have no descriptor left for a lane: it is offered that again, now and then, and until it takes it, all
that the lane gets comes by the engine. Where a lane makes no progress its worker is ended, like those of a batch that
hangs (``hangs``); that is looked at now and then, and only as long as something is in flight there. Owner: the leases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from appliance.domain.exit_cause import ExitCause
from appliance.engine.environment import Pace
from appliance.engine.fastpath.direct import LeasingFrontEnd
from appliance.engine.versions.served import Served
from appliance.workers.arena import Arena
from appliance.workers.port import WorkerPort

OFFER_NS: Final = 1_000_000_000
"""How often lanes are offered again: after turns, because without turns nothing is asked for."""


class Lanes:
    """By the id of the worker whose lane it is. ``limit`` bounds the requests in flight on a leased lane."""

    def __init__(self, workers: WorkerPort, arena: Arena, limit: int) -> None:
        self._workers = workers
        self._arena = arena
        self._limit = limit
        self._front_end: LeasingFrontEnd | None = None
        self.groups: dict[int, int] = {}
        """The group of each lane that the front end knows, or is to know."""
        self._members: dict[int, list[int]] = {}
        """The lanes of each group."""
        self._leased: set[int] = set()
        """As the scheduler has it: a lane that the front end has yet to take is leased to it then."""
        self.busy: set[int] = set()
        """Lanes that had work when the scheduler was told last: it is told of them until they have drained."""
        self.answered: dict[int, int] = {}
        """Requests answered under leases."""
        self._missing: dict[int, int] = {}
        """The groups of lanes that the front end has yet to take."""
        self._offer_ns = 0

    def attach(self, front_end: LeasingFrontEnd) -> None:
        """Name the front end that takes lanes from here on."""
        self._front_end = front_end

    def open(self, lane: int, group: int) -> bool:
        """Whether the lane has anything to share with the front end, which has it from now on, or as soon as it can."""
        if self._front_end is None or self._workers.memory(lane) is None:
            return False
        if not self._taken(self._front_end, lane, group):
            self._missing[lane] = group
        self.groups[lane] = group
        self._members.setdefault(group, []).append(lane)
        return True

    def forget(self, lane: int) -> None:
        """Drop a lane whose worker's process has ended."""
        group = self.groups.pop(lane)
        self._members[group].remove(lane)
        if not self._members[group]:
            del self._members[group]
        self.answered.pop(lane, None)
        self._missing.pop(lane, None)

    def of(self, group: int) -> Iterable[int]:
        """The lanes of a group."""
        return self._members.get(group, ())

    def at_work(self, group: int) -> list[int]:
        """The lanes of a group on which something may be in flight."""
        return [lane for lane in self.of(group) if lane in self._leased or lane in self.busy]

    def lease(self, lane: int) -> None:
        """Let the front end give the lane requests by itself."""
        assert self._front_end is not None, "a lease without a front end"
        self._leased.add(lane)
        self._front_end.lease(lane, self._limit)

    def revoke(self, lane: int) -> None:
        """End the lease: nothing more is given to the lane once this has returned."""
        assert self._front_end is not None, "a lease without a front end"
        self._front_end.end_lease(lane)
        self._leased.discard(lane)

    def is_leased(self, lane: int) -> bool:
        """Whether the front end may give it requests now."""
        return lane in self._leased and lane not in self._missing

    def count(self, lane: int, requests: int) -> None:
        """Count requests that were answered on the lane."""
        if lane in self.groups:
            self.answered[lane] = self.answered.get(lane, 0) + requests

    def offer(self, now_ns: int) -> None:
        """Offer again, from time to time, what the front end has not taken yet."""
        if self._front_end is None or not self._missing or now_ns < self._offer_ns:
            return
        self._offer_ns = now_ns + OFFER_NS
        taken: list[int] = []
        for lane, group in self._missing.items():
            if not self._taken(self._front_end, lane, group):
                break  # nor will there be a descriptor for the next
            taken.append(lane)
        for lane in taken:
            del self._missing[lane]
            if lane in self._leased:
                self._front_end.lease(lane, self._limit)

    def _taken(self, front_end: LeasingFrontEnd, lane: int, group: int) -> bool:
        memory, tensors = self._workers.memory(lane), self._arena.of_worker(lane)
        if memory is None or tensors is None:
            return False
        shared = tensors.number, tensors.fd
        try:
            front_end.open_lane(lane, group, memory.fileno(), memory.doorbell(), shared)
        except (OSError, ValueError):
            return False  # no descriptor is left for it, or the front end is closed
        return True


LOOK_NS: Final = 250_000_000
"""How often lanes are looked at, however many turns there are; while nothing is in flight, only after turns."""

PAUSES_MAX: Final = 64
"""That are remembered, of those during what is in flight."""

Bound = tuple[int, bool]
"""How long a lane may be without progress, and whether that is less than workers allow: then nothing is ended where
the engine looks late itself."""


class _Pause(NamedTuple):
    """A look came so much later than it was asked for: the engine stood still, as its machine may have, and that time
    counts against no worker."""

    end_ns: int
    length_ns: int


class Stalls:
    """Looks at times that it asks for itself."""

    def __init__(self, workers: WorkerPort, pace: Pace) -> None:
        self._workers = workers
        self._pace = pace
        self._look_ns = 0
        self._asked = False
        """Whether there is a turn at ``_look_ns``."""
        self._pauses: deque[_Pause] = deque(maxlen=PAUSES_MAX)

    def look(
        self, front_end: LeasingFrontEnd, groups: Mapping[int, int], versions: Iterable[Served], now_ns: int
    ) -> None:
        """``groups`` are those of the front end's lanes, ``versions`` those that may run there, some of them
        often."""
        if now_ns < self._look_ns:
            if groups and not self._asked:  # what has begun since may be all that there is for long
                self._ask()
            return
        late_ns = now_ns - self._look_ns
        late = late_ns > LOOK_NS
        if late and self._asked:
            self._pauses.append(_Pause(now_ns, late_ns))
        self._look_ns, self._asked = now_ns + LOOK_NS, False
        owing = [(lane, since_ns) for lane in groups if (since_ns := front_end.load(lane)[2])]
        if not owing:
            self._pauses.clear()
            return
        bounds = self._bounds({groups[lane] for lane, _ in owing}, versions)
        for lane, since_ns in owing:
            bound_ns, tighter = bounds[groups[lane]]
            if now_ns - since_ns - self._stood_still_ns(since_ns) > bound_ns and not (tighter and late):
                self._workers.kill(lane, ExitCause.HUNG)
        self._ask()

    def _stood_still_ns(self, since_ns: int) -> int:
        """For how long of the time since then."""
        return sum(min(length_ns, max(0, end_ns - since_ns)) for end_ns, length_ns in self._pauses)

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
