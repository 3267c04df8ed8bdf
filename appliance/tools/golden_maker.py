"""Makes a golden set from what a version answers now: whoever makes it says by that that these answers are right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from appliance.domain.difference import FLOATS
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
from appliance.tools.requests import Request, golden_request, random_request, rows_of, with_rows
from appliance.tools.runner import Runner
from appliance.tools.trials import GoldenMade, GoldenWish, Progress, Speed

NS_PER_US: Final = 1_000


class _Case(NamedTuple):
    name: str
    request: Request


def make_golden(wish: GoldenWish, runner: Runner, progress: Progress) -> GoldenMade:
    """Answer every case twice (an answer that is not the same again has no place in a golden set), measure the
    promise, write. Raises ArtefactError and what runs raise."""
    version = runner.version
    total = _count(wish)
    file = TensorFile()
    made = []
    for number, case in enumerate(_cases(wish, version)):
        progress(number, total, f"case {case.name}")
        made.append(_answered(case, runner, file))
    tolerances = _tolerances(wish, version)
    promise, measured = _promise(wish, runner, progress)
    golden = GoldenSet(
        cases=tuple(made),
        tolerances=tolerances,
        promise=promise,
        note=f"random values of seed {wish.seed}" if wish.random else "given inputs",
    )
    wrong = misfits(golden, version.inputs, version.outputs, version.max_batch_size)
    if wrong:
        raise ArtefactError("; ".join(wrong))
    data = file.data()
    try:
        write_golden(wish.folder, golden, data)
    except OSError as error:
        raise ArtefactError(
            f"the golden set cannot be written into {wish.folder}: {error.strerror}"
        ) from error
    path = f"{wish.folder}/{SET_FILE.rpartition('/')[2]}"
    return GoldenMade(path=path, cases=len(made), tensors_bytes=len(data), promise=promise, measured=measured)


def _count(wish: GoldenWish) -> int:
    """Cases there will be. Raises ArtefactError when they are more than a set holds."""
    count = wish.random + (len(read_golden(wish.cases).cases) if wish.cases else 0)
    if count > CASES_MAX:
        raise ArtefactError(f"a golden set holds at most {CASES_MAX:,} cases; {count:,} are asked for")
    return count


def _cases(wish: GoldenWish, version: ModelVersion) -> Iterator[_Case]:
    if wish.cases:
        given = read_golden(wish.cases)
        tensors = read_tensors(wish.cases, given)
        for case in given.cases:
            yield _Case(case.name, golden_request(tensors, case))
    for number in range(wish.random):
        request = random_request(version, wish.rows, wish.shapes, wish.seed + number)
        yield _Case(f"random-{wish.seed + number}", request)


def _answered(case: _Case, runner: Runner, file: TensorFile) -> GoldenCase:
    answers, again = runner.answer(case.request), runner.answer(case.request)
    for spec, one, other in zip(runner.version.outputs, answers, again, strict=True):
        if one != other:
            raise ArtefactError(
                f"case '{case.name}': output '{spec.name}' is not the same twice; such a model has no golden set"
            )
    return GoldenCase(
        name=case.name,
        inputs=tuple(
            file.add(name, tensor.datatype, tensor.shape, tensor.raw) for name, tensor in case.request.items()
        ),
        outputs=tuple(
            file.add(spec.name, spec.datatype, answer.shape, answer.raw)
            for spec, answer in zip(runner.version.outputs, answers, strict=True)
        ),
    )


def _tolerances(wish: GoldenWish, version: ModelVersion) -> Mapping[str, Tolerance]:
    """Numbers are held to the default unless told otherwise; all else is exact."""
    unknown = set(wish.tolerances) - {spec.name for spec in version.outputs}
    if unknown:
        raise ArtefactError(f"the model has no output '{min(unknown)}' to give a tolerance to")
    return {
        spec.name: wish.tolerances.get(spec.name, wish.default if spec.datatype in FLOATS else EXACT)
        for spec in version.outputs
    }


def _promise(
    wish: GoldenWish, runner: Runner, progress: Progress
) -> tuple[LatencyPromise | None, Speed | None]:
    """Measured on the first case."""
    if wish.promise is None:
        return None, None
    progress(0, 1, f"measuring {wish.promise.rows} rows")
    first = next(_cases(wish, runner.version))
    asked = with_rows(runner.version, first.request, wish.promise.rows)
    measured = runner.measure(asked, wish.budget_ms * 1_000_000)
    if wish.promise.p99_us:
        return wish.promise, measured
    p99_us = -(-measured.p99_ns * wish.margin_percent // (100 * NS_PER_US))
    rows = rows_of(runner.version, asked)
    return LatencyPromise(rows=rows, p99_us=max(p99_us, 1)), measured
