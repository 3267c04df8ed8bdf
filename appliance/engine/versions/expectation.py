"""How much room the outputs of a request will take where its graph leaves that open: learned from answers.

Learned per shape of the request, and where strings make requests of one shape differ, per magnitude of its bytes. What
one answer took is not believed for good: ``most`` rises at once and sinks with each smaller answer, ``least`` sinks at
once and rises with each larger one. A shape that is new is expected to take what the one before it took, in relation
to the bytes of its inputs. Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.domain.inference import RequestPlan
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.workers.arena import aligned

UNKNOWN: Final = -1
FIRST_GUESS_BYTES: Final = 1024
"""Per row of an output whose size the graph leaves free, until one was seen."""
KEPT: Final = 256
"""Shapes (and magnitudes) per version of which is known what they take; the one learned first goes first."""
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
        self._known: dict[tuple[object, int], Expectation] = {}
        self._newest: Expectation | None = None

    def of(self, plan: RequestPlan, nbytes: int) -> Expectation:
        """That of requests of ``plan`` whose inputs have ``nbytes`` bytes."""
        inputs = nbytes // (plan.rows or 1)
        key = (plan.merge_shape, inputs.bit_length())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= KEPT:
                del self._known[next(iter(self._known))]
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
