"""Hold an original and its variants against the golden set: how far off, the same best class or not, how fast.

Rounds of all candidates alternate, so that what else the machine does meanwhile hits all of them alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ApplianceError, ArtefactError
from appliance.domain.golden import read_golden, read_tensors
from appliance.domain.model import ModelVersion
from appliance.domain.quantity import counted
from appliance.runtimes.runtime import Runtime
from appliance.tools.evaluation.inputs import Inputs, golden_inputs, with_rows
from appliance.tools.evaluation.jobs import (
    ORIGINAL,
    Candidate,
    CompareJob,
    Comparison,
    Progress,
    Speed,
)
from appliance.tools.evaluation.judge import Judge
from appliance.tools.evaluation.runner import Runner, speed
from appliance.tools.subject import find_subject

ROUNDS: Final = 9
BATCH_ROWS_MAX: Final = 16


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A candidate that runs, while it is tried."""

    said: Candidate
    runner: Runner


def compare(job: CompareJob, version: ModelVersion, runtime: Runtime, progress: Progress) -> Comparison:
    """All candidates, the original first; one that cannot be loaded or run says why. Raises ArtefactError when there
    is no golden set that can be used."""
    golden = read_golden(version.golden) if version.golden else None
    if golden is None or not golden.cases:
        raise ArtefactError(f"{version.key} has no golden cases; make some with 'appliance model golden'")
    tensors = read_tensors(version.golden, golden)
    judge = Judge(golden, tensors, tolerances=job.tolerances, classes=job.classes)
    files = {ORIGINAL: version.path, **job.files}
    entries: list[_Entry] = []
    broken: list[Candidate] = []
    for number, (method, path) in enumerate(files.items()):
        going_on = partial(progress, number, len(files) + ROUNDS, f"answers of {method}")
        found = _tried(method, replace(version, path=path), runtime, judge, job.repository, going_on)
        if isinstance(found, _Entry):
            entries.append(found)
        else:
            broken.append(found)
    inputs = golden_inputs(tensors, golden.cases[0])
    measured = entries if job.budget_ms else []
    speeds = _speeds(measured, version, inputs, job.budget_ms * 1_000_000, progress, len(files))
    done = [replace(each.said, speeds=tuple(speeds.get(each.said.method, ()))) for each in entries] + broken
    order = list(files)
    return Comparison(
        cases=len(golden.cases), candidates=tuple(sorted(done, key=lambda each: order.index(each.method)))
    )


def _tried(
    method: str,
    version: ModelVersion,
    runtime: Runtime,
    judge: Judge,
    settings: RepositoryConfig,
    going_on: Callable[[], None],
) -> _Entry | Candidate:
    """A candidate with what its answers are worth. ``going_on`` is called before each step."""
    going_on()
    size = version.file_bytes if method == ORIGINAL else variant_bytes(version.path)
    said = Candidate(method=method, file_bytes=size)
    if method != ORIGINAL:  # what lies beside the original is not the variant's
        version = replace(version, weights=None)
    try:
        if method != ORIGINAL:
            find_subject(Path(version.path), settings)  # what is written must pass the firewall as well
        runner = Runner(runtime, version)
        accuracy = judge.accuracy(runner, going_on)
    except ApplianceError as problem:
        return replace(said, problem=str(problem))
    return _Entry(said=replace(said, load_ns=runner.load_ns, accuracy=accuracy), runner=runner)


def variant_bytes(path: str) -> int:
    """Bytes of a variant, with the data that its converter may have put beside it."""
    return sum(os.path.getsize(each) for each in (path, f"{path}.data") if os.path.exists(each))


def _speeds(
    entries: Sequence[_Entry],
    version: ModelVersion,
    inputs: Inputs,
    budget_ns: int,
    progress: Progress,
    before: int,
) -> Mapping[str, list[Speed]]:
    """One row and a full batch of each, in alternating rounds."""
    largest = min(version.max_batch_size, BATCH_ROWS_MAX) or 1
    sizes = sorted({1, largest})
    rounds = {}
    for rows in sizes:
        for entry in entries:
            progress(before, before + ROUNDS, counted(rows, "row"))
            rounds[entry.said.method, rows] = entry.runner.prepared(with_rows(version, inputs, rows))
    taken: dict[tuple[str, int], list[int]] = {key: [] for key in rounds}
    for number in range(ROUNDS):
        progress(before + number, before + ROUNDS, "speed")
        for key, runs in rounds.items():
            taken[key] += runs(budget_ns // (ROUNDS * len(rounds)), 1)
    found: dict[str, list[Speed]] = {each.said.method: [] for each in entries}
    for (method, rows), all_runs in taken.items():
        found[method].append(speed(rows, all_runs))
    return found
