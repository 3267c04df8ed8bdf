"""'appliance model bench --variants': what a model costs in each precision, and whether its answers bear it."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.package_policy import repository_of
from appliance.cli.terminal import ShowSteps, steps_bar
from appliance.config.repository import SettledRepository
from appliance.domain.device import DeviceKind
from appliance.domain.errors import ArtefactError
from appliance.domain.golden import GOLDEN_DIRECTORY, SET_FILE, read_golden
from appliance.store.full_disk import reason_of
from appliance.tools.commands.options import sentences, subject_of
from appliance.tools.commands.precision_report import Report, to_json
from appliance.tools.evaluation.cost_file import place_text
from appliance.tools.evaluation.gate import Judgement, Verdict, judge, passes
from appliance.tools.evaluation.jobs import (
    ORIGINAL,
    PRECISIONS,
    ConvertJob,
    GoldenJob,
    Progress,
    Trial,
    TrialJob,
)
from appliance.tools.evaluation.process import convert, make_golden, try_precision
from appliance.tools.evaluation.runner import batch_sizes
from appliance.tools.subject import Subject
from appliance.tools.variants.output import copy_home, next_version, write_variant
from appliance.tools.variants.suitability import unsuitable_reason

RANDOM_CASES: Final = 8
FP8: Final = "fp8"
FP8_TYPE: Final = "float8"
"""In what the runtime says of a type that it has no kernel for."""
KERNELS: Final = " Encountered following errors:"
"""After which ONNX Runtime lists each kernel that it tried, over a dozen lines."""
STEPS: Final = 100
"""Of the bar, for each precision."""


def run_variants(arguments: argparse.Namespace) -> int:
    """Make, try, judge, keep, show."""
    settings = repository_of(arguments.config)
    subject = subject_of(arguments, settings)
    proven = _has_cases(subject)
    _check_request(arguments, subject, settings, proven)
    with sentences():
        batch_sizes(subject.version, arguments.rows)
    with tempfile.TemporaryDirectory() as folder, sentences():
        with steps_bar("precisions", quiet=arguments.json) as progress:
            golden = (
                subject.version.golden if proven else _random_golden(arguments, subject, folder, settings)
            )
            files: dict[str, str] = {}
            trials = []
            for number, precision in enumerate(arguments.variants):
                going_on = _part_of(progress, number, len(arguments.variants))
                job = TrialJob(
                    source=subject.source,
                    precision=precision,
                    golden=golden,
                    device=arguments.device,
                    rows=arguments.rows,
                    budget_ms=arguments.budget_ms,
                    threads=arguments.threads,
                    classes=tuple(subject.version.labels),
                    repository=settings,
                )
                trials.append(_tried(job, folder, files, going_on))
        judgements = judge(trials, proven=proven)
        kept = None if arguments.keep is None else _kept(arguments.keep, subject, judgements, files)
    report = Report(
        version=subject.version,
        device=arguments.device,
        on=place_text(arguments.threads, _device_name(trials))
        if any(each.batches for each in trials)
        else "",
        cases=len(read_golden(subject.version.golden).cases) if proven else RANDOM_CASES,
        proven=proven,
        judgements=judgements,
        kept=kept,
        picture=str(arguments.plot or ""),
    )
    _show(arguments, report)
    return Exit.OK if passes(judgements) else Exit.REFUSED


def _has_cases(subject: Subject) -> bool:
    """Whether there is a golden set that says which answers are right."""
    with sentences():
        return bool(subject.version.golden and read_golden(subject.version.golden).cases)


def _check_request(
    arguments: argparse.Namespace, subject: Subject, settings: SettledRepository, proven: bool
) -> None:
    """Raise CommandFailed for what cannot be done, before anything is."""
    key = subject.version.key
    if arguments.keep and not proven:
        raise CommandFailed(
            f"{key} has no golden set, so that nothing says which variants may be kept; make one with 'appliance "
            f"model golden {arguments.source}'"
        )
    if arguments.shape and proven:
        raise CommandFailed(f"--shape is for random values; {key} has a golden set, whose inputs are taken")
    if arguments.keep:
        _check_writable(arguments.keep, arguments.keep)
    if arguments.plot:
        if arguments.plot.is_dir():
            raise CommandFailed(f"'{arguments.plot}' cannot be written: it is a directory")
        _check_writable(arguments.plot.parent, arguments.plot, make=False)
    if any(PRECISIONS[each] != ORIGINAL for each in arguments.variants):
        with sentences():
            reason = unsuitable_reason(subject.version.path, settings)
        if reason:
            raise CommandFailed(f"no variant can be made of {key}: {reason}", Exit.REFUSED)


def _check_writable(folder: Path, named: Path, *, make: bool = True) -> None:
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandFailed(f"'{named}' cannot be written: {reason_of(error, folder)}") from error


def _random_golden(
    arguments: argparse.Namespace, subject: Subject, folder: str, settings: SettledRepository
) -> str:
    """What the original answers to random values, as a golden set that is gone afterwards."""
    job = GoldenJob(
        source=subject.source,
        folder=os.path.join(folder, GOLDEN_DIRECTORY),
        random=RANDOM_CASES,
        shapes=dict(arguments.shape),
        device=arguments.device,
        repository=settings,
    )
    make_golden(job, lambda _done, _total, _text: None)
    return os.path.join(folder, SET_FILE)


def _part_of(progress: ShowSteps, number: int, count: int) -> Progress:
    """Progress of one precision of several, as progress of all."""
    return lambda done, total, text: progress(
        number * STEPS + done * STEPS // max(total, 1), count * STEPS, text
    )


def _tried(job: TrialJob, folder: str, files: dict[str, str], progress: Progress) -> Trial:
    """The trial of one precision, whose file is noted in ``files``; one that cannot be made or run says why."""
    method = PRECISIONS[job.precision]
    try:
        if method == ORIGINAL:
            return try_precision(job, progress)
        path = os.path.join(folder, f"{job.precision}.onnx")
        made = ConvertJob(
            source=job.source, method=method, target=path, golden=job.golden, repository=job.repository
        )
        convert(made, progress)
        files[job.precision] = path
        return try_precision(replace(job, file=path), progress)
    except ArtefactError as error:
        return Trial(precision=job.precision, problem=_explained(job, str(error)))


def _explained(job: TrialJob, problem: str) -> str:
    """The runtime's own text, with what it comes from where that is known."""
    on_cpu = job.device == DeviceKind.CPU.value
    if job.precision == FP8 and on_cpu and FP8_TYPE in problem:
        shown = problem.partition(KERNELS)[0]
        return f"ONNX Runtime's kernels for the processor do not take FP8: {shown}"
    return problem


def _kept(
    keep: Path, subject: Subject, judgements: Sequence[Judgement], files: Mapping[str, str]
) -> dict[str, str]:
    """Where the variants that hold went: versions above the original's, beside which they can be installed."""
    kept: dict[str, str] = {}
    for each in judgements:
        precision = each.trial.precision
        if each.verdict is not Verdict.HOLDS or precision not in files:
            continue
        target = str((keep / precision / subject.version.name).absolute())
        number = max(next_version(target if os.path.isdir(target) else ""), subject.version.version + 1)
        try:
            kept[precision] = write_variant(
                subject, precision, files[precision], target, number, {}, servable=True
            )
            copy_home(subject, target)
        except OSError as error:
            raise CommandFailed(f"'{target}' cannot be written: {reason_of(error, target)}") from error
    return kept


def _device_name(trials: Sequence[Trial]) -> str:
    return next((each.device_name for each in trials if each.device_name), "")


def _show(arguments: argparse.Namespace, report: Report) -> None:
    if arguments.plot:
        from appliance.tools.commands.precision_plot import picture

        try:
            arguments.plot.write_text(picture(report), encoding="utf-8")
        except OSError as error:
            raise CommandFailed(
                f"'{arguments.plot}' cannot be written: {reason_of(error, arguments.plot)}"
            ) from error
    if arguments.json:
        print(json.dumps(to_json(report), allow_nan=False))
        return
    from rich.console import Console

    from appliance.tools.commands.precision_view import report_view

    Console().print(report_view(report))
