"""How the tensors of a plan lie in a slot, what the worker is told of them, and how much room the outputs will take.

Requests come with the same plan again and again; what follows from the plan alone is worked out once. Where the graph
leaves the outputs open, their room is learned from answers: per shape of the request, and where strings make requests
of one shape differ, per magnitude of its bytes. What one answer took is not believed for good: ``most`` rises at once
and sinks with each smaller answer, ``least`` sinks at once and rises with each larger one. A shape that is new is
expected to take what the one before it took, in relation to the bytes of its inputs. Owner: the engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from appliance.domain.inference import RequestPlan
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.workers.arena import aligned
from appliance.workers.port import Shape

UNKNOWN: Final = -1
FIRST_GUESS_BYTES: Final = 1024
"""Per row of an output whose size the graph leaves free, until one was seen."""
KEPT: Final = 256
"""Shapes (and magnitudes) per version of which is known what they take; the one unused for longest goes first."""
SINKS_BY: Final = 8
"""A smaller answer takes ``most`` down by this part of it."""


def row_bytes(spec: TensorSpec) -> int:
    """Bytes of one row (of everything, when the model is not batchable) of an output, UNKNOWN when not fixed."""
    if spec.datatype is Datatype.BYTES or any(dimension < 0 for dimension in spec.shape):
        return UNKNOWN
    size = spec.datatype.size
    for dimension in spec.shape:
        size *= dimension
    return size


class Expectation:
    """What is expected of one shape: bytes of a row, by output. ``inputs`` are those of a row of its inputs."""

    __slots__ = ("_answered", "inputs", "least", "most")

    def __init__(self, inputs: int, most: list[int], least: list[int]) -> None:
        self.inputs = inputs
        self.most = most
        self.least = least
        self._answered = False

    def most_span(self, wanted: Sequence[int], rows: int) -> int:
        """Bytes, with alignment, that should be enough for these outputs."""
        return _span(self.most, wanted, rows)

    def least_span(self, wanted: Sequence[int], rows: int) -> int:
        """Bytes, with alignment, below which there is no use in trying: what all answers took lately."""
        return _span(self.least, wanted, rows)

    def learn(self, wanted: Sequence[int], rows: int, sizes: Sequence[int]) -> None:
        """The outputs of an answer took ``sizes`` bytes."""
        most, least = self.most, self.least
        for position, size in zip(wanted, sizes, strict=True):
            took = -(-size // (rows or 1))
            sunk = most[position] - most[position] // SINKS_BY if self._answered else 0
            most[position] = max(took, sunk)
            least[position] = min(took, 2 * least[position] + FIRST_GUESS_BYTES)
        self._answered = True


class Expectations:
    """What is expected of one version, whose outputs the graph does not all fix."""

    def __init__(self, model: ModelVersion) -> None:
        self._fixed = tuple(row_bytes(spec) for spec in model.outputs)
        self._known: OrderedDict[tuple[object, int], Expectation] = OrderedDict()
        self._newest: Expectation | None = None

    def of(self, plan: RequestPlan, nbytes: int) -> Expectation:
        """That of requests of ``plan`` whose inputs have ``nbytes`` bytes."""
        inputs = nbytes // (plan.rows or 1)
        key = (plan.merge_shape, inputs.bit_length())
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        if len(self._known) >= KEPT:
            self._known.popitem(last=False)
        known = self._known[key] = self._newest = self._guess(inputs)
        return known

    def _guess(self, inputs: int) -> Expectation:
        least = [FIRST_GUESS_BYTES if size == UNKNOWN else size for size in self._fixed]
        most, before = list(least), self._newest
        if before is not None:
            for position, size in enumerate(self._fixed):
                if size == UNKNOWN:
                    most[position] = max(
                        before.most[position] * inputs // (before.inputs or 1), least[position]
                    )
        return Expectation(inputs, most, least)


def _span(row: Sequence[int], wanted: Sequence[int], rows: int) -> int:
    return sum(aligned(row[position] * (rows or 1)) for position in wanted)


LAYOUTS_KEPT = 256
"""Plans per version whose layout is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``shapes`` and ``sizes`` are per model input (``sizes`` empty when BYTES make them vary); ``wanted`` are the
    output positions to compute, ascending; ``input_span`` and ``output_span`` are bytes with alignment, UNKNOWN when
    they depend on the data. ``merging`` tells whether such requests may share a batch. ``expectation`` is there when
    nothing but the data leaves ``output_span`` open."""

    plan: RequestPlan
    shapes: tuple[Shape | None, ...]
    sizes: tuple[int, ...]
    input_span: int
    wanted: tuple[int, ...]
    output_span: int
    merging: bool
    expectation: Expectation | None


def layout_of(plan: RequestPlan, expectations: Expectations, *, merging: bool) -> Layout:
    """What follows from ``plan``, for a version whose requests may share a batch or not, and what answers to it took so
    far."""
    fixed = all(planned.nbytes >= 0 for planned in plan.inputs)
    sizes = tuple(planned.nbytes for planned in plan.inputs) if fixed else ()
    output_span = _output_span(plan)
    return Layout(
        plan=plan,
        shapes=tuple(planned.shape if planned.source >= 0 else None for planned in plan.inputs),
        sizes=sizes,
        input_span=sum(map(aligned, sizes)) if fixed else UNKNOWN,
        wanted=tuple(sorted(planned.position for planned in plan.outputs)),
        output_span=output_span,
        merging=merging,
        expectation=expectations.of(plan, sum(sizes)) if fixed and output_span == UNKNOWN else None,
    )


def merges(model: ModelVersion) -> bool:
    """Whether requests of ``model`` may share a batch."""
    return model.batching is not None and model.max_batch_size > 0


def _output_span(plan: RequestPlan) -> int:
    rows = [row_bytes(plan.model.outputs[planned.position]) for planned in plan.outputs]
    return UNKNOWN if UNKNOWN in rows else sum(aligned(size * plan.rows) for size in rows)
