"""Which workers shall run on the processor of the door's thread: pure decisions from what threads have used.

A request of a small model costs less than it costs to wake another processor for it, twice: where the door's thread and
the worker share one, each goes on when the other has nothing to do, requests that come meanwhile gather, and nobody is
woken from far away. With workers that take long it is the other way round: the door would wait for them.

So a worker is a companion while it and others like it serve many requests, each takes it little, and all of them take
little beside the door once they are together. Whether that pays is tried: what is served together is held against what
was served apart. They gather all at once; later one may go that comes to use too much, and is left out for a while, or
has nothing to do, and from time to time all part for a moment and gather anew: where others could join them or would
serve far more, and where they fill their processor, so that it is tried once more. They part for a while where it does
not pay, and where others keep the door's thread waiting: it can wait for its companions only as long as they run, by
the kernel's own figures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

LOOK_NS: Final = 100_000_000
"""How long a stretch is at least that is decided upon."""
BUSY_PER_S: Final = 1_000
"""Requests a second of small models that make it worth while; half as many while there are companions."""
REQUEST_NS: Final = 100_000
"""What a request may take a companion: a short turn. Who asks for one waits no longer for a processor."""
ENTER_SHARE: Final = 1.25
"""What all companions may have used of what the door has, each apart. Most of it is what waking and being woken from
far away costs, which they then save: a model of 5 us was seen to take a quarter of the door's time together, and apart
from a third to 1.15 of it, as the machine had it."""
STAY_SHARE: Final = 0.5
"""What they may use of it together, where all that they use is their own work."""
JOIN_SHARE: Final = 0.67
"""What companions and those that could join them may have used of it, these still apart: all would part for that."""
WAITED_SHARE: Final = 0.2
"""Of a stretch the door's thread may have waited for others than its companions."""
OVER: Final = 2
"""Stretches in a row in which a companion used too much, until it goes: one may be by chance."""
BETTER: Final = 2
"""All part for others that would serve so many times as much."""
CROWDED: Final = 3
"""Stretches in a row in which it waited for longer, until they are said to stay: some pass by."""
TRIED: Final = 5
"""Stretches apart and together that are compared, and stretches without a request after which a companion goes."""
KEPT_SHARE: Final = 0.9
"""Of the rate apart this must be served together. It goes up and down by itself, and so this is looked at twice."""
FULL_SHARE: Final = 0.9
"""Of a stretch that door and companions run: nothing more fits onto their processor, and apart more might be served."""
REST_NS: Final = 2_000_000_000
REST_NS_MAX: Final = 64_000_000_000
"""How long to leave everybody where the kernel wants it after that was better, or one that used too much; twice as long
each time."""
CALM_NS: Final = 10_000_000_000
"""After so long together the next rest is a short one again, and where they are full, or not all that could be
companions, they gather anew. For so long after as many were together it need not be tried again whether it pays."""
PROOF_NS: Final = 60_000_000_000
"""For so long a trial may count."""


class Spent(NamedTuple):
    """What a thread has used of processors, and how long it waited for one, in nanoseconds."""

    ran_ns: int
    waited_ns: int

    def since(self, before: Spent) -> Spent:
        """What came to it."""
        return Spent(self.ran_ns - before.ran_ns, self.waited_ns - before.waited_ns)


class Part(NamedTuple):
    """A worker's part in a stretch: what its thread ran, in nanoseconds, and how many requests the door had of it."""

    ran_ns: int
    requests: int


class _Rest(NamedTuple):
    """When a worker may be a companion again, and how long it could not be."""

    end_ns: int
    span_ns: int


class Companions:
    """Decides from stretch to stretch. Workers are named by numbers."""

    def __init__(self) -> None:
        self._chosen: frozenset[int] = frozenset()
        self._since_ns = 0
        """When they gathered to try whether it pays."""
        self._came_ns = 0
        """When they gathered, be it to try that or because it was known."""
        self._rest_ns = REST_NS
        self._rested_ns = 0
        self._proven_ns = self._proven = 0
        """Until when it is known that it pays, and for how many."""
        self._crowded = 0
        self._over: dict[int, int] = {}
        """For how many stretches companions have used too much."""
        self._left_out: dict[int, _Rest] = {}
        self._invited: frozenset[int] = frozenset()
        """For whom all have parted."""
        self._idle: dict[int, int] = {}
        """For how many stretches companions have had no request."""
        self._stretches: deque[tuple[int, int]] = deque(maxlen=TRIED)
        """Requests and nanoseconds of the last ones, since the companions came or went, or were compared."""
        self._apart = 0.0
        """Requests per nanosecond before the companions came; 0: that is compared already."""
        self._doubted = False
        """It was compared once, and less was served."""

    def decide(
        self,
        now_ns: int,
        span_ns: int,
        requests: int,
        door: Spent,
        workers: Mapping[int, Part],
        together: frozenset[int],
    ) -> frozenset[int]:
        """The companions from ``now_ns`` on, the end of a stretch of ``span_ns`` in which the door had so many
        ``requests`` answered; what its thread spent in it, what part ``workers`` had, as far as that is known, and
        which of them were where they had been chosen to be: ``together`` with it. Who is missing has gone."""
        if self._chosen and not self._chosen & together & workers.keys():
            return self._part_for_now(now_ns)
        self._chosen &= together & workers.keys()
        self._stretches.append((requests, span_ns))
        if self._chosen:
            return self._stay(now_ns, span_ns, door, workers)
        most_ns = ENTER_SHARE * door.ran_ns
        light = _light(self._free(workers, now_ns), most_ns)
        many = _many(workers, light, BUSY_PER_S, span_ns)
        if not many and not _many(workers, _light(workers, most_ns), BUSY_PER_S, span_ns):
            self._stretches.clear()
        elif (
            many
            and now_ns >= self._rested_ns
            and (self._pays(light, now_ns) or len(self._stretches) == TRIED)
        ):
            self._gather(light, now_ns)
        return self._chosen

    def _stay(self, now_ns: int, span_ns: int, door: Spent, workers: Mapping[int, Part]) -> frozenset[int]:
        parts = {worker: workers[worker] for worker in self._chosen}
        if not _many(parts, self._chosen, BUSY_PER_S / 2, span_ns):
            return self._part_for_now(now_ns)
        theirs_ns = sum(part.ran_ns for part in parts.values())
        waited_long = door.waited_ns > theirs_ns + WAITED_SHARE * span_ns
        self._crowded = self._crowded + 1 if waited_long else 0
        if self._crowded == CROWDED or self._serves_less():
            return self._part_to_rest(now_ns)
        self._leave_out_heavy(parts, door, now_ns)
        if not _many(parts, self._chosen, BUSY_PER_S / 2, span_ns):
            return self._part()
        if now_ns - self._came_ns > CALM_NS:
            self._rest_ns = REST_NS
            for worker in self._chosen:
                self._left_out.pop(worker, None)
        if now_ns - self._since_ns > CALM_NS and now_ns - self._came_ns >= TRIED * LOOK_NS:
            full = door.ran_ns + theirs_ns >= FULL_SHARE * span_ns
            self._invited = self._others(workers, door, span_ns, now_ns)
            if full or self._invited:
                return self._part()
        self._idle = {
            worker: 0 if part.requests else self._idle.get(worker, 0) + 1 for worker, part in parts.items()
        }
        self._chosen = frozenset(worker for worker in self._chosen if self._idle[worker] < TRIED)
        return self._chosen or self._part_for_now(now_ns)

    def _leave_out_heavy(self, parts: Mapping[int, Part], door: Spent, now_ns: int) -> None:
        """Let those go that have used too much for some time: they shall not keep others out when all gather anew."""
        light = _light(parts, STAY_SHARE * door.ran_ns)
        self._over = {worker: self._over.get(worker, 0) + 1 for worker in self._chosen - light}
        heavy = frozenset(worker for worker, stretches in self._over.items() if stretches >= OVER)
        self._leave_out(heavy, now_ns)
        self._chosen -= heavy

    def _leave_out(self, workers: frozenset[int], now_ns: int) -> None:
        self._left_out = {
            worker: rest
            for worker, rest in self._left_out.items()
            if now_ns - rest.end_ns < REST_NS_MAX  # the longest that would be doubled
        }
        for worker in workers:
            before = self._left_out.get(worker)
            span_ns = min(2 * before.span_ns, REST_NS_MAX) if before else REST_NS
            self._left_out[worker] = _Rest(now_ns + span_ns, span_ns)

    def _free(self, workers: Mapping[int, Part], now_ns: int) -> dict[int, Part]:
        """Those that are not left out now."""
        return {
            worker: part
            for worker, part in workers.items()
            if worker not in self._left_out or now_ns >= self._left_out[worker].end_ns
        }

    def _others(self, workers: Mapping[int, Part], door: Spent, span_ns: int, now_ns: int) -> frozenset[int]:
        """Those for whom all should part: they could join, or serve much more than the companions do."""
        free = self._free(workers, now_ns)
        could = _light(free, JOIN_SHARE * door.ran_ns)
        if self._chosen <= could and _many(free, could - self._chosen, BUSY_PER_S / 2, span_ns):
            return could - self._chosen
        better = _light(free, ENTER_SHARE * door.ran_ns)
        ours = _requests(workers, self._chosen)
        return better - self._chosen if _requests(free, better) > BETTER * ours else frozenset()

    def _serves_less(self) -> bool:
        """Whether that has shown twice now, since the companions came."""
        if not self._apart or len(self._stretches) < TRIED:
            return False
        less, doubted = self._rate() < KEPT_SHARE * self._apart, self._doubted
        self._doubted = less
        self._stretches.clear()
        if doubted or not less:
            self._apart = 0.0
        return doubted and less

    def _rate(self) -> float:
        return sum(requests for requests, _ in self._stretches) / sum(ns for _, ns in self._stretches)

    def _gather(self, chosen: frozenset[int], now_ns: int) -> None:
        self._chosen, self._came_ns = chosen, now_ns
        if self._pays(chosen, now_ns):
            self._apart = 0.0
        else:
            self._apart, self._since_ns = self._rate(), now_ns
        self._proven_ns, self._proven, self._doubted = 0, len(chosen), False
        self._stretches.clear()
        self._crowded = 0
        self._over, self._idle = {}, {}
        self._leave_out(self._invited - chosen, now_ns)  # or all would part for them again and again
        self._invited = frozenset()

    def _pays(self, chosen: frozenset[int], now_ns: int) -> bool:
        return now_ns < self._proven_ns and len(chosen) <= self._proven

    def _part_for_now(self, now_ns: int) -> frozenset[int]:
        """Nothing is wrong with them: there is nothing to do, or they have gone. Unless they have only just come: who
        is asked in batches, or is let go each time, would come and go all the time."""
        if now_ns - self._came_ns < TRIED * LOOK_NS:
            return self._part_to_rest(now_ns)
        if not self._apart:
            self._proven_ns = min(now_ns + CALM_NS, self._since_ns + PROOF_NS)
        return self._part()

    def _part_to_rest(self, now_ns: int) -> frozenset[int]:
        self._rested_ns = now_ns + self._rest_ns
        self._rest_ns = min(2 * self._rest_ns, REST_NS_MAX)
        return self._part()

    def _part(self) -> frozenset[int]:
        self._chosen = frozenset()
        self._stretches.clear()
        return self._chosen


def _many(workers: Mapping[int, Part], which: frozenset[int], least_per_s: float, span_ns: int) -> bool:
    """Whether these were asked at least so often in a stretch."""
    return bool(which) and _requests(workers, which) * 1_000_000_000 >= least_per_s * span_ns


def _requests(workers: Mapping[int, Part], which: frozenset[int]) -> int:
    return sum(workers[worker].requests for worker in which)


def _light(workers: Mapping[int, Part], most_ns: float) -> frozenset[int]:
    """Those with the smallest requests, as many as used no more than ``most_ns`` together, of those whose requests are
    small: each request that they serve saves the same, whoever serves it. Or one, if it serves more than they."""

    def cost(worker: int) -> tuple[float, int]:
        ran_ns, requests = workers[worker]
        return ran_ns / max(requests, 1), worker

    fit = [
        worker for worker, part in workers.items() if part.ran_ns <= most_ns and cost(worker)[0] <= REQUEST_NS
    ]
    chosen: set[int] = set()
    for worker in sorted(fit, key=cost):
        if workers[worker].ran_ns <= most_ns:
            chosen.add(worker)
            most_ns -= workers[worker].ran_ns
    together = frozenset(chosen)
    alone = max(fit, key=lambda worker: workers[worker].requests, default=-1)
    more = bool(fit) and workers[alone].requests > _requests(workers, together)
    return frozenset({alone}) if more else together
