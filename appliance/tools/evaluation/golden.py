"""Make a golden set from what a version answers now: to make it is to say that these answers are right. Or give one
that is there other tolerances or another promise: what is right stays then as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Final, NamedTuple

from appliance.domain.errors import ArtefactError
from appliance.domain.golden import (
    CASES_MAX,
    EXACT,
    SET_FILE,
    GoldenCase,
    GoldenSet,
    TensorFile,
    Tolerance,
    misfits,
    read_golden,
    read_tensors,
    write_golden,
)
from appliance.domain.manifest import LatencyPromise
from appliance.domain.model import ModelVersion
from appliance.domain.quantity import counted
from appliance.domain.tensor import FLOATS
from appliance.store.full_disk import reason_of
from appliance.tools.evaluation.inputs import (
    Inputs,
    golden_inputs,
    random_inputs,
    random_values,
    rows_of,
    with_rows,
)
from appliance.tools.evaluation.jobs import GoldenJob, GoldenMade, Progress, Speed
from appliance.tools.evaluation.runner import Runner

NS_PER_US: Final = 1_000


class _Case(NamedTuple):
    name: str
    inputs: Inputs


def make_golden(job: GoldenJob, runner: Runner, progress: Progress) -> GoldenMade:
    """Answer every case, or keep what is there; measure the promise, write. Raises ArtefactError and what runs
    raise."""
    version = runner.version
    golden, data = _kept(job, version) if job.keep else _made(job, runner, progress)
    promise, measured = _promise(job, runner, progress)
    golden = replace(golden, promise=promise or golden.promise, file=job.file)
    wrong = misfits(golden, version.inputs, version.outputs, version.max_batch_size)
    if wrong:
        raise ArtefactError("; ".join(wrong))
    try:
        write_golden(job.folder, golden, data)
    except OSError as error:
        raise ArtefactError(
            f"the golden set cannot be written into {job.folder}: {reason_of(error, job.folder)}"
        ) from error
    path = f"{job.folder}/{SET_FILE.rpartition('/')[2]}"
    count = len(golden.cases)
    return GoldenMade(
        path=path,
        cases=count,
        kept=count if job.keep else 0,
        tensors_bytes=len(data),
        promise=promise,
        measured=measured,
    )


def _made(job: GoldenJob, runner: Runner, progress: Progress) -> tuple[GoldenSet, bytes]:
    """Answer every case twice: an answer that is not the same again has no place in a golden set."""
    total = _count(job)
    file = TensorFile()
    made = []
    for number, case in enumerate(_cases(job, runner.version)):
        progress(number, total, f"case {case.name}")
        with random_values() if number >= total - job.random else nullcontext():
            made.append(_answered(case, runner, file))
    golden = GoldenSet(
        cases=tuple(made),
        tolerances=_tolerances(job, runner.version),
        note=f"random values of seed {job.seed}" if job.random else "given inputs",
    )
    return golden, file.data()


def _kept(job: GoldenJob, version: ModelVersion) -> tuple[GoldenSet, bytes]:
    """What is there, with the tolerances that are given."""
    golden = read_golden(job.keep)
    _check_known(job, version)
    told = replace(golden, tolerances={**golden.tolerances, **job.tolerances})
    return told, bytes(read_tensors(job.keep, golden))


def _count(job: GoldenJob) -> int:
    """Cases there will be. Raises ArtefactError when they are more than a set holds."""
    count = job.random + (len(read_golden(job.cases).cases) if job.cases else 0)
    if count > CASES_MAX:
        raise ArtefactError(f"a golden set holds at most {CASES_MAX:,} cases; {count:,} are asked for")
    return count


def _cases(job: GoldenJob, version: ModelVersion) -> Iterator[_Case]:
    if there := job.keep or job.cases:
        given = read_golden(there)
        tensors = read_tensors(there, given)
        for case in given.cases:
            yield _Case(case.name, golden_inputs(tensors, case))
    for number in range(job.random):
        inputs = random_inputs(version, job.rows, job.shapes, job.seed + number)
        yield _Case(f"random-{job.seed + number}", inputs)


def _answered(case: _Case, runner: Runner, file: TensorFile) -> GoldenCase:
    answers, again = runner.answer(case.inputs), runner.answer(case.inputs)
    for spec, one, other in zip(runner.version.outputs, answers, again, strict=True):
        if one != other:
            raise ArtefactError(
                f"case '{case.name}': output '{spec.name}' is not the same twice; such a model has no golden set"
            )
    return GoldenCase(
        name=case.name,
        inputs=tuple(
            file.add(name, tensor.datatype, tensor.shape, tensor.raw) for name, tensor in case.inputs.items()
        ),
        outputs=tuple(
            file.add(spec.name, spec.datatype, answer.shape, answer.raw)
            for spec, answer in zip(runner.version.outputs, answers, strict=True)
        ),
    )


def _tolerances(job: GoldenJob, version: ModelVersion) -> Mapping[str, Tolerance]:
    """Numbers are held to the default unless told otherwise; all else is exact."""
    _check_known(job, version)
    return {
        spec.name: job.tolerances.get(spec.name, job.default if spec.datatype in FLOATS else EXACT)
        for spec in version.outputs
    }


def _check_known(job: GoldenJob, version: ModelVersion) -> None:
    unknown = set(job.tolerances) - {spec.name for spec in version.outputs}
    if unknown:
        raise ArtefactError(f"the model has no output '{min(unknown)}' to give a tolerance to")


def _promise(
    job: GoldenJob, runner: Runner, progress: Progress
) -> tuple[LatencyPromise | None, Speed | None]:
    """Measured on the first case."""
    if job.promise is None:
        return None, None
    progress(0, 1, f"measuring {counted(job.promise.rows, 'row')}")
    first = next(_cases(job, runner.version))
    asked = with_rows(runner.version, first.inputs, job.promise.rows)
    measured = runner.measure(asked, job.budget_ms * 1_000_000)
    if job.promise.p99_us:
        return job.promise, measured
    p99_us = -(-measured.p99_ns * job.margin_percent // (100 * NS_PER_US))
    rows = rows_of(runner.version, asked)
    return LatencyPromise(rows=rows, p99_us=max(p99_us, 1)), measured
