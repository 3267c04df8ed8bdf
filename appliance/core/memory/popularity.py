"""How much each model is wanted, whether it is in memory or not, and so which one is missed least.

Every request counts one, and fades: after a *span* its weight is 1/e. The sum is a rate, as recent as the span
is short; the score of a model is the logarithm of that sum as seen from a fixed moment, so that nothing has to
be changed while time passes and the order of two models changes only when one is used (Lee et al., "LRFU: a
spectrum of policies that subsumes the LRU and LFU policies", IEEE Transactions on Computers 50(12), 2001).
Rate times the cost of bringing the model back, per byte, is what keeping it is worth (Cao and Irani, "Cost-aware
WWW proxy caching algorithms", USITS 1997).

Which span foretells best depends on the requests: steady ones want a long memory, bursts and new habits a short
one. So one *shadow* per span plays the whole budget by its own scores, without any memory but for names, and is
charged for what it misses. The span whose shadow has paid least of late is the one that counts.

Worths that are about equal count as equal, and then the model that came last goes first: models asked for in
turn, too many for the budget, would otherwise push each other out for ever.
"""

from __future__ import annotations

import heapq
from math import exp, floor, log, log1p

SECOND = 1_000_000_000
SPANS_NS = tuple(seconds * SECOND for seconds in (8, 64, 512, 4096, 32768))
FIRST_SPAN = 2
"""Which span counts while nothing is known."""
FADE = 0.995
"""What is left of what shadows have paid, after each miss of one of them."""
BETTER = 0.97
"""Another span counts when its shadow has paid less than this share."""
GRAIN = 0.2
"""Worths that differ by less than about a fifth are alike."""
STALE_MAX = 64
"""What left a shadow stays in its heap until that holds so many of them, and more than what is held."""
FADED = 30.0
"""Beside a weight e to this power larger, another does not count."""

Worth = tuple[int, int]
"""What keeping a model is worth, least first; the second part is minus the order in which it came."""


class Popularity:
    """Scores of all models and the shadows. Owned by the accountant's books."""

    __slots__ = ("_arrivals", "_models", "_paid", "_shadows", "_span")

    def __init__(self, budget_bytes: int) -> None:
        self._models: dict[int, _Wanted] = {}
        self._shadows = [_Shadow(span, budget_bytes, self._models) for span in range(len(SPANS_NS))]
        self._paid = [0.0] * len(SPANS_NS)
        self._span = FIRST_SPAN
        self._arrivals = 0

    def set_budget(self, budget_bytes: int) -> None:
        """So many bytes each shadow has to play with."""
        for shadow in self._shadows:
            shadow.budget_bytes = budget_bytes

    def describe(self, model: int, cost_ns: int, size_bytes: int) -> None:
        """Bringing ``model`` back takes so long, and its absence frees so many bytes."""
        wanted = self._models.get(model)
        if wanted is None:
            wanted = self._models[model] = _Wanted()
        wanted.cost_ns, wanted.bytes = cost_ns, size_bytes
        wanted.density = _density(cost_ns, size_bytes)

    def forget(self, model: int) -> None:
        """The model is gone for good."""
        for shadow in self._shadows:
            shadow.remove(model)
        self._models.pop(model, None)

    def use(self, model: int, requests: int, now_ns: int) -> None:
        """``requests`` wanted this model, which was described, now."""
        wanted = self._models[model]
        more = log(requests)
        for index, span_ns in enumerate(SPANS_NS):
            wanted.scores[index] = _log_sum(now_ns / span_ns + more, wanted.scores[index])
        missed = False
        for index, shadow in enumerate(self._shadows):
            if model not in shadow.held:
                missed = True
                self._arrivals += 1
                self._paid[index] += wanted.cost_ns
                shadow.take(model, self._arrivals)
        if missed:
            self._follow_the_best()

    def worth(self, model: int, cost_ns: int, size_bytes: int, arrival: int) -> Worth:
        """What it is worth to keep ``size_bytes`` of a described model whose absence would cost ``cost_ns`` at its
        next request."""
        score = self._models[model].scores[self._span]
        return floor((score + _density(cost_ns, size_bytes)) / GRAIN), -arrival

    def _follow_the_best(self) -> None:
        self._paid = [paid * FADE for paid in self._paid]
        best = min(range(len(self._paid)), key=self._paid.__getitem__)
        if self._paid[best] < BETTER * self._paid[self._span]:
            self._span = best


class _Wanted:
    """What is known of a model."""

    __slots__ = ("bytes", "cost_ns", "density", "scores")

    def __init__(self) -> None:
        self.scores = [-FADED] * len(SPANS_NS)
        self.cost_ns = 0
        self.bytes = 0
        self.density = 0.0


class _Shadow:
    """Which models would be in memory if one span had decided from the start.

    Worths only grow between two changes of costs, so a heap is mended when it is looked at: what was put in too
    low is put back higher.
    """

    __slots__ = ("_heap", "_models", "_span", "_used_bytes", "budget_bytes", "held")

    def __init__(self, span: int, budget_bytes: int, models: dict[int, _Wanted]) -> None:
        self._span = span
        self._models = models
        self._heap: list[tuple[int, int, int]] = []
        self._used_bytes = 0
        self.budget_bytes = budget_bytes
        self.held: dict[int, tuple[int, int]] = {}
        """Order of arrival, and bytes, of what is in it."""

    def take(self, model: int, arrival: int) -> None:
        """``model`` is wanted and was not there."""
        size_bytes = self._models[model].bytes
        while self.held and self._used_bytes + size_bytes > self.budget_bytes:
            self._evict()
        self.held[model] = arrival, size_bytes
        self._used_bytes += size_bytes
        heapq.heappush(self._heap, (self._worth(model), -arrival, model))

    def remove(self, model: int) -> None:
        if model in self.held:
            self._used_bytes -= self.held.pop(model)[1]
        if len(self._heap) > 2 * len(self.held) + STALE_MAX:
            self._heap = [entry for entry in self._heap if self.held.get(entry[2], (0, 0))[0] == -entry[1]]
            heapq.heapify(self._heap)

    def _evict(self) -> None:
        while True:
            worth, order, model = self._heap[0]
            if self.held.get(model, (0, 0))[0] != -order:
                heapq.heappop(self._heap)
            elif (now := self._worth(model)) > worth:
                heapq.heapreplace(self._heap, (now, order, model))
            else:
                heapq.heappop(self._heap)
                self.remove(model)
                return

    def _worth(self, model: int) -> int:
        wanted = self._models[model]
        return floor((wanted.scores[self._span] + wanted.density) / GRAIN)


def _density(cost_ns: int, size_bytes: int) -> float:
    return log(max(cost_ns, 1) / max(size_bytes, 1))


def _log_sum(newer: float, older: float) -> float:
    """The logarithm of the sum of what two logarithms stand for."""
    high, low = (newer, older) if newer > older else (older, newer)
    return high + log1p(exp(low - high)) if high - low < FADED else high
