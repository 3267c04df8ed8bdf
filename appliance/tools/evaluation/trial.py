"""Try one precision of a model, alone in its process: load it, hold it against the golden set, measure it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from appliance.domain.device_wish import parse_wish
from appliance.domain.errors import ArtefactError
from appliance.domain.golden import read_golden, read_tensors
from appliance.domain.model import ModelVersion
from appliance.domain.quantity import counted
from appliance.process.memory import private_bytes
from appliance.runtimes.runtime import Runtime
from appliance.tools.evaluation.comparison import variant_bytes
from appliance.tools.evaluation.inputs import Inputs, golden_inputs, rows_of, with_rows
from appliance.tools.evaluation.jobs import BatchFigures, Progress, Trial, TrialJob
from appliance.tools.evaluation.judge import Judge
from appliance.tools.evaluation.meter import Meter, open_meter, row_joules
from appliance.tools.evaluation.runner import RUNS_MIN, Runner, batch_sizes, speed
from appliance.tools.subject import find_subject

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000


def try_precision(job: TrialJob, version: ModelVersion, runtime: Runtime, progress: Progress) -> Trial:
    """What the model file of the job costs and is worth. Raises ArtefactError and what loading and runs raise."""
    sizes = batch_sizes(version, job.rows)
    golden = read_golden(job.golden)
    tensors = read_tensors(job.golden, golden)
    total = len(golden.cases) + len(sizes) + 1
    progress(0, total, f"{job.precision}: loading")
    size = version.file_bytes
    if job.file:
        size = variant_bytes(job.file)
        find_subject(Path(job.file), job.repository)  # what is written must pass the firewall as well
        version = replace(version, path=job.file, weights=None)
    version = placed(version, job.device)
    meter = open_meter(version.device)
    before = private_bytes(os.getpid())
    runner = loaded(runtime, version, job.threads)
    answered = iter(range(1, total))
    accuracy = Judge(golden, tensors, classes=job.classes).accuracy(
        runner, lambda: progress(next(answered), total, f"{job.precision}: golden answers")
    )
    inputs = golden_inputs(tensors, golden.cases[0])
    batches = []
    for number, rows in enumerate(sizes):
        progress(total - len(sizes) + number, total, f"{job.precision}: {counted(rows, 'row')}")
        batches.append(_batch(runner, with_rows(version, inputs, rows), job.budget_ms * NS_PER_MS, meter))
    return Trial(
        precision=job.precision,
        file_bytes=size,
        load_ns=runner.load_ns,
        memory_bytes=max(private_bytes(os.getpid()) - before, 0),
        device_bytes=meter.device_bytes(),
        device_name=meter.device,
        meter=meter.name,
        accuracy=accuracy,
        batches=tuple(batches),
    )


def placed(version: ModelVersion, device: str) -> ModelVersion:
    """The version as it is loaded on ``device``; "" for its own."""
    return replace(version, device=parse_wish(device)) if device else version


def loaded(runtime: Runtime, version: ModelVersion, threads: int = 1) -> Runner:
    """For a command that has --device, which the runtime does not know of."""
    try:
        return Runner(runtime, version, threads)
    except ArtefactError as problem:
        if version.on_cpu:
            raise
        raise ArtefactError(f"{problem}; --device cpu tries it on the processor") from problem


def _batch(runner: Runner, inputs: Inputs, budget_ns: int, meter: Meter) -> BatchFigures:
    """Run one batch size until the budget is spent."""
    runs = runner.prepared(inputs)
    rows = rows_of(runner.version, inputs)
    joules, begin = meter.joules(), time.monotonic_ns()
    taken = runs(budget_ns, RUNS_MIN)
    drawn = row_joules(joules, meter.joules(), (time.monotonic_ns() - begin) / NS_PER_S, rows * len(taken))
    return BatchFigures(speed=speed(rows, taken), row_joules=drawn)
