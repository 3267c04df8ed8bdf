"""What misses of a trace cost: ours, LRU, GDSF, and two that know the future.

All play the same game, that of the papers: a request for a model that is not in memory costs what bringing it there
takes, which itself takes no time; others are put out as far as is needed.

- LRU puts out what was used longest ago.
- GDSF: frequency times cost per byte, plus the priority of what was put out last (Cherkasova, "Improving WWW proxies
  performance with Greedy-Dual-Size-Frequency caching policy", HP Labs 1998-69R1).
- Belady puts out what is used again last (Belady, "A study of replacement algorithms for a virtual-storage computer",
  IBM Systems Journal 5(2), 1966). It is the optimum where all sizes and all costs are equal, and only there.
- Greedy Belady puts out what has the least cost per byte and request until it is used again. With different sizes the
  optimum is NP-hard (Chrobak et al., "Caching is hard, even in the fault model", Algorithmica 63, 2012); this is an
  achievable cost, so the optimum is at most as much. It is no lower bound.
- The bound is one below which no policy can be: bytes of memory times length of the trace are filled with those
  intervals between two uses of a model that spare the most per byte and request (PFOO-L in Berger, Beckmann and
  Harchol-Balter, "Practical bounds on optimal caching with variable object sizes", SIGMETRICS 2018, weighed by cost).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from appliance.core.memory import actions, events
from appliance.core.memory.accountant import Accountant
from appliance.core.memory.budget import Budget, ResidencyPolicy
from appliance.core.memory.footprint import Footprint, Residency
from appliance.domain.device import CPU
from benchmarks.residency_traces import Trace

NEVER = 1 << 62


class Rival(ABC):
    """A cache by the book: ``worth`` says who goes first."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.held: set[int] = set()
        self.free_bytes = trace.budget_bytes

    def play(self) -> int:
        """The sum of what misses cost, in nanoseconds."""
        paid_ns = 0
        for index, (_, model) in enumerate(self.trace.requests):
            self.use(index, model)
            if model in self.held:
                continue
            traced = self.trace.models[model]
            paid_ns += traced.cost_ns
            while self.free_bytes < traced.bytes:
                victim = min(self.held, key=lambda other: (self.worth(index, other), other))
                self.held.discard(victim)
                self.free_bytes += self.trace.models[victim].bytes
                self.put_out(victim)
            self.held.add(model)
            self.free_bytes -= traced.bytes
        return paid_ns

    def density(self, model: int) -> float:
        """Cost per byte."""
        traced = self.trace.models[model]
        return traced.cost_ns / traced.bytes

    @abstractmethod
    def use(self, index: int, model: int) -> None:
        """The request number ``index`` is for ``model``."""

    @abstractmethod
    def worth(self, index: int, model: int) -> float:
        """Who has least is put out."""

    def put_out(self, model: int) -> None:  # noqa: B027 - not all rivals mind
        """``model`` was put out."""


class Lru(Rival):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.last: dict[int, int] = {}

    def use(self, index: int, model: int) -> None:
        self.last[model] = index

    def worth(self, index: int, model: int) -> float:
        return self.last[model]


class Gdsf(Rival):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.age = 0.0
        self.uses: dict[int, int] = {}
        self.priority: dict[int, float] = {}

    def use(self, index: int, model: int) -> None:
        self.uses[model] = self.uses.get(model, 0) + 1
        self.priority[model] = self.age + self.uses[model] * self.density(model)

    def worth(self, index: int, model: int) -> float:
        return self.priority[model]

    def put_out(self, model: int) -> None:
        self.age = self.priority[model]
        del self.uses[model]


class Belady(Rival):
    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.next: dict[int, int] = {}
        self.following = following(trace)

    def use(self, index: int, model: int) -> None:
        self.next[model] = self.following[index]

    def worth(self, index: int, model: int) -> float:
        return -self.next[model]


class GreedyBelady(Belady):
    def worth(self, index: int, model: int) -> float:
        return self.density(model) / (self.next[model] - index)


def following(trace: Trace) -> list[int]:
    """For each request, the number of the next one for the same model."""
    found = [NEVER] * len(trace.requests)
    later: dict[int, int] = {}
    for index in range(len(trace.requests) - 1, -1, -1):
        model = trace.requests[index][1]
        found[index] = later.get(model, NEVER)
        later[model] = index
    return found


def bound(trace: Trace) -> int:
    """What misses cost at least, whoever decides, in nanoseconds."""
    spared: list[tuple[float, int, int]] = []
    paid_ns = 0
    for index, after in enumerate(following(trace)):
        traced = trace.models[trace.requests[index][1]]
        paid_ns += traced.cost_ns
        if after != NEVER:
            area = traced.bytes * (after - index)
            spared.append((traced.cost_ns / area, area, traced.cost_ns))
    room = trace.budget_bytes * len(trace.requests)
    for _, area, cost_ns in sorted(spared, reverse=True):
        if area > room:
            return paid_ns - cost_ns * room // area
        room -= area
        paid_ns -= cost_ns
    return paid_ns


def ours(trace: Trace) -> int:
    """The same game for the accountant, in nanoseconds; fetching ahead is charged as well."""
    accountant = Accountant(ResidencyPolicy(), [Budget(CPU, trace.budget_bytes)])
    paid_ns = 0

    def tell(event: events.Event, now_ns: int) -> None:
        nonlocal paid_ns
        waiting = [event]
        while waiting:
            for action in accountant.step(waiting.pop(), now_ns):
                match action:
                    case actions.Load() | actions.PageIn():
                        traced = trace.models[action.model]
                        paid_ns += traced.cost_ns
                        waiting.append(events.Done(action.model, traced.cost_ns, traced.bytes))
                    case actions.EvictWeights() | actions.Unload():
                        waiting.append(events.Done(action.model))
                    case actions.CheckUse():
                        waiting.append(events.UseChecked(action.device, frozenset(action.models)))
                    case actions.Refuse():
                        raise AssertionError(f"{action} without a deadline")

    for number, traced in enumerate(trace.models):
        footprint = Footprint(traced.bytes, traced.bytes)
        costs_ns = traced.cost_ns, traced.cost_ns
        tell(events.Added(number, CPU, Residency.WEIGHTS_EVICTED, footprint, *costs_ns), 0)
    for request, (at_ns, number) in enumerate(trace.requests):
        model = accountant.model(number)
        if model is not None and model.residency is Residency.RESIDENT:
            tell(events.Used(number, 1), at_ns)
        else:
            tell(events.Asked(number, request, NEVER, 0), at_ns)
    return paid_ns


POLICIES: Mapping[str, Callable[[Trace], int]] = {
    "ours": ours,
    "GDSF": lambda trace: Gdsf(trace).play(),
    "Belady": lambda trace: Belady(trace).play(),
    "greedy Belady": lambda trace: GreedyBelady(trace).play(),
    "bound": bound,
}
