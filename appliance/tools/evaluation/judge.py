"""What answers are worth beside the golden ones: how far off, how much of what is allowed, the same best class."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.domain.golden import GoldenCase, GoldenSet, Tolerance, tensor_data
from appliance.domain.model import ModelVersion
from appliance.domain.output_difference import Difference, Values, form_reason
from appliance.domain.tensor import FLOATS, Datatype, element_count, numbers
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
            accuracy = _accuracy(right.name, case.name, told, tolerance)
            yield (
                right.name,
                replace(
                    accuracy,
                    same_top=same,
                    tops=tops,
                    of_limit=strain(found, wanted, tolerance),
                    off_by=_off_by(found, wanted, tolerance),
                ),
            )

    def _tolerance(self, output: str) -> Tolerance:
        return self._tolerances.get(output, self._golden.tolerance(output))


def _accuracy(output: str, case: str, told: Difference, tolerance: Tolerance) -> OutputAccuracy:
    return OutputAccuracy(
        output=output,
        values=told.values,
        outside=told.outside,
        absolute=told.absolute,
        relative=told.relative,
        allowed_absolute=tolerance.absolute,
        allowed_relative=tolerance.relative,
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
        of_limit=max(one.of_limit, other.of_limit),
        off_by=max((one.of_limit, one.off_by), (other.of_limit, other.off_by))[1],
        allowed_absolute=one.allowed_absolute,
        allowed_relative=one.allowed_relative,
        reason=_worse(one, other).reason,
    )


def _worse(one: OutputAccuracy, other: OutputAccuracy) -> OutputAccuracy:
    """The one that left its tolerance furthest, the first of two alike."""
    if not one.reason or not other.reason:
        return one if one.reason else other
    return other if other.of_limit > one.of_limit else one


def _off_by(found: Values, right: Values, tolerance: Tolerance) -> float:
    """How far the value is off that comes nearest to its limit, or left it furthest; 0 where values are equal or
    not."""
    if form_reason(found, right) is not None:
        return math.inf
    if right.datatype not in FLOATS:
        return 0.0
    one, other = _floats(found), _floats(right)
    with np.errstate(all="ignore"):
        distance = np.abs(one - other)
        distance[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
        distance[np.isnan(distance)] = np.inf
        shares = distance / (tolerance.absolute + tolerance.relative * np.abs(other))
        shares[distance == 0.0] = 0.0
        shares[~np.isfinite(distance)] = np.inf
    return float(distance[shares == shares.max(initial=0.0)].max(initial=0.0))


def _same_tops(found: Values, right: Values) -> tuple[int, int]:
    """Rows whose best class (along the last dimension) is the same, and rows."""
    if right.datatype not in FLOATS or not right.shape or not right.shape[-1] or found.shape != right.shape:
        return 0, 0
    one, other = (_rows(each) for each in (found, right))
    return int((one.argmax(axis=1) == other.argmax(axis=1)).sum()), len(other)


def _rows(values: Values) -> NDArray[np.float64]:
    return _floats(values).reshape(-1, values.shape[-1])


def _floats(values: Values) -> NDArray[np.float64]:
    if values.datatype is Datatype.BF16:
        return np.asarray(numbers(values.raw, values.datatype, element_count(values.shape)), np.float64)
    return np.frombuffer(values.raw, f"<{values.datatype.code}").astype(np.float64)
