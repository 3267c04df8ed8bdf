"""Stretches of time that are told to ``Companions``, one after the other."""

from __future__ import annotations

from appliance.core.scheduling.companions import BUSY_PER_S, LOOK_NS, TRIED, Companions, Part, Spent

BUSY = BUSY_PER_S // 10
"""Requests that are just enough in one stretch."""
DOOR_NS = 50_000_000


class Time:
    """Stretch after stretch. ``together`` are those that were bound as it was decided."""

    def __init__(self) -> None:
        self.companions = Companions()
        self.now_ns = 1
        self.together: frozenset[int] = frozenset()

    def stretch(
        self,
        parts: dict[int, Part],
        *,
        requests: int = 10 * BUSY,
        waited_ns: int = 0,
        door_ns: int = DOOR_NS,
        span_ns: int = LOOK_NS,
    ) -> set[int]:
        """The companions after a stretch in which the door had so many requests answered, by whomever."""
        self.now_ns += span_ns
        self.together = self.companions.decide(
            self.now_ns, span_ns, requests, Spent(door_ns, waited_ns), parts, self.together
        )
        return set(self.together)

    def after(
        self, workers: dict[int, int], *, requests: int = 10 * BUSY, each: int | None = None, **more: int
    ) -> set[int]:
        """The companions after a stretch in which the ``workers`` ran so long, for ``each`` so many requests: an equal
        part of all."""
        if each is None:
            each = requests // len(workers)
        parts = {worker: Part(ran_ns, each) for worker, ran_ns in workers.items()}
        return self.stretch(parts, requests=requests, **more)

    def crowded(self, workers: dict[int, int], stretches: int) -> set[int]:
        """The same after so many stretches in which the door's thread waited for others."""
        return [self.after(workers, waited_ns=LOOK_NS) for _ in range(stretches)][-1]

    def settled(self, workers: dict[int, int], **more: int) -> set[int]:
        """The same after as many stretches as it takes to try."""
        return [self.after(workers, **more) for _ in range(TRIED)][-1]


def ran(share: float) -> int:
    """Nanoseconds that are this share of what the door's thread ran."""
    return int(DOOR_NS * share)


def rest(time: Time, worker: dict[int, int], rest_ns: int) -> None:
    """Nobody is anybody's companion for so long."""
    end_ns = time.now_ns + rest_ns
    while time.now_ns + LOOK_NS < end_ns:
        assert time.after(worker) == set()
    assert time.after(worker) == set(worker)
