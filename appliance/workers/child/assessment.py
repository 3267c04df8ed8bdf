"""What a freshly loaded version proves before it may serve: its golden set, then how long its runs take.

A wrong answer refuses the version. How slow it is only gets told, with the promise that was broken: whether that
matters on a busy box is the engine's decision. Everything is bounded in runs and in time; what hangs is the load's
time-out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from appliance.domain.errors import ApplianceError, AssessmentFailed, LoadFailed, RunFailed
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
from appliance.domain.manifest import LatencyPromise
from appliance.domain.model import ModelVersion
from appliance.domain.output_difference import Values
from appliance.domain.tensor import Datatype, aligned, element_count, encode_bytes, split_bytes
from appliance.runtimes.numpy_difference import numpy_difference
from appliance.runtimes.runtime import Feed, Place, Produced, Region
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.stopwatch import Stopwatch
from appliance.workers.child.warmup import Passes, fixed_shapes, random_tensor, sizes_of
from appliance.workers.port import Assessment, Deviation, Shape
from appliance.workers.region import Scratch

RUNS_MAX: Final = 200
RUNS_MIN: Final = 5
WARM_RUNS: Final = 2
PROMISE_BUDGET_NS: Final = 1_000_000_000
BUDGET_NS: Final = 50_000_000
"""Where nothing is promised: what runs at full speed is felt by all that shares the processors."""
PASSES_MIN: Final = 3
"""So many passes of one row are enough to be held against the version before."""
COMPARED_ROWS: Final = 3
NEARLY: Final = Tolerance(absolute=1e-4, relative=1e-3)


class _Tensor(NamedTuple):
    shape: Shape
    raw: memoryview | bytes


class Golden(NamedTuple):
    """A golden set and the bytes of its tensors."""

    set: GoldenSet
    tensors: memoryview


def open_golden(version: ModelVersion) -> Golden | None:
    """The golden set of the version, None when it has none. Raises LoadFailed when it cannot be used."""
    if not version.golden:
        return None
    try:
        golden = read_golden(version.golden)
        found = misfits(golden, version.inputs, version.outputs, version.max_batch_size)
        if found:
            raise LoadFailed("; ".join(found))
        return Golden(golden, read_tensors(version.golden, golden))
    except ApplianceError as problem:
        raise LoadFailed(f"{version.key}: the golden set cannot be used: {problem}") from problem


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


def compare_answers(model: LoadedModel, reference: LoadedModel) -> None:
    """Raise LoadFailed unless the model answers requests of seeded values nearly as the reference does."""
    version = model.version
    shapes = fixed_shapes(version)
    if shapes is None:
        raise LoadFailed(
            f"{version.key}: nothing says which answers are right: its inputs have free dimensions; "
            f"give it a golden set"
        )
    wanted = tuple(range(len(version.outputs)))
    for rows in sorted({1, min(max(version.max_batch_size, 1), COMPARED_ROWS)}):
        tensors = [
            _seeded(spec.datatype, shape, rows) for spec, shape in zip(version.inputs, shapes, strict=True)
        ]
        region, feeds = _lay_out(tensors)
        answers = [
            each.session.run(region, feeds, wanted, Place(region, 0, 0)) for each in (model, reference)
        ]
        found, right = (_answer_values(version, each) for each in answers)
        for spec, one, other in zip(version.outputs, found, right, strict=True):
            difference = numpy_difference(one, other, NEARLY)
            if not difference.held:
                raise LoadFailed(f"{version.key}: output '{spec.name}' {difference.reason}")


def _seeded(datatype: Datatype, shape: Shape | None, rows: int) -> _Tensor | None:
    if shape is None:
        return None
    whole = (rows, *shape[1:]) if rows > 1 else shape
    return _Tensor(whole, random_tensor(datatype, element_count(whole)))


def _answer_values(version: ModelVersion, produced: Produced) -> list[Values]:
    parts: Sequence[memoryview | bytes] = produced.parts or [b""] * len(produced.shapes)
    return [
        Values(datatype=spec.datatype, shape=shape, raw=bytes(part))
        for spec, shape, part in zip(version.outputs, produced.shapes, parts, strict=True)
    ]


def assess(
    model: LoadedModel, golden: Golden | None, worst: tuple[Deviation, ...], passes: Sequence[Passes]
) -> Assessment:
    """How fast a version is whose golden set was run: by ``passes`` of one row that were measured already, where they
    are PASSES_MIN and nothing else is promised; else by RUNS_MIN to RUNS_MAX runs of its own on the calling thread,
    within PROMISE_BUDGET_NS where its golden set promises a latency, else BUDGET_NS."""
    cases = 0 if golden is None else len(golden.set.cases)
    promise = None if golden is None else golden.set.promise
    single = next((each.taken for each in passes if each.rows == 1), ())
    if promise is None and len(single) >= PASSES_MIN:
        return _assessment(cases, worst, 1, sorted(single), None)
    rows, tensors = _request(model.version, golden, 1 if promise is None else promise.rows)
    if tensors is None or not model.session.measurable:
        return Assessment(cases, worst, 0, 0, 0, 0, "")
    taken = _measure(model, tensors, BUDGET_NS if promise is None else PROMISE_BUDGET_NS)
    return _assessment(cases, worst, rows, taken, promise)


def _assessment(
    cases: int, worst: tuple[Deviation, ...], rows: int, taken: Sequence[int], promise: LatencyPromise | None
) -> Assessment:
    """``taken``: nanoseconds, sorted."""
    p50, p99 = taken[(len(taken) - 1) // 2], taken[-(-len(taken) * 99 // 100) - 1]
    return Assessment(cases, worst, rows, len(taken), p50, p99, _broken(promise, rows, p99))


def _broken(promise: LatencyPromise | None, rows: int, p99_ns: int) -> str:
    if promise is None or rows != promise.rows or p99_ns <= promise.p99_us * 1000:
        return ""
    return f"99 of 100 runs of {rows} rows take up to {p99_ns // 1000} us; {promise.p99_us} us are promised"


def _run_case(model: LoadedModel, golden: Golden, case: GoldenCase) -> Iterable[Deviation]:
    version = model.version
    given = {tensor.name: tensor for tensor in case.inputs}
    tensors = [_golden_tensor(golden, given.get(spec.name)) for spec in version.inputs]
    right = {tensor.name: tensor for tensor in case.outputs}
    wanted = tuple(index for index, spec in enumerate(version.outputs) if spec.name in right)
    region, feeds = _lay_out(tensors)
    produced = model.session.run(region, feeds, wanted, Place(region, 0, 0))
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


def _golden_tensor(golden: Golden, tensor: GoldenTensor | None) -> _Tensor | None:
    return None if tensor is None else _Tensor(tensor.shape, tensor_data(golden.tensors, tensor))


def _lay_out(tensors: Sequence[_Tensor | None]) -> tuple[Region, tuple[Feed | None, ...]]:
    """The tensors in memory of their own, one after the other."""
    region = Scratch().at_least(sum(aligned(len(each.raw)) for each in tensors if each is not None))
    feeds: list[Feed | None] = []
    position = 0
    for each in tensors:
        if each is None:
            feeds.append(None)
            continue
        region.view[position : position + len(each.raw)] = each.raw
        feeds.append(Feed(each.shape, position, len(each.raw)))
        position += aligned(len(each.raw))
    return region, tuple(feeds)


def _request(
    version: ModelVersion, golden: Golden | None, rows: int
) -> tuple[int, list[_Tensor | None] | None]:
    """A request of ``rows`` rows, or of one where there is no batching: the first golden case, its rows repeated, or
    zeros. None when neither can be had."""
    if golden is None or not golden.set.cases:
        shapes = fixed_shapes(version)
        if shapes is None:
            return 0, None
        rows = rows if version.max_batch_size > 0 else 1
        if version.max_batch_size > 0:
            shapes = tuple(None if shape is None else (rows, *shape[1:]) for shape in shapes)
        zeros = zip(shapes, sizes_of(version, shapes), strict=True)
        return rows, [None if shape is None else _Tensor(shape, bytes(size)) for shape, size in zeros]
    case = golden.set.cases[0]
    given = {tensor.name: tensor for tensor in case.inputs}
    tensors = [_golden_tensor(golden, given.get(spec.name)) for spec in version.inputs]
    if version.max_batch_size == 0:
        return 1, tensors
    there = case.outputs[0].shape[0]
    return rows, [
        None if each is None else _repeated(each, spec.datatype, there, rows)
        for spec, each in zip(version.inputs, tensors, strict=True)
    ]


def _repeated(tensor: _Tensor, datatype: Datatype, there: int, rows: int) -> _Tensor:
    """The tensor of ``there`` rows with so many ``rows``: its own, again and again."""
    times = -(-rows // there)
    if datatype is Datatype.BYTES:
        texts = [bytes(each) for each in split_bytes(memoryview(tensor.raw))]
        raw = encode_bytes((texts * times)[: len(texts) // there * rows])
    else:
        raw = (bytes(tensor.raw) * times)[: len(tensor.raw) // there * rows]
    return _Tensor((rows, *tensor.shape[1:]), raw)


def _room_for(produced: Produced) -> Place:
    """Memory of its own that such outputs fit into."""
    nbytes = sum(map(aligned, produced.sizes))
    return Place(Scratch().at_least(nbytes), 0, nbytes)


def _measure(model: LoadedModel, tensors: Sequence[_Tensor | None], budget_ns: int) -> list[int]:
    """Nanoseconds of runs, sorted; at least one. The first shows how much room the others have to be given, as a
    request has it."""
    region, feeds = _lay_out(tensors)
    wanted = tuple(range(len(model.version.outputs)))
    place = Place(region, 0, 0)
    taken: list[int] = []
    spent = 0
    with Stopwatch() as watch:
        for number in range(WARM_RUNS + RUNS_MAX):
            watch.start()
            produced = model.session.run(region, feeds, wanted, place)
            taken.append(watch.stop())
            spent += taken[-1]
            if not number:
                place = _room_for(produced)
            if number >= WARM_RUNS + RUNS_MIN - 1 and spent > budget_ns:
                break
    return sorted(taken[WARM_RUNS:])
