"""Which workers shall run on the processor of the door's thread: pure decisions from what threads have used.

A request of a small model costs less than it costs to wake another processor for it, twice: where the door's thread and
the worker share one, each goes on when the other has nothing to do, requests that come meanwhile gather, and nobody is
woken from far away. With workers that take long it is the other way round: the door would wait for them.

So a worker is a companion while many requests are served, each takes it little, and all of them take little beside the
door. Whether that pays is tried: what is served together is held against what was served apart, at first and, where
door and companions fill their processor, again from time to time. They part for a while where it does not pay, where
they come to use too much, and where others keep the door's thread waiting: it can wait for its companions only as long
as they run, by the kernel's own figures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

LOOK_NS: Final = 100_000_000
"""How long a stretch is at least that is decided upon."""
BUSY_PER_S: Final = 1_000
"""Requests a second that make it worth while; half as many while there are companions."""
REQUEST_NS: Final = 100_000
"""What a request may take a companion: a short turn. Who asks for one waits no longer for a processor."""
ENTER_SHARE: Final = 0.67
"""What all companions may have used of what the door has, each apart: a part of it is what waking and being woken from
far away costs, which they then save."""
STAY_SHARE: Final = 0.5
WAITED_SHARE: Final = 0.2
"""Of a stretch the door's thread may have waited for others than its companions."""
CROWDED: Final = 3
"""Stretches in a row in which it waited for longer, until they are said to stay: some pass by."""
TRIED: Final = 5
"""Stretches apart and together that are compared."""
KEPT_SHARE: Final = 0.9
"""Of the rate apart, which goes up and down by itself, this must be served together."""
FULL_SHARE: Final = 0.9
"""Of a stretch that door and companions run: nothing more fits onto their processor, and apart more might be served."""
REST_NS: Final = 2_000_000_000
REST_NS_MAX: Final = 64_000_000_000
"""How long to leave everybody where the kernel wants it after that was better; twice as long each time."""
CALM_NS: Final = 10_000_000_000
"""After so long together the next rest is a short one again, and where they are full, they try once more."""


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


class Companions:
    """Decides from stretch to stretch. Workers are named by numbers."""

    def __init__(self) -> None:
        self._chosen: frozenset[int] = frozenset()
        self._since_ns = 0
        self._rest_ns = REST_NS
        self._rested_ns = 0
        self._crowded = 0
        self._stretches: deque[tuple[int, int]] = deque(maxlen=TRIED)
        """Requests and nanoseconds of the last ones, since the companions came or went."""
        self._apart = 0.0
        """Requests per nanosecond before the companions came; 0: that is compared already."""

    def decide(
        self,
        now_ns: int,
        span_ns: int,
        requests: int,
        door: Spent,
        workers: Mapping[int, Part],
        together: frozenset[int],
    ) -> frozenset[int]:
        """The companions from ``now_ns`` on, the end of a stretch of ``span_ns`` with so many ``requests``; what the
        door's thread spent in it, what part ``workers`` had, and which of them were where they had been chosen to be:
        ``together`` with it."""
        if not together:
            self._choose(frozenset(), now_ns)
        self._chosen &= together
        enough = BUSY_PER_S / 2 if self._chosen else BUSY_PER_S
        if requests * 1_000_000_000 < enough * span_ns:
            self._stretches.clear()
            return self._choose(frozenset(), now_ns)
        self._stretches.append((requests, span_ns))
        if self._chosen:
            return self._stay(now_ns, span_ns, door, workers)
        if now_ns < self._rested_ns or len(self._stretches) < TRIED:
            return self._chosen
        return self._choose(_light(workers, ENTER_SHARE * door.ran_ns), now_ns)

    def _stay(self, now_ns: int, span_ns: int, door: Spent, workers: Mapping[int, Part]) -> frozenset[int]:
        theirs_ns = sum(part.ran_ns for worker, part in workers.items() if worker in self._chosen)
        waited_long = door.waited_ns > theirs_ns + WAITED_SHARE * span_ns
        self._crowded = self._crowded + 1 if waited_long else 0
        light = _light(workers, STAY_SHARE * door.ran_ns)
        if self._crowded == CROWDED or not light or self._serves_less():
            self._rested_ns = now_ns + self._rest_ns
            self._rest_ns = min(2 * self._rest_ns, REST_NS_MAX)
            return self._choose(frozenset(), now_ns)
        if now_ns - self._since_ns > CALM_NS:
            self._rest_ns = REST_NS
            if door.ran_ns + theirs_ns >= FULL_SHARE * span_ns:
                return self._choose(frozenset(), now_ns)
        return self._choose(light, now_ns)

    def _serves_less(self) -> bool:
        """Whether that shows now, once after the companions came."""
        if not self._apart or len(self._stretches) < TRIED:
            return False
        apart, self._apart = self._apart, 0.0
        return self._rate() < KEPT_SHARE * apart

    def _rate(self) -> float:
        return sum(requests for requests, _ in self._stretches) / sum(ns for _, ns in self._stretches)

    def _choose(self, chosen: frozenset[int], now_ns: int) -> frozenset[int]:
        if bool(chosen) != bool(self._chosen):
            self._since_ns = now_ns
            self._apart = self._rate() if chosen else 0.0
            self._stretches.clear()
            self._crowded = 0
        self._chosen = chosen
        return chosen


def _light(workers: Mapping[int, Part], most_ns: float) -> frozenset[int]:
    """Those that used least, as many as use no more than ``most_ns`` together, of those whose requests are small."""
    chosen = []
    for worker, part in sorted(workers.items(), key=lambda item: (item[1].ran_ns, item[0])):
        most_ns -= part.ran_ns
        if most_ns < 0:
            break
        if part.ran_ns <= REQUEST_NS * max(part.requests, 1):
            chosen.append(worker)
        else:
            most_ns += part.ran_ns
    return frozenset(chosen)
