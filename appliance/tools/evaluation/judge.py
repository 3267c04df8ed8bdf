"""What answers are worth beside the golden ones: how far off, how much of what is allowed, the same best class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.domain.golden import GoldenCase, GoldenSet, Tolerance, tensor_data
from appliance.domain.model import ModelVersion
from appliance.domain.output_difference import Difference, Values
from appliance.domain.tensor import FLOATS, element_count, numbers
from appliance.runtimes.arrays import numpy_difference, strain
from appliance.tools.evaluation.inputs import golden_inputs
from appliance.tools.evaluation.jobs import OutputAccuracy
from appliance.tools.evaluation.runner import Answer, Runner

NO_TOLERANCES: Final[Mapping[str, Tolerance]] = MappingProxyType({})


class Judge:
    """Compares answers with the golden ones, over all cases; ``tolerances`` go before the set's, ``classes`` are the
    outputs whose best class counts."""

    def __init__(
        self,
        golden: GoldenSet,
        tensors: memoryview,
        *,
        tolerances: Mapping[str, Tolerance] = NO_TOLERANCES,
        classes: Sequence[str] = (),
    ) -> None:
        self._golden = golden
        self._tensors = tensors
        self._tolerances = tolerances
        self._classes = classes

    def accuracy(self, runner: Runner, going_on: Callable[[], None]) -> tuple[OutputAccuracy, ...]:
        """What each output of the version is worth. Raises what runs raise."""
        worth: dict[str, OutputAccuracy] = {}
        for case in self._golden.cases:
            going_on()
            answers = runner.answer(golden_inputs(self._tensors, case))
            for name, accuracy in self._case(case, runner.version, answers):
                worth[name] = accuracy if name not in worth else _sum(worth[name], accuracy)
        return tuple(worth.values())

    def _case(
        self, case: GoldenCase, version: ModelVersion, answers: Sequence[Answer]
    ) -> Iterator[tuple[str, OutputAccuracy]]:
        given = dict(zip((spec.name for spec in version.outputs), answers, strict=True))
        datatypes = {spec.name: spec.datatype for spec in version.outputs}
        for right in case.outputs:
            answer = given[right.name]
            found = Values(datatype=datatypes[right.name], shape=answer.shape, raw=answer.raw)
            wanted = Values(datatype=right.datatype, shape=right.shape, raw=tensor_data(self._tensors, right))
            tolerance = self._tolerance(right.name)
            told = numpy_difference(found, wanted, tolerance)
            same, tops = _same_tops(found, wanted) if right.name in self._classes else (0, 0)
            accuracy = _accuracy(right.name, case.name, told, strain(found, wanted, tolerance))
            yield right.name, replace(accuracy, same_top=same, tops=tops)

    def _tolerance(self, output: str) -> Tolerance:
        return self._tolerances.get(output, self._golden.tolerance(output))


def _accuracy(output: str, case: str, told: Difference, strained: float) -> OutputAccuracy:
    return OutputAccuracy(
        output=output,
        values=told.values,
        outside=told.outside,
        absolute=told.absolute,
        relative=told.relative,
        strain=strained,
        reason=f"case '{case}' {told.reason}" if told.reason else "",
    )


def _sum(one: OutputAccuracy, other: OutputAccuracy) -> OutputAccuracy:
    return OutputAccuracy(
        output=one.output,
        values=one.values + other.values,
        outside=one.outside + other.outside,
        absolute=max(one.absolute, other.absolute),
        relative=max(one.relative, other.relative),
        same_top=one.same_top + other.same_top,
        tops=one.tops + other.tops,
        strain=max(one.strain, other.strain),
        reason=_worse(one, other).reason,
    )


def _worse(one: OutputAccuracy, other: OutputAccuracy) -> OutputAccuracy:
    """The one that left its tolerance furthest, the first of two alike."""
    if not one.reason or not other.reason:
        return one if one.reason else other
    return other if other.strain > one.strain else one


def _same_tops(found: Values, right: Values) -> tuple[int, int]:
    """Rows whose best class (along the last dimension) is the same, and rows."""
    if right.datatype not in FLOATS or not right.shape or not right.shape[-1] or found.shape != right.shape:
        return 0, 0
    one, other = (_rows(each) for each in (found, right))
    return int((one.argmax(axis=1) == other.argmax(axis=1)).sum()), len(other)


def _rows(values: Values) -> NDArray[np.float64]:
    flat = numbers(values.raw, values.datatype, element_count(values.shape))
    return np.asarray(flat, np.float64).reshape(-1, values.shape[-1])
