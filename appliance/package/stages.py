"""A graph as the stages that a person looks at: single nodes, repetitions of equal blocks, and what is passed over.

Pure. Nodes stay in the file's order, in which runtimes take them. Blocks are equal when operators, short attributes and
the types of weights are, and when they hang together alike: each takes from inside itself, from the block before it, or
from where all take. Nodes that only give constants count as weights of those who take them. Weights are counted once,
at the first stage that takes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.package.repeats import Repeat, find_repeats
from appliance.repository.data_flow import FlowGraph, FlowNode, tensor_bytes
from appliance.repository.onnx_summary import GraphTensor, OperatorKey

DEPTH_MAX: Final = 3
"""Of repetitions within repetitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Nodes that follow one another, by their numbers in the graph. ``count`` above 1: so many equal blocks, of which
    ``inner`` are the stages of the first; else a single node, or with ``passed`` all nodes that are not shown.
    ``takes`` are values made before it, ``gives`` those that are used after it. ``weights`` are the tensors that it is
    the first to take, ``again`` those that were taken before, both of the first block only for repetitions;
    ``weight_bytes`` are all that it is the first to take."""

    nodes: tuple[int, ...]
    count: int = 1
    inner: tuple[Stage, ...] = ()
    passed: bool = False
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    weights: tuple[str, ...]
    again: tuple[str, ...]
    weight_bytes: int
    problems: tuple[str, ...] = ()


UNTYPED: Final = GraphTensor(name="", element_type=0, dims=(), inline_bytes=0, outside=False)
"""A constant that is no tensor in the file."""


class Scope(NamedTuple):
    """What a graph may take from around it: tensors, and names of values."""

    tensors: Mapping[str, GraphTensor]
    values: Set[str]


OUTERMOST: Final = Scope({}, frozenset())


class Network:
    """A graph with its wiring worked out once. ``scope`` is what lies around it."""

    def __init__(self, graph: FlowGraph, scope: Scope = OUTERMOST, *, constants: bool = False) -> None:
        """With ``constants`` the nodes that only give constants are nodes as others are."""
        self.graph = graph
        self.tensors = _visible_tensors(graph, scope, constants)
        self.order = [number for number, node in enumerate(graph.nodes) if constants or not node.is_constant]
        self._makers = self._first_makers()
        self._last_uses = self._find_last_uses()
        self._crossing = self._find_crossing()
        self._inputs = {port.name for port in graph.inputs}
        self._outside = self._inputs | scope.values
        self._kinds: dict[object, int] = {}

    @property
    def inside(self) -> Scope:
        """What its own subgraphs may take from around them."""
        return Scope(self.tensors, {*self._makers, *self._outside})

    def node(self, place: int) -> FlowNode:
        """The node at a place of the order."""
        return self.graph.nodes[self.order[place]]

    def flows(self, node: FlowNode) -> Iterator[str]:
        """Names of the values that a node takes, those of its subgraphs with them, that are no weights."""
        for name in dict.fromkeys((*node.takes, *node.captured)):
            if name and name not in self.tensors:
                yield name

    def weights(self, node: FlowNode) -> Iterator[str]:
        """Names of the tensors that a node takes."""
        for name in dict.fromkeys((*node.takes, *node.captured)):
            if name in self.tensors:
                yield name

    def source(self, name: str) -> int | str:
        """Which node makes the value ``name``; else "input", "weight", "around" or "nothing"."""
        maker = self._makers.get(name)
        if maker is not None:
            return self.order[maker]
        if name in self.tensors:
            return "weight"
        if name in self._inputs:
            return "input"
        return "around" if name in self._outside else "nothing"

    def local(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of ``names`` that nodes or inputs of this graph give."""
        return tuple(name for name in names if name in self._makers or name in self._inputs)

    def stages(self, *, fold: bool = True) -> tuple[Stage, ...]:
        """The whole graph; without ``fold`` one for each node."""
        return self._stages(0, len(self.order), fold, 0, set())

    # --- wiring

    def _first_makers(self) -> dict[str, int]:
        makers: dict[str, int] = {}
        for place in range(len(self.order)):
            for name in self.node(place).gives:
                if name and name not in self.tensors:
                    makers.setdefault(name, place)
        return makers

    def _find_last_uses(self) -> dict[str, int]:
        uses: dict[str, int] = {}
        for place in range(len(self.order)):
            for name in self.flows(self.node(place)):
                uses[name] = place
        uses.update({port.name: len(self.order) for port in self.graph.outputs})
        return uses

    def _problems(self, place: int) -> Iterator[str]:
        for name in self.flows(self.node(place)):
            maker = self._makers.get(name)
            if name in self._outside:
                continue
            if maker is None:
                yield f"nothing makes '{name}'"
            elif maker >= place:
                yield f"takes '{name}' before it is made"

    def unmade(self, name: str) -> bool:
        """Whether an output is made nowhere."""
        return name not in self._makers and name not in self._outside and name not in self.tensors

    def _find_crossing(self) -> list[int]:
        """How many values are made before each place and used there or later."""
        steps = [0] * (len(self.order) + 2)
        for name, maker in self._makers.items():
            last = self._last_uses.get(name, maker)
            if last > maker:
                steps[maker + 1] += 1
                steps[last + 1] -= 1
        total, costs = 0, []
        for step in steps:
            total += step
            costs.append(total)
        return costs

    # --- what is equal

    def _kind(self, node: FlowNode) -> int:
        """A number that equal nodes share."""
        weights = tuple(
            (place, self.tensors[name].element_type, self.tensors[name].dims)
            for place, name in enumerate(node.takes)
            if name in self.tensors
        )
        inner = tuple((name, self._shape(graph)) for name, graph in node.graphs)
        return self._number(
            (node.operator, node.overload, len(node.takes), len(node.gives), node.traits, weights, inner)
        )

    def _shape(self, graph: FlowGraph) -> int:
        """A number that graphs of equal nodes share."""
        return self._number(tuple(self._kind(node) for node in graph.nodes))

    def _number(self, key: object) -> int:
        return self._kinds.setdefault(key, len(self._kinds))

    def _alike(self, kinds: Sequence[int], base: int, one: int, other: int, period: int, first: bool) -> bool:
        """Whether two blocks that follow one another are equal. The first block of all takes from what is before it
        what it likes."""
        return all(
            kinds[one + step] == kinds[other + step]
            and self._hang_alike(base + one, base + other, step, first)
            for step in range(period)
        )  # fmt: skip

    def _hang_alike(self, one: int, other: int, step: int, first: bool) -> bool:
        taken, others = self._sources(one + step), self._sources(other + step)
        if len(taken) != len(others):
            return False
        for (name, maker, slot), (other_name, other_maker, other_slot) in zip(taken, others, strict=True):
            if name == other_name or (first and (maker is None or maker < one)):
                continue
            if (
                maker is None
                or other_maker is None
                or (other_maker - other, other_slot) != (maker - one, slot)
            ):
                return False
        return True

    def _sources(self, place: int) -> list[tuple[str, int | None, int]]:
        """Each value that the node there takes: its name, the place of its maker, and which of the maker's it is."""
        found: list[tuple[str, int | None, int]] = []
        for name in self.flows(self.node(place)):
            maker = self._makers.get(name)
            slot = 0 if maker is None else self.node(maker).gives.index(name)
            found.append((name, maker, slot))
        return found

    # --- stages

    def _stages(self, start: int, end: int, fold: bool, depth: int, seen: set[str]) -> tuple[Stage, ...]:
        """Those of the nodes from ``start`` to ``end``; ``seen`` are weights that were taken before, and grows."""
        repeats: list[Repeat] = []
        if fold and depth < DEPTH_MAX:
            kinds = [self._kind(self.node(place)) for place in range(start, end)]
            crossing = self._crossing[start : end + 1]
            repeats = find_repeats(kinds, lambda *two: self._alike(kinds, start, *two), crossing)
        stages: list[Stage] = []
        place = start
        for repeat in [*repeats, Repeat(end - start, 1, 0)]:
            stages += [
                self._stage(each, each + 1, 1, (), seen) for each in range(place, start + repeat.start)
            ]
            if repeat.times:
                first = start + repeat.start
                inner = self._stages(first, first + repeat.period, fold, depth + 1, set(seen))
                stages.append(self._stage(first, start + repeat.end, repeat.times, inner, seen))
            place = start + repeat.end
        return tuple(stages)

    def _stage(
        self,
        start: int,
        end: int,
        count: int,
        inner: tuple[Stage, ...],
        seen: set[str],
        *,
        passed: bool = False,
    ) -> Stage:
        one = range(start, start + (end - start) // count)
        takes: dict[str, None] = {}
        used: dict[str, None] = {}
        problems: list[str] = []
        for place in range(start, end):
            node = self.node(place)
            takes.update(
                (name, None) for name in self.flows(node) if not start <= self._makers.get(name, -1) < end
            )
            used.update((name, None) for name in self.weights(node))
            problems += self._problems(place)
        fresh = [name for name in used if name not in seen]
        seen.update(fresh)
        first = {name for place in one for name in self.weights(self.node(place))}
        return Stage(
            nodes=tuple(self.order[place] for place in one),
            count=count,
            inner=inner,
            passed=passed,
            takes=tuple(takes),
            gives=tuple(self._given(start, end)),
            weights=tuple(name for name in fresh if name in first),
            again=tuple(name for name in used if name in first and name not in fresh),
            weight_bytes=sum(tensor_bytes(self.tensors[name]) for name in fresh),
            problems=tuple(problems),
        )

    def _given(self, start: int, end: int) -> Iterator[str]:
        for place in range(start, end):
            for name in dict.fromkeys(self.node(place).gives):
                if self._makers.get(name) == place and self._last_uses.get(name, -1) >= end:
                    yield name

    def block(self, stage: Stage) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the first block of a stage takes from before it, and what it gives to what comes after it."""
        one = self._places_of(stage)
        takes = {
            name: None
            for place in one
            for name in self.flows(self.node(place))
            if self._makers.get(name, -1) not in one
        }
        return tuple(takes), tuple(self._given(one.start, one.stop))

    def _places_of(self, stage: Stage) -> range:
        """The first block's, in the order."""
        start = bisect_left(self.order, stage.nodes[0])
        return range(start, start + len(stage.nodes))

    def shortened(self, stages: Sequence[Stage], head: int, tail: int) -> tuple[Stage, ...]:
        """At most so many at the beginning and at the end, and one for what lies between them."""
        if len(stages) <= head + tail + 1:
            return tuple(stages)
        start, end = self._places_of(stages[head]).start, self._places_of(stages[-tail]).start
        seen = {name for place in range(start) for name in self.weights(self.node(place))}
        between = self._stage(start, end, 1, (), seen, passed=True)
        return (*stages[:head], between, *stages[-tail:])

    def operators(self, stage: Stage) -> Counter[OperatorKey]:
        """The operators of one block."""
        return Counter(self.graph.nodes[number].operator for number in stage.nodes)


def _visible_tensors(graph: FlowGraph, scope: Scope, constants: bool) -> dict[str, GraphTensor]:
    """The graph's own, and what it uses of those around it."""
    own = dict(graph.tensors)
    if not constants:
        for node in graph.nodes:
            if node.is_constant and node.gives:
                own.setdefault(node.gives[0], node.tensors[0] if node.tensors else UNTYPED)
    around = {name: scope.tensors[name] for name in graph.captured if name in scope.tensors}
    return {**around, **own}
