"""The process in which models are loaded and tried: ``python -m appliance.tools.evaluation.child ACTION``.

The job comes on standard input, as JSON; on standard output go lines of JSON: {"progress": [done, total, text]}, then
{"result": {...}} or {"refused": text}. A process of its own, because a model can hang, crash or take all memory, and
what one job has left behind must not count for the next.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from appliance.domain.errors import ApplianceError
from appliance.domain.golden import read_golden, read_tensors
from appliance.domain.model import ModelVersion
from appliance.domain.quantity import counted
from appliance.process.life import die_with_parent
from appliance.process.memory import private_bytes
from appliance.runtimes.runtime import Runtime, open_runtimes
from appliance.tools.evaluation.comparison import compare
from appliance.tools.evaluation.equivalence import compare_forms
from appliance.tools.evaluation.golden import make_golden
from appliance.tools.evaluation.inputs import Inputs, golden_inputs, random_inputs, random_values, with_rows
from appliance.tools.evaluation.jobs import (
    TENSORRT,
    CompareJob,
    Comparison,
    Converted,
    ConvertJob,
    Equivalence,
    EquivalenceJob,
    GoldenJob,
    GoldenMade,
    MeasureJob,
    Measurement,
    Progress,
    Trial,
    TrialJob,
    from_plain,
    to_plain,
)
from appliance.tools.evaluation.meter import accelerator_of
from appliance.tools.evaluation.runner import batch_sizes
from appliance.tools.evaluation.trial import loaded, placed, try_precision
from appliance.tools.subject import find_subject
from appliance.workers.child.rows import mixes_rows

RUNTIME: Final = "onnx"
RANDOM: Final = "random values"


def main(arguments: list[str]) -> int:
    """Do one job; 0 also when it is refused, since that was said."""
    die_with_parent(os.getppid())
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    action, job = arguments[0], json.load(sys.stdin)
    try:
        said: Mapping[str, object] = {"result": to_plain(_ACTIONS[action](job, _teller(answers)))}
    except (ApplianceError, MemoryError) as problem:
        said = {"refused": str(problem) or type(problem).__name__}
    _say(answers, said)
    return 0


def _say(answers: int, said: Mapping[str, object]) -> None:
    data = (json.dumps(said) + "\n").encode()
    while data:
        data = data[os.write(answers, data) :]


def _teller(answers: int) -> Progress:
    return lambda done, total, text: _say(answers, {"progress": [done, total, text]})


def _runtime() -> Runtime:
    return open_runtimes([RUNTIME])[RUNTIME]


def _measure(plain: Mapping[str, object], progress: Progress) -> Measurement:
    job = from_plain(MeasureJob, plain)
    version = placed(find_subject(Path(job.source), job.repository).version, job.device)
    sizes = batch_sizes(version, job.rows)
    inputs, origin = _inputs(job, version)
    runtime = _runtime()
    progress(0, len(sizes) + 1, "loading")
    before, begin = private_bytes(os.getpid()), time.monotonic_ns()
    runner = loaded(runtime, version, job.threads)
    with nullcontext() if origin != RANDOM else random_values():
        runner.answer(inputs)
    first_ns = time.monotonic_ns() - begin
    speeds = []
    for number, rows in enumerate(sizes):
        progress(number + 1, len(sizes) + 1, counted(rows, "row"))
        speeds.append(runner.measure(with_rows(version, inputs, rows), job.budget_ms * 1_000_000))
    memory_bytes = max(private_bytes(os.getpid()) - before, 0)
    return Measurement(
        load_ns=runner.load_ns,
        first_answer_ns=first_ns,
        memory_bytes=memory_bytes,
        inputs=origin,
        speeds=tuple(speeds),
        accelerator=accelerator_of(version.device),
        rows_mix=version.rows_assumed and mixes_rows(runner.loaded),
    )


def _inputs(job: MeasureJob, version: ModelVersion) -> tuple[Inputs, str]:
    """One row to run, and what it is."""
    golden = read_golden(version.golden) if version.golden and not job.shapes else None
    if golden is not None and golden.cases:
        case = golden.cases[0]
        inputs = golden_inputs(read_tensors(version.golden, golden), case)
        return with_rows(version, inputs, 1), f"golden case '{case.name}'"
    return random_inputs(version, 1, job.shapes, 0), RANDOM


def _golden(plain: Mapping[str, object], progress: Progress) -> GoldenMade:
    job = from_plain(GoldenJob, plain)
    version = placed(find_subject(Path(job.source), job.repository).version, job.device)
    progress(0, 1, "loading")
    return make_golden(job, loaded(_runtime(), version), progress)


def _convert(plain: Mapping[str, object], progress: Progress) -> Converted:
    job = from_plain(ConvertJob, plain)
    version = find_subject(Path(job.source), job.repository).version
    from appliance.tools.variants.conversion import array_of, make_variant

    progress(0, 1, f"making {job.method}")
    calibration: list[Mapping[str, Any]] = []
    if path := job.golden or version.golden:
        golden = read_golden(path)
        tensors = read_tensors(path, golden)
        calibration = [
            {name: array_of(*tensor) for name, tensor in golden_inputs(tensors, case).items()}
            for case in golden.cases
        ]
    for_tensorrt = version.backend == TENSORRT
    make_variant(version.path, job.method, job.target, calibration, for_tensorrt=for_tensorrt)
    return Converted(file_bytes=os.path.getsize(job.target))


def _compare(plain: Mapping[str, object], progress: Progress) -> Comparison:
    job = from_plain(CompareJob, plain)
    return compare(job, find_subject(Path(job.source), job.repository).version, _runtime(), progress)


def _try(plain: Mapping[str, object], progress: Progress) -> Trial:
    job = from_plain(TrialJob, plain)
    return try_precision(job, find_subject(Path(job.source), job.repository).version, _runtime(), progress)


def _compare_forms(plain: Mapping[str, object], progress: Progress) -> Equivalence:
    return compare_forms(from_plain(EquivalenceJob, plain), _runtime(), progress)


_ACTIONS: Final[Mapping[str, Callable[[Mapping[str, object], Progress], Any]]] = {
    "measure": _measure,
    "golden": _golden,
    "convert": _convert,
    "compare": _compare,
    "try": _try,
    "compare-forms": _compare_forms,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
