"""Requests for models by seed: who asks for which model when, and what the models take.

Everything is drawn from a seeded generator, so that a trace is the same on every machine.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

SECOND = 1_000_000_000
MIB = 1 << 20
DAY_S = 86_400.0
BURST_REQUESTS = (10, 200)
BURST_RATE = 2.0
SCAN_STEP_NS = SECOND // 10
HABITS = 5

Request = tuple[int, int]
"""Time in nanoseconds, and model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """What a model takes in memory, and how long bringing it there takes."""

    bytes: int
    cost_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Models, requests in the order of time, and the memory there is."""

    models: tuple[TracedModel, ...]
    requests: tuple[Request, ...]
    budget_bytes: int


class Drawing:
    """``count`` requests for ``models`` models at ``rate`` per second, from one seed."""

    def __init__(self, seed: int, models: int, count: int, rate: float) -> None:
        self.random = random.Random(seed)
        self.models = models
        self.count = count
        self.rate = rate

    def part(self, share: float) -> Drawing:
        """A share of the requests at the same share of the rate, from the same stream of chance."""
        part = Drawing(0, self.models, int(self.count * share), self.rate * share)
        part.random = self.random
        return part

    def zipf(self, exponent: float) -> list[Request]:
        """Steady: the model of rank r is asked for in proportion to r to the power of -``exponent``."""
        weights = list(accumulate(self._shares(exponent)))
        at_s, requests = 0.0, []
        for _ in range(self.count):
            at_s += self.random.expovariate(self.rate)
            requests.append((int(at_s * SECOND), bisect(weights, self.random.random() * weights[-1])))
        return requests

    def daily(self, exponent: float) -> list[Request]:
        """Three days; every model has an hour at which it is asked for 400 times as often as half a day later."""
        shares = self._shares(exponent)
        peaks = [self.random.random() for _ in shares]
        at_s, requests, weights = 0.0, [], [0.0]
        for index in range(self.count):
            at_s += self.random.expovariate(self.count / (3 * DAY_S))
            if index % 200 == 0:
                swing = (math.exp(3 * math.cos(2 * math.pi * (at_s / DAY_S - peak))) for peak in peaks)
                weights = list(
                    accumulate(share * factor for share, factor in zip(shares, swing, strict=True))
                )
            requests.append((int(at_s * SECOND), bisect(weights, self.random.random() * weights[-1])))
        return requests

    def bursts(self, exponent: float) -> list[Request]:
        """Half is steady, half are bursts of a model drawn anew for each."""
        requests = self.part(0.5).zipf(exponent)
        end_ns, left = requests[-1][0], self.count - len(requests)
        while left > 0:
            model, at_ns = self.random.randrange(self.models), self.random.randrange(end_ns)
            length = min(left, self.random.randint(*BURST_REQUESTS))
            left -= length
            for _ in range(length):
                at_ns += int(self.random.expovariate(BURST_RATE) * SECOND)
                requests.append((at_ns, model))
        return sorted(requests)

    def scans(self, exponent: float) -> list[Request]:
        """A fifth are sweeps over all models, one after the other."""
        requests = self.part(0.8).zipf(exponent)
        end_ns, left = requests[-1][0], self.count - len(requests)
        while left > 0:
            at_ns = self.random.randrange(end_ns)
            for model in self.random.sample(range(self.models), min(left, self.models)):
                at_ns += SCAN_STEP_NS
                requests.append((at_ns, model))
                left -= 1
        return sorted(requests)

    def habits(self, exponent: float) -> list[Request]:
        """Steady, but five times everybody's rank is drawn anew."""
        requests: list[Request] = []
        for _ in range(HABITS):
            start_ns = requests[-1][0] if requests else 0
            habit = self.part(1 / HABITS)
            habit.rate = self.rate
            requests += [(start_ns + at_ns, model) for at_ns, model in habit.zipf(exponent)]
        return requests

    def loop(self) -> list[Request]:
        """A quarter of the models, each in its turn, over and over."""
        step_ns = int(SECOND / self.rate)
        return [(index * step_ns, index % (self.models // 4)) for index in range(self.count)]

    def mixture(self, exponent: float) -> list[Request]:
        """Bursts, scans and changing habits at the same time."""
        half, quarter = self.part(0.5), self.part(0.25)
        return sorted(half.bursts(exponent) + quarter.scans(exponent) + quarter.habits(exponent))

    def _shares(self, exponent: float) -> list[float]:
        shares = [rank**-exponent for rank in range(1, self.models + 1)]
        self.random.shuffle(shares)
        return shares


PATTERNS: Mapping[str, Callable[[Drawing], list[Request]]] = {
    "zipf 0.6": lambda drawing: drawing.zipf(0.6),
    "zipf 0.8": lambda drawing: drawing.zipf(0.8),
    "zipf 1.0": lambda drawing: drawing.zipf(1.0),
    "zipf 1.2": lambda drawing: drawing.zipf(1.2),
    "daily cycle": lambda drawing: drawing.daily(0.9),
    "bursts": lambda drawing: drawing.bursts(0.9),
    "scans": lambda drawing: drawing.scans(0.9),
    "new habits": lambda drawing: drawing.habits(0.9),
    "loop": lambda drawing: drawing.loop(),
    "mixture": lambda drawing: drawing.mixture(0.9),
}


def equal(chance: random.Random) -> TracedModel:
    """10 MB in 20 ms."""
    return TracedModel(bytes=10 * MIB, cost_ns=SECOND // 50)


def sizes(chance: random.Random) -> TracedModel:
    """5 to 500 MB, at 1 GB/s and 10 ms."""
    size_bytes = int(5e6 * 100 ** chance.random())
    return TracedModel(bytes=size_bytes, cost_ns=size_bytes + SECOND // 100)


def costs(chance: random.Random) -> TracedModel:
    """5 to 500 MB; a third take three times, a sixth ten times as long per byte."""
    model = sizes(chance)
    return TracedModel(bytes=model.bytes, cost_ns=model.cost_ns * chance.choice((1, 1, 1, 3, 3, 10)))


MODELS: Mapping[str, Callable[[random.Random], TracedModel]] = {
    "equal": equal,
    "sizes": sizes,
    "costs": costs,
}


def draw(pattern: str, kind: str, seed: int, *, share: float, models: int, count: int, rate: float) -> Trace:
    """A trace: memory for ``share`` of all models' bytes, and for the largest one at least."""
    chance = random.Random(f"{seed} {kind}")
    traced = tuple(MODELS[kind](chance) for _ in range(models))
    budget_bytes = max(int(share * sum(each.bytes for each in traced)), *(each.bytes for each in traced))
    requests = PATTERNS[pattern](Drawing(seed, models, count, rate))
    return Trace(models=traced, requests=tuple(requests), budget_bytes=budget_bytes)
