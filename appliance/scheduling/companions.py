"""Which workers shall run on the processor of the door's thread: pure decisions from what threads have used.

A request of a small model costs less than it costs to wake another processor for it, twice: where the door's thread and
the worker share one, each goes on when the other has nothing to do, requests that come meanwhile gather, and nobody is
woken from far away. With workers that take long it is the other way round: the door would wait for them.

So a worker is a companion while many requests are served and it uses little beside the door. Where it does not pay, by
what is served then, they part again, and so they do where others keep both waiting: the door's thread can wait for its
companions only as long as they run, by the kernel's own figures. After either they stay apart for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

LOOK_NS: Final = 100_000_000
"""How long a stretch is at least that is decided upon."""
BUSY_PER_S: Final = 1_000
"""Requests a second that make it worth while; half as many while there are companions."""
ENTER_SHARE: Final = 0.67
"""What all companions may have used of what the door has, each apart: a part of it is what waking and being woken from
far away costs, which they then save."""
STAY_SHARE: Final = 0.5
WAITED_SHARE: Final = 0.2
"""Of a stretch the door's thread may have waited for others than its companions."""
CROWDED: Final = 3
"""Stretches in a row in which it waited for longer, until they are said to stay: some pass by."""
TRIED: Final = 4
"""Stretches before and after that are compared."""
KEPT_SHARE: Final = 0.8
"""Of the rate before, which goes up and down by itself, this must be served after."""
REST_NS: Final = 2_000_000_000
REST_NS_MAX: Final = 64_000_000_000
"""How long to leave everybody where the kernel wants it after that was better; twice as long each time."""
CALM_NS: Final = 10_000_000_000
"""After so long together the next rest is a short one again."""


class Spent(NamedTuple):
    """What a thread has used of processors, and how long it waited for one, in nanoseconds."""

    ran_ns: int
    waited_ns: int

    def since(self, before: Spent) -> Spent:
        """What came to it."""
        return Spent(self.ran_ns - before.ran_ns, self.waited_ns - before.waited_ns)


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
        self._before = 0.0
        """Requests per nanosecond before the companions came; 0: that is compared already."""

    def decide(
        self, now_ns: int, span_ns: int, requests: int, door: Spent, workers: Mapping[int, Spent]
    ) -> frozenset[int]:
        """The companions from ``now_ns`` on, the end of a stretch of ``span_ns`` with so many ``requests``; what the
        door's thread and the ``workers`` that served them have spent in it."""
        enough = BUSY_PER_S / 2 if self._chosen else BUSY_PER_S
        if requests * 1_000_000_000 < enough * span_ns:
            self._stretches.clear()
            return self._choose(frozenset(), now_ns)
        self._stretches.append((requests, span_ns))
        self._crowded = self._crowded + 1 if self._is_crowded(span_ns, door, workers) else 0
        if self._crowded == CROWDED or self._serves_less():
            self._rested_ns = now_ns + self._rest_ns
            self._rest_ns = min(2 * self._rest_ns, REST_NS_MAX)
            return self._choose(frozenset(), now_ns)
        if self._chosen and now_ns - self._since_ns > CALM_NS:
            self._rest_ns = REST_NS
        if now_ns < self._rested_ns or (not self._chosen and len(self._stretches) < TRIED):
            return self._chosen
        return self._choose(self._light(door, workers), now_ns)

    def _is_crowded(self, span_ns: int, door: Spent, workers: Mapping[int, Spent]) -> bool:
        if not self._chosen:
            return False
        theirs_ns = sum(spent.ran_ns for worker, spent in workers.items() if worker in self._chosen)
        return door.waited_ns > theirs_ns + WAITED_SHARE * span_ns

    def _serves_less(self) -> bool:
        """Whether that shows now, once after the companions came."""
        if not self._chosen or not self._before or len(self._stretches) < TRIED:
            return False
        before, self._before = self._before, 0.0
        return self._rate() < KEPT_SHARE * before

    def _rate(self) -> float:
        return sum(requests for requests, _ in self._stretches) / sum(ns for _, ns in self._stretches)

    def _light(self, door: Spent, workers: Mapping[int, Spent]) -> frozenset[int]:
        """The workers that used least, as many as may be."""
        left_ns = door.ran_ns * (STAY_SHARE if self._chosen else ENTER_SHARE)
        chosen = []
        for worker, spent in sorted(workers.items(), key=lambda item: (item[1].ran_ns, item[0])):
            left_ns -= spent.ran_ns
            if left_ns < 0:
                break
            chosen.append(worker)
        return frozenset(chosen)

    def _choose(self, chosen: frozenset[int], now_ns: int) -> frozenset[int]:
        if bool(chosen) != bool(self._chosen):
            self._since_ns = now_ns
            self._before = self._rate() if chosen else 0.0
            self._stretches.clear()
            self._crowded = 0
        self._chosen = chosen
        return chosen
