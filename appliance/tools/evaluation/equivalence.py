"""Compare the answers of two forms of a model, bit for bit, for random inputs, or golden ones where it takes no random
ones, and have the packed one answer its golden set as a box does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Final

from appliance.domain.errors import ApplianceError, AssessmentFailed, LoadFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE
from appliance.runtimes.runtime import Runtime
from appliance.tools.evaluation.inputs import Inputs, golden_inputs, random_inputs
from appliance.tools.evaluation.jobs import Equivalence, EquivalenceJob, OutputAccuracy, Progress
from appliance.tools.evaluation.judge import Judge
from appliance.tools.evaluation.runner import Answer, Runner
from appliance.tools.evaluation.trial import placed
from appliance.tools.subject import find_subject
from appliance.workers.child.proof import open_golden, run_golden
from appliance.workers.child.rows import mixes_rows

ROUNDS: Final = 3
FREE_DIMENSION: Final = 2
REMEDY: Final = (
    "if these answers are right, make the set anew ('appliance model golden SOURCE --force' with --case or --random) "
    "or allow more (--force --tolerance {}=ABSOLUTE,RELATIVE); else mend the model"
)
UNPROVEN: Final = "--device cpu proves it on the processor, --no-proof packs it without being run"
NOTHING_ANSWERED: Final = (
    "the source answers no random request: {}; a golden set of requests that it does answer is asked as well "
    "('appliance model golden SOURCE --case FILE')"
)
SHOWN_MAX: Final = 2_000
"""Characters of what a runtime says: a whole sentence with what to do, and not all of a library's trace."""


def compare_forms(job: EquivalenceJob, runtime: Runtime, progress: Progress) -> Equivalence:
    """Whether the packed form is read, answers as its source does, and as its golden set says."""
    progress(0, ROUNDS, "loading the packed form")
    try:
        packed = find_subject(Path(job.packed), job.repository).version
        after = Runner(runtime, placed(packed, job.device))
    except ApplianceError as error:
        return Equivalence(differs=_why_not_loaded(job, runtime) or _difference(f"is not loaded: {error}"))
    found = _beside_source(job, after, runtime, progress)
    mixes = after.version.rows_assumed and bool(mixes_rows(after.loaded))
    found = replace(found, device=str(after.version.device), configured=str(packed.device), mixes=mixes)
    return found if found.differs else _beside_golden(found, after, progress)


def _beside_source(job: EquivalenceJob, after: Runner, runtime: Runtime, progress: Progress) -> Equivalence:
    """Whether the packed form answers as its source does. What the source says to a request that it fails counts as
    well, but proves nothing."""
    packed = after.version
    progress(0, ROUNDS, "loading the source")
    try:
        before = Runner(runtime, replace(packed, path=job.source, weights=None))
    except ApplianceError as error:
        return Equivalence(unproven=f"the runtime does not load the source: {str(error)[:SHOWN_MAX]}")
    refusal = ""
    for asked, requests in (("random", _random_requests(packed)), ("golden", _golden_requests(packed))):
        answered = 0
        for number, inputs in enumerate(requests):
            progress(number, ROUNDS, f"a {asked} request")
            wanted = _outcome(before, inputs)
            if _comparable(wanted) != _comparable(_outcome(after, inputs)):
                return Equivalence(differs=_difference(f"answers a {asked} request with other bytes"))
            if isinstance(wanted, ApplianceError):
                refusal = refusal or str(wanted)
            else:
                answered += 1
        if answered:
            return Equivalence(rounds=answered, asked=asked)
    return Equivalence(unproven=NOTHING_ANSWERED.format(refusal[:SHOWN_MAX]))


def _random_requests(version: ModelVersion) -> Iterator[Inputs]:
    """Free dimensions are small."""
    shapes = {
        spec.name: tuple(FREE_DIMENSION if size == FREE else size for size in spec.shape)
        for spec in version.inputs
    }
    for seed in range(ROUNDS):
        yield random_inputs(version, min(FREE_DIMENSION, version.max_batch_size), shapes, seed)


def _golden_requests(version: ModelVersion) -> Iterator[Inputs]:
    """Those that a person said it answers; none where its set cannot be read, which is told elsewhere."""
    with suppress(LoadFailed):
        if golden := open_golden(version):
            for case in golden.set.cases[:ROUNDS]:
                yield golden_inputs(golden.tensors, case)


def _beside_golden(found: Equivalence, after: Runner, progress: Progress) -> Equivalence:
    """With what comes of the golden set, by what a box judges with before it serves a version."""
    try:
        golden = open_golden(after.version)
    except LoadFailed as error:
        return replace(found, refusal=_box_refusal(after.version, error, None))
    if golden is None:
        return found
    cases = golden.set.cases
    try:
        for number, case in enumerate(cases):
            progress(number, len(cases), f"golden case {case.name}")
            run_golden(after.loaded, golden._replace(set=replace(golden.set, cases=(case,))))
    except AssessmentFailed as error:
        far = _how_far(Judge(golden.set, golden.tensors), after, progress)
        return replace(found, refusal=_box_refusal(after.version, error, far))
    return replace(found, cases=len(cases))


def _how_far(judge: Judge, after: Runner, progress: Progress) -> OutputAccuracy | None:
    """The output that left its tolerance furthest; None where a case has no answer."""
    try:
        outputs = judge.accuracy(after, lambda: progress(0, 1, "how far answers are off"))
    except ApplianceError:
        return None
    return max((each for each in outputs if each.reason), key=lambda each: each.of_limit, default=None)


def _box_refusal(version: ModelVersion, error: LoadFailed, far: OutputAccuracy | None) -> str:
    """Why a box would not serve it, and what to do."""
    text = f"a box would refuse it: {str(error).removeprefix(f'{version.key}: ')[:SHOWN_MAX]}"
    if far is None or not far.absolute:  # what must be equal has no difference
        return f"{text}; {REMEDY.format('OUTPUT' if far is None else quote(far.output))}"
    largest = f"{far.absolute:.9g}" if isfinite(far.absolute) else "without bound"
    return (
        f"{text}; the largest difference of '{far.output}' over all cases is {largest}, where its tolerance allows "
        f"{far.limit}; {REMEDY.format(quote(far.output))}"
    )


def _why_not_loaded(job: EquivalenceJob, runtime: Runtime) -> str:
    """Why the source is not loaded either: then the packed form is not to blame."""
    try:
        version = placed(find_subject(Path(job.source), job.repository).version, job.device)
    except ApplianceError:
        return ""
    try:
        Runner(runtime, version).close()
    except ApplianceError as error:
        text = f"the runtime does not load it: {str(error).removeprefix(f'{version.key}: ')[:SHOWN_MAX]}"
        return text if version.on_cpu else f"{text}; {UNPROVEN}"
    return ""


def _difference(what: str) -> str:
    return f"the packed form {what[:SHOWN_MAX]}, unlike the source; please report this"


def _outcome(runner: Runner, inputs: Inputs) -> tuple[Answer, ...] | ApplianceError:
    """The answer, or the failure in its place."""
    try:
        return runner.answer(inputs)
    except ApplianceError as error:
        return error


def _comparable(outcome: tuple[Answer, ...] | ApplianceError) -> tuple[Answer, ...] | type[ApplianceError]:
    """Of a failure its kind: texts of runtimes name files."""
    return type(outcome) if isinstance(outcome, ApplianceError) else outcome
