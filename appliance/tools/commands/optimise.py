"""Make smaller or faster variants of a model and hold them against the original: INT8, dynamic and static, and FP16.

Each variant answers the golden set; the table shows how far off it is and how fast, beside the original, at one row and
at a batch of up to 16. What keeps every output within its tolerance, is faster at one of both sizes and slower at
neither becomes a version in SOURCE itself, above those that are there, what gains most over both sizes the highest: a
'serve' that has this directory takes it up. Differences of up to 5 % are noise. With --out nothing is written into
SOURCE, and all variants are written, slower ones as well; one that left a tolerance is marked as not servable, and
'pack' and 'serve' refuse it. Tolerances are the golden set's, where --tolerance says nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from appliance.cli.arguments import add_output
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.numbers import DAY_MS, natural
from appliance.cli.package_policy import repository_of
from appliance.cli.terminal import steps_bar
from appliance.config.repository import SettledRepository
from appliance.domain.errors import ArtefactError
from appliance.domain.golden import Tolerance
from appliance.domain.model import ModelVersion
from appliance.store.full_disk import reason_of
from appliance.tools.commands.options import (
    add_source,
    add_tolerances,
    check_outputs,
    sentences,
    subject_of,
    tolerances_by_output,
)
from appliance.tools.evaluation.gate import gain, not_faster
from appliance.tools.evaluation.jobs import (
    METHODS,
    ORIGINAL,
    Candidate,
    CompareJob,
    Comparison,
    ConvertJob,
    Progress,
    to_plain,
)
from appliance.tools.evaluation.process import compare, convert
from appliance.tools.subject import Subject
from appliance.tools.variants.output import copy_home, next_version, write_variant

BUDGET_MS = 3_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source(parser)
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        choices=tuple(METHODS),
        help="; ".join(f"{name}: {what}" for name, what in METHODS.items()) + " (default: all)",
    )
    add_tolerances(parser)
    parser.add_argument(
        "--classes",
        action="append",
        default=[],
        metavar="OUTPUT",
        help="an output of scores (default: those with labels)",
    )
    parser.add_argument(
        "--budget-ms",
        type=natural(1, DAY_MS),
        default=BUDGET_MS,
        metavar="MS",
        help=f"for measuring speed (default {BUDGET_MS})",
    )
    add_output(parser, "write all variants to DIR/METHOD/NAME/VERSION", metavar="DIR", dest="out")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Make, compare, write, show."""
    settings = repository_of(arguments.config)
    subject = subject_of(arguments, settings)
    version = subject.version
    if not version.golden:
        chosen = f" --version {version.version}" if arguments.version else ""
        raise CommandFailed(
            f"{version.key} has no golden set; make one with 'appliance model golden {arguments.source}{chosen}'"
        )
    if not subject.home and not arguments.out and not arguments.dry_run:
        raise CommandFailed("a file alone has no home for versions; say with --out where its variants go")
    outputs = [spec.name for spec in version.outputs]
    tolerances = tolerances_by_output(arguments.tolerance, outputs)
    classes = tuple(arguments.classes or version.labels)
    check_outputs(classes, outputs)
    source = subject.source
    with tempfile.TemporaryDirectory() as folder, sentences():
        with steps_bar("variants", quiet=arguments.json) as progress:
            alone = CompareJob(
                source=source, files={}, tolerances=tolerances, budget_ms=0, repository=settings
            )
            _check_original(compare(alone, progress), version)
            files, failed = _converted(source, arguments.method or list(METHODS), folder, settings, progress)
            job = CompareJob(
                source=source,
                files=files,
                tolerances=tolerances,
                classes=classes,
                budget_ms=arguments.budget_ms,
                repository=settings,
            )
            found = _with_failed(compare(job, progress), failed)
        _check_original(found, version)
        written = {} if arguments.dry_run else _written(subject, found, files, arguments, tolerances)
    _show(arguments, version.key, found, written)
    return Exit.OK if any(each.holds for each in found.candidates[1:]) else Exit.REFUSED


def _check_original(found: Comparison, version: ModelVersion) -> None:
    """Fails when the original, which all else is held against, does not run or does not hold its own golden set."""
    original = found.candidates[0]
    if original.problem:
        there = "" if version.on_cpu else "; 'appliance model bench --variants' tries it on the processor"
        raise CommandFailed(f"the original does not run: {original.problem}{there}", Exit.REFUSED)
    if not original.holds:
        reason = next(each.reason for each in original.accuracy if each.reason)
        raise CommandFailed(f"the original does not hold its own golden set: {reason}", Exit.REFUSED)


def _converted(
    source: str, methods: list[str], folder: str, settings: SettledRepository, progress: Progress
) -> tuple[dict[str, str], dict[str, str]]:
    """Files of the variants that could be made, and why others could not."""
    files: dict[str, str] = {}
    failed: dict[str, str] = {}
    for method in dict.fromkeys(methods):
        path = os.path.join(folder, f"{method}.onnx")
        try:
            convert(ConvertJob(source=source, method=method, target=path, repository=settings), progress)
            files[method] = path
        except ArtefactError as error:
            failed[method] = str(error)
    return files, failed


def _with_failed(found: Comparison, failed: Mapping[str, str]) -> Comparison:
    more = tuple(Candidate(method=method, problem=problem) for method, problem in failed.items())
    order = [ORIGINAL, *METHODS]
    ordered = sorted((*found.candidates, *more), key=lambda each: order.index(each.method))
    return Comparison(cases=found.cases, candidates=tuple(ordered))


def _written(
    subject: Subject,
    found: Comparison,
    files: Mapping[str, str],
    arguments: argparse.Namespace,
    tolerances: Mapping[str, Tolerance],
) -> dict[str, str]:
    """Where each variant went; what gains most last, for the highest number."""
    original = found.candidates[0]
    made = [each for each in found.candidates if each.method in files and not each.problem]
    made.sort(key=lambda each: gain(each, original))
    written: dict[str, str] = {}
    for candidate in made:
        if not arguments.out and (not candidate.holds or not_faster(candidate, original)):
            continue
        target = subject.home
        if arguments.out:
            target = str(Path(arguments.out, candidate.method, subject.version.name).absolute())
        number = next_version(subject.home if not arguments.out else target if os.path.isdir(target) else "")
        try:
            written[candidate.method] = write_variant(
                subject,
                candidate.method,
                files[candidate.method],
                target,
                number,
                tolerances,
                candidate.holds,
            )
            if arguments.out:
                copy_home(subject, target)
        except OSError as error:
            raise CommandFailed(f"'{target}' cannot be written: {reason_of(error, target)}") from error
    return written


def _show(arguments: argparse.Namespace, key: str, found: Comparison, written: Mapping[str, str]) -> None:
    if arguments.json:
        original = found.candidates[0]
        candidates = [
            {
                **_plain(each),
                "servable": each.holds and each.method != ORIGINAL,
                "faster": bool(each.speeds) and not not_faster(each, original),
                "written": written.get(each.method, ""),
            }
            for each in found.candidates
        ]
        print(json.dumps({"model": key, "cases": found.cases, "candidates": candidates}, allow_nan=False))
        return
    from rich.console import Console
    from rich.text import Text

    from appliance.tools.commands.views import comparison_view

    console = Console()
    console.print(comparison_view(key, found, written))
    if not written:
        why = ", as --dry-run asks." if arguments.dry_run else _why_nothing(found)
        console.print(Text(f"Nothing was written{why}"))


def _why_nothing(found: Comparison) -> str:
    """Why no variant became a version."""
    made = [each for each in found.candidates[1:] if not each.problem]
    if not made:
        return ": no variant of this model runs."
    if not any(each.holds for each in made):
        return (
            ": no variant keeps every output within its tolerance. How far an answer may be off is a decision about "
            "the model: --tolerance tries another, and 'appliance model golden SOURCE --force' with it writes it into "
            "the golden set."
        )
    return (
        ": no variant that keeps every output within its tolerance is faster than the original at one size and slower "
        "at none."
    )


def _plain(candidate: Candidate) -> dict[str, object]:
    """As JSON has it, in which null stands for what is beyond all numbers."""
    accuracy = [
        {
            **to_plain(each),
            "absolute": _finite(each.absolute),
            "relative": _finite(each.relative),
            "of_limit": _finite(each.of_limit),
            "off_by": _finite(each.off_by),
        }
        for each in candidate.accuracy
    ]
    return {**to_plain(candidate), "accuracy": accuracy}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
