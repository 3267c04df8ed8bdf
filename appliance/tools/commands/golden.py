"""Make a golden set of a model: requests with the answers that it gives now, and how near later ones must be.

Cases are files (.npz or .json with a value for each input; .npy files and pictures for a model with one input), values
as 'appliance infer' takes them, or seeded random ones. The set is written beside the model file, as golden/set.json and
golden/tensors.bin, and is of this version: it is not served where it answers otherwise, on another box or after an
update. A version with other weights needs a set of its own, since it is to answer otherwise. One that has none is held
to the set in the model's directory (--out NAME/golden) where there is one, else to nothing: 'pack', 'install', 'want'
and 'fleet release' say so where a version before it has a set.

With --force and without an option that says cases, those of the set that is there stay, with their answers, and
what is given of tolerances and promise changes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from appliance.cli.arguments import add_output
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.numbers import natural, nonnegative
from appliance.cli.package_policy import repository_of
from appliance.cli.terminal import steps_bar
from appliance.config.repository import SettledRepository
from appliance.domain.device import DeviceKind
from appliance.domain.golden import CASES_MAX, P99_US_MAX, ROWS_MAX, SET_FILE, Tolerance, read_golden
from appliance.domain.manifest import LatencyPromise
from appliance.domain.model import ModelVersion
from appliance.domain.quantity import counted
from appliance.domain.tensor import FLOATS
from appliance.tools.commands.options import (
    add_device,
    add_shapes,
    add_source,
    add_tolerances,
    sentences,
    tolerances_by_output,
)
from appliance.tools.evaluation.jobs import GoldenJob, GoldenMade, to_plain
from appliance.tools.evaluation.process import make_golden
from appliance.tools.subject import Subject, find_subject, plain_text

RANDOM_CASES = 4
MARGIN_MAX = 10_000
SEED = 1
ABSOLUTE, RELATIVE = 1e-5, 1e-3
NS_PER_US = 1_000
SET_NAME = SET_FILE.rpartition("/")[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source(parser)
    parser.add_argument(
        "--case", action="append", default=[], type=Path, metavar="FILE", help="a case; may be repeated"
    )
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]VALUES|@FILE", help="one case, input by input"
    )
    parser.add_argument(
        "--random",
        type=natural(0, CASES_MAX),
        metavar="N",
        help=f"random cases (default: {RANDOM_CASES} when no other case is given, else 0)",
    )
    parser.add_argument("--seed", type=natural(0), help=f"of random cases (default {SEED})")
    parser.add_argument("--rows", type=natural(1, ROWS_MAX), help="rows of random cases (default 1)")
    add_shapes(parser)
    add_device(parser)
    parser.add_argument(
        "--absolute", type=nonnegative, metavar="A", help=f"how far any float may be off (default {ABSOLUTE})"
    )
    parser.add_argument(
        "--relative",
        type=nonnegative,
        metavar="R",
        help=f"and besides, as a share of the right value (default {RELATIVE})",
    )
    add_tolerances(parser)
    parser.add_argument(
        "--promise",
        metavar="US|measured",
        type=_promise,
        help="promise that 99 of 100 runs take at most so long, or what is measured here, with a margin",
    )
    parser.add_argument(
        "--promise-rows", type=natural(1, ROWS_MAX), default=1, metavar="N", help="rows of a promised run"
    )
    parser.add_argument(
        "--margin",
        type=natural(100, MARGIN_MAX),
        default=200,
        metavar="PERCENT",
        help="what '--promise measured' promises, of what was measured (default 200)",
    )
    add_output(parser, "where to write (default: golden/ by the model file)", metavar="DIR", dest="out")
    parser.add_argument(
        "--force",
        action="store_true",
        help="change a golden set that is there: new cases replace all of its; where none are said, they stay",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Make the set and say what it holds."""
    folder = str(arguments.out or "")
    settings = repository_of(arguments.config)
    with sentences():
        subject = find_subject(arguments.source, settings, arguments.version)
    beside = not folder or os.path.realpath(folder) == subject.golden_folder
    folder = folder or subject.golden_folder
    there = os.path.join(folder, SET_NAME)
    _check_free(arguments, subject, folder, subject.golden_of if beside else "")
    if not os.path.lexists(there) and not arguments.out:
        there = subject.version.golden  # of all versions of the model
    with tempfile.TemporaryDirectory() as drafts, sentences():
        if arguments.force and not _says_cases(arguments) and _has_cases(there):
            job = _kept_job(arguments, subject, os.path.abspath(folder), os.path.abspath(there), settings)
        else:
            job = _job(arguments, subject, os.path.abspath(folder), drafts, settings)
        with steps_bar("golden set", quiet=arguments.json) as progress:
            made = make_golden(replace(job, file=_file(subject) if beside else ""), progress)
    print(json.dumps(to_plain(made)) if arguments.json else _sentence(made))
    if not arguments.json and (where := _elsewhere(made, subject.version, arguments.device)):
        print(where)
    return Exit.OK


def _check_free(arguments: argparse.Namespace, subject: Subject, folder: str, made_of: str) -> None:
    """Raise CommandFailed where the set in ``folder`` would be lost unasked, or its cases be kept for another file
    than ``made_of``, which they are of ("": of this one)."""
    of = f", of '{printable(made_of)}'" if made_of else ""
    if os.path.lexists(os.path.join(folder, SET_NAME)) and not arguments.force:
        raise CommandFailed(
            f"'{folder}' has a golden set{of}; replace it with --force, or write elsewhere with --out"
        )
    if made_of and not _says_cases(arguments):
        raise CommandFailed(
            f"the golden set in '{folder}' is of '{printable(made_of)}', whose cases are not kept for "
            f"'{printable(_file(subject))}'; say which are in their place with --case, --input or --random"
        )


def _file(subject: Subject) -> str:
    """What a set beside a bare model file says that it is of; "" in the directory of a version."""
    return "" if subject.home else plain_text(os.path.basename(subject.version.path))


def _job(
    arguments: argparse.Namespace, subject: Subject, folder: str, drafts: str, settings: SettledRepository
) -> GoldenJob:
    given = 0
    if arguments.case or arguments.input:
        from appliance.tools.commands.case_files import write_cases

        given = write_cases(subject.version, arguments.case, arguments.input, drafts)
    random = arguments.random if arguments.random is not None else 0 if given else RANDOM_CASES
    if not given and not random:
        raise CommandFailed("a golden set needs cases; give --case, --input or --random")
    return GoldenJob(
        source=subject.source,
        folder=folder,
        cases=os.path.join(drafts, SET_NAME) if given else "",
        random=random,
        seed=SEED if arguments.seed is None else arguments.seed,
        rows=arguments.rows or 1,
        shapes=dict(arguments.shape),
        default=_default(arguments),
        tolerances=_by_output(arguments, subject),
        promise=_asked_promise(arguments),
        device=arguments.device or "",
        margin_percent=arguments.margin,
        repository=settings,
    )


def _says_cases(arguments: argparse.Namespace) -> bool:
    """Whether an option says which cases, or how random ones are made."""
    lists = (arguments.case, arguments.input, arguments.shape)
    return any(lists) or any(each is not None for each in (arguments.random, arguments.seed, arguments.rows))


def _has_cases(path: str) -> bool:
    """Whether there is a set with cases; one with a promise alone has none that could stay."""
    return bool(path) and os.path.lexists(path) and bool(read_golden(path).cases)


def _kept_job(
    arguments: argparse.Namespace, subject: Subject, folder: str, there: str, settings: SettledRepository
) -> GoldenJob:
    """The cases of the set ``there``, held to other tolerances or with another promise."""
    tolerances = dict(_by_output(arguments, subject))
    if arguments.absolute is not None or arguments.relative is not None:
        default = _default(arguments)
        numbers = [spec.name for spec in subject.version.outputs if spec.datatype in FLOATS]
        tolerances = {**dict.fromkeys(numbers, default), **tolerances}
    promise = _asked_promise(arguments)
    if not tolerances and promise is None:
        raise CommandFailed(
            f"nothing is given that would change '{there}'; give --tolerance, --absolute, --relative or --promise, or "
            "other cases with --case, --input or --random"
        )
    return GoldenJob(
        source=subject.source,
        folder=folder,
        keep=there,
        tolerances=tolerances,
        promise=promise,
        device=arguments.device or "",
        margin_percent=arguments.margin,
        repository=settings,
    )


def _default(arguments: argparse.Namespace) -> Tolerance:
    return Tolerance(
        absolute=ABSOLUTE if arguments.absolute is None else arguments.absolute,
        relative=RELATIVE if arguments.relative is None else arguments.relative,
    )


def _by_output(arguments: argparse.Namespace, subject: Subject) -> Mapping[str, Tolerance]:
    return tolerances_by_output(arguments.tolerance, [spec.name for spec in subject.version.outputs])


def _asked_promise(arguments: argparse.Namespace) -> LatencyPromise | None:
    if arguments.promise is None:
        return None
    return LatencyPromise(rows=arguments.promise_rows, p99_us=arguments.promise)


def _sentence(made: GoldenMade) -> str:
    cases = counted(made.cases, "case")
    if made.kept:
        cases += " kept"
    text = f"{printable(made.path)}: {cases}, {made.tensors_bytes:,} bytes of tensors"
    if made.promise is not None and made.measured is not None:
        text += (
            f"; promised: {counted(made.promise.rows, 'row')} in {made.promise.p99_us:,} us "
            f"(measured here: {made.measured.p99_ns // NS_PER_US:,} us)"
        )
    return text


def _elsewhere(made: GoldenMade, version: ModelVersion, device: str | None) -> str:
    """What a set that was made on ``device`` says of boxes that run the model elsewhere; "" where they do not, or
    nothing was run."""
    on_cpu = device == DeviceKind.CPU.value
    if not device or on_cpu == version.on_cpu or (made.kept and made.measured is None):
        return ""
    others = "are others in the last bits, which the tolerances have to allow"
    if made.measured is not None:
        others = "and times are others"
    where = "the processor" if on_cpu else device
    return (
        f"It was run on {where}, as --device says; a box runs it on {version.device}, as config.pbtxt does, where "
        f"answers {others} (docs/GPU.md)."
    )


def _promise(text: str) -> int:
    """Microseconds; 0 stands for what is measured."""
    if text == "measured":
        return 0
    return natural(1, P99_US_MAX)(text)
