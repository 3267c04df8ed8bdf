"""What a freshly loaded version is run with before it may serve: its warm-ups, its golden set, or, for a packed form
without one, what the version itself answers.

A failed warm-up or a wrong answer refuses the version. Everything is bounded; what hangs is the load's time-out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from appliance.domain.assessment import Deviation
from appliance.domain.errors import ApplianceError, AssessmentFailed, LoadFailed, RunFailed
from appliance.domain.free_sizes import FreeSizes, largest, sizes_of
from appliance.domain.golden import (
    GoldenCase,
    GoldenSet,
    GoldenTensor,
    Tolerance,
    misfits,
    read_golden,
    read_tensors,
    tensor_data,
)
from appliance.domain.model import ModelVersion, Warmup, WarmupInput
from appliance.domain.output_difference import Values
from appliance.domain.regular_file import read_file
from appliance.domain.tensor import Datatype, byte_size, element_count
from appliance.runtimes.arrays import numpy_difference, random_tensor
from appliance.runtimes.runtime import Feed, Place, Produced, Region
from appliance.workers.child.execution import LoadedModel, check_rows, reason_of
from appliance.workers.child.tensors import Tensor, fixed_shapes, lay_out
from appliance.workers.port import Shape

WARMUP_BYTES_MAX: Final = 1 << 30
COMPARED_ROWS: Final = 3
NEARLY: Final = Tolerance(absolute=1e-4, relative=1e-3)


def run_nowhere(
    model: LoadedModel, region: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...] | None = None
) -> Produced:
    """Run a request, for all outputs where it is not said which are ``wanted``, with no place to put them."""
    outputs = tuple(range(len(model.version.outputs))) if wanted is None else wanted
    return model.session.run(region, feeds, outputs, Place(region, 0, 0))


# --- warm-ups


def run_warmups(model: LoadedModel) -> None:
    """Run the version's warm-up requests; raises LoadFailed naming the first that fails."""
    for warmup in model.version.warmups:
        try:
            _run_warmup(model, warmup)
        except Exception as problem:
            raise LoadFailed(
                f"{model.version.key}: warm-up '{warmup.name}' failed: {reason_of(problem)}"
            ) from problem


def _run_warmup(model: LoadedModel, warmup: Warmup) -> None:
    """Run one warm-up as often as it asks."""
    version = model.version
    batchable = version.max_batch_size > 0
    rows = max(warmup.batch_size, 1)
    given = {each.spec.name: _warmup_tensor(version, each, rows) for each in warmup.inputs}
    region, feeds = lay_out([given.get(spec.name) for spec in version.inputs])
    for _ in range(max(warmup.count, 1)):
        produced = run_nowhere(model, region, feeds)
        if batchable:
            check_rows(version, range(len(version.outputs)), produced.shapes, rows)


def _warmup_tensor(version: ModelVersion, warmup: WarmupInput, rows: int) -> Tensor:
    spec = warmup.spec
    shape = (rows, *spec.shape) if version.max_batch_size > 0 else spec.shape
    if warmup.file:
        return Tensor(shape, _file_tensor(version, warmup, rows, shape))
    if warmup.random:
        return Tensor(shape, random_tensor(spec.datatype, element_count(shape)))
    return Tensor(shape, bytes(element_count(shape) * (spec.datatype.size or 4)))


def _file_tensor(version: ModelVersion, warmup: WarmupInput, rows: int, shape: Shape) -> bytes:
    """The file's raw tensor; one row's worth is repeated for every row."""
    name, digest = os.path.basename(warmup.file), version.digests.get(warmup.file, "")
    raw = read_file(warmup.file, WARMUP_BYTES_MAX, digest, name)
    if warmup.spec.datatype is Datatype.BYTES:
        return raw
    wanted = byte_size(warmup.spec.datatype, shape)
    if len(raw) * rows == wanted:
        return raw * rows
    if len(raw) != wanted:
        raise LoadFailed(f"{warmup.file} has {len(raw)} bytes, shape {list(shape)} needs {wanted}")
    return raw


# --- golden sets, and answers of another session


class Golden(NamedTuple):
    """A golden set and the bytes of its tensors."""

    set: GoldenSet
    tensors: memoryview

    def inputs_of(self, case: GoldenCase, version: ModelVersion) -> list[Tensor | None]:
        """The inputs of a case in the order of the version's, None for one that is left out."""
        given = {tensor.name: tensor for tensor in case.inputs}
        return [self._tensor(given.get(spec.name)) for spec in version.inputs]

    def _tensor(self, tensor: GoldenTensor | None) -> Tensor | None:
        return None if tensor is None else Tensor(tensor.shape, tensor_data(self.tensors, tensor))


def open_golden(version: ModelVersion) -> Golden | None:
    """The golden set of the version, None when it has none. Raises LoadFailed when it cannot be used."""
    if not version.golden:
        return None
    try:
        golden = read_golden(version.golden, version.digests.get(version.golden, ""))
        found = misfits(golden, version.inputs, version.outputs, version.max_batch_size)
        if found:
            raise LoadFailed("; ".join(found))
        return Golden(golden, read_tensors(version.golden, golden))
    except ApplianceError as problem:
        raise LoadFailed(f"{version.key}: the golden set cannot be used: {problem}") from problem


def golden_sizes(version: ModelVersion, golden: Golden | None) -> FreeSizes:
    """How large the free dimensions of the inputs of its golden set are: an engine has to take those, too."""
    found: FreeSizes = {}
    batch = 1 if version.max_batch_size > 0 else 0
    for case in () if golden is None else golden.set.cases:
        shapes = {tensor.name: tensor.shape[batch:] for tensor in case.inputs}
        found = largest(found, sizes_of(version.inputs, [shapes.get(spec.name) for spec in version.inputs]))
    return found


def run_golden(model: LoadedModel, golden: Golden) -> tuple[Deviation, ...]:
    """Run every case; gives how far off each output was at most. Raises AssessmentFailed naming the first case that
    fails, the output, and how far off it is."""
    worst: dict[str, Deviation] = {}
    for case in golden.set.cases:
        try:
            found = _run_case(model, golden, case)
        except ApplianceError as problem:
            raise AssessmentFailed(f"{model.version.key}: golden case '{case.name}': {problem}") from problem
        for output, absolute, relative in found:
            before = worst.get(output, Deviation(output, 0.0, 0.0))
            worst[output] = Deviation(output, max(before.absolute, absolute), max(before.relative, relative))
    return tuple(worst.values())


def check_provable(version: ModelVersion, golden: Golden | None) -> None:
    """Raise LoadFailed where nothing says which answers are right: there is no golden set, and no request that can be
    made up."""
    if fixed_shapes(version) is None and not (golden is not None and golden.set.cases):
        raise LoadFailed(
            f"{version.key}: nothing says which answers are right: its inputs have free dimensions; "
            f"give it a golden set"
        )


def compare_answers(model: LoadedModel, reference: LoadedModel) -> None:
    """Raise LoadFailed unless the model answers requests of seeded values nearly as the reference does."""
    version = model.version
    check_provable(version, None)
    for rows in sorted({1, min(max(version.max_batch_size, 1), COMPARED_ROWS)}):
        tensors = [
            None if shape is None else Tensor(shape, random_tensor(spec.datatype, element_count(shape)))
            for spec, shape in zip(version.inputs, fixed_shapes(version, rows) or (), strict=True)
        ]
        region, feeds = lay_out(tensors)
        found, right = (
            _answer_values(version, run_nowhere(each, region, feeds)) for each in (model, reference)
        )
        for spec, one, other in zip(version.outputs, found, right, strict=True):
            difference = numpy_difference(one, other, NEARLY)
            if not difference.held:
                raise LoadFailed(f"{version.key}: output '{spec.name}' {difference.reason}")


def _answer_values(version: ModelVersion, produced: Produced) -> list[Values]:
    parts: Sequence[memoryview | bytes] = produced.parts or [b""] * len(produced.shapes)
    return [
        Values(datatype=spec.datatype, shape=shape, raw=bytes(part))
        for spec, shape, part in zip(version.outputs, produced.shapes, parts, strict=True)
    ]


def _run_case(model: LoadedModel, golden: Golden, case: GoldenCase) -> Iterable[Deviation]:
    version = model.version
    region, feeds = lay_out(golden.inputs_of(case, version))
    right = {tensor.name: tensor for tensor in case.outputs}
    wanted = tuple(index for index, spec in enumerate(version.outputs) if spec.name in right)
    produced = run_nowhere(model, region, feeds, wanted)
    parts: Sequence[memoryview | bytes] = produced.parts or [b""] * len(wanted)
    found = []
    for index, shape, part in zip(wanted, produced.shapes, parts, strict=True):
        spec = version.outputs[index]
        expected = right[spec.name]
        values = Values(
            datatype=expected.datatype, shape=expected.shape, raw=tensor_data(golden.tensors, expected)
        )
        difference = numpy_difference(
            Values(datatype=spec.datatype, shape=shape, raw=part), values, golden.set.tolerance(spec.name)
        )
        if not difference.held:
            raise RunFailed(f"output '{spec.name}' {difference.reason}")
        found.append(Deviation(spec.name, difference.absolute, difference.relative))
    return found
