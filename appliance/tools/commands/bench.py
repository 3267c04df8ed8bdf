"""Measure a model on this machine: time to load, first answer, runs by batch size, memory.

It is loaded in a process of its own and runs on one thread, in place, as in a worker; requests, queues and copies
of the server are not part of it. It runs on its golden set's first case, else on random values, where its config.pbtxt
says or on --device. What --json prints is what 'appliance model pack --measured FILE' takes.

With --variants it is tried in several precisions, each in a process of its own: made from the FP32 model, held against
its golden set, measured. One that leaves a tolerance is refused, whatever its speed, and the exit status is 1. A model
without a golden set is tried on random values, which proves nothing and refuses nothing. What cannot be made of the
model, or runs not on this device, has no figures and says why. docs/PRECISION.md explains the figures.

rows/s are those of a batch over the time of its median run, everywhere: in both tables, the plot and --json. The
fastest is what has most of them at its best batch size.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.cli.failure import Exit, printable
from appliance.cli.numbers import DAY_MS, natural
from appliance.cli.package_policy import repository_of
from appliance.cli.terminal import steps_bar
from appliance.domain.device import DeviceKind
from appliance.domain.golden import ROWS_MAX
from appliance.tools.commands.options import (
    add_device,
    add_shapes,
    add_source,
    sentences,
    subject_of,
)
from appliance.tools.evaluation.cost_file import benched, to_json
from appliance.tools.evaluation.jobs import PRECISIONS, MeasureJob
from appliance.tools.evaluation.process import measure

BUDGET_MS = 1_000
THREADS_MAX = 1_024
"""As workers.threads has it."""
ALL = "all"
PICTURE = ".svg"
CPU = DeviceKind.CPU.value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source(parser)
    parser.add_argument(
        "--rows", type=_rows, default=(), metavar="N,N", help="batch sizes (default: 1, 2, 4 ... up to 32)"
    )
    add_shapes(parser)
    parser.add_argument(
        "--budget-ms",
        type=natural(1, DAY_MS),
        default=BUDGET_MS,
        metavar="MS",
        help=f"for each size (default {BUDGET_MS})",
    )
    parser.add_argument(
        "--threads", type=natural(1, THREADS_MAX), default=1, help="threads of the session (default 1)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON instead of a table, for 'pack --measured' (with --variants it is no input of 'pack')",
    )
    add_device(parser, f"as that says; of --variants {CPU}")
    _add_variants(parser)


def _add_variants(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("precisions")
    group.add_argument(
        "--variants",
        type=_variants,
        metavar="NAME,NAME",
        help=f"which to make and try, of {', '.join(PRECISIONS)}, or {ALL}; fp32 is the model itself",
    )
    group.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="write those that hold to DIR/PRECISION/NAME/VERSION, for 'pack'; VERSION is above that of SOURCE",
    )
    group.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw latency, throughput, accuracy, memory, joules"
    )
    parser.set_defaults(settle=(_settle,))


def _settle(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """What is for precisions alone."""
    if arguments.variants:
        arguments.device = arguments.device or CPU
        if arguments.plot and arguments.plot.suffix.lower() != PICTURE:
            parser.error(
                f"--plot draws an SVG picture; '{printable(str(arguments.plot))}' does not end in {PICTURE}"
            )
        return
    for option in ("keep", "plot"):
        if getattr(arguments, option) is not None:
            parser.error(f"--{option} is for --variants; say which precisions to try")


def run(arguments: argparse.Namespace) -> int:
    """Measure and show."""
    if arguments.variants:
        from appliance.tools.commands.precision import run_variants

        return run_variants(arguments)
    settings = repository_of(arguments.config)
    subject = subject_of(arguments, settings)
    job = MeasureJob(
        source=subject.source,
        rows=arguments.rows,
        shapes=dict(arguments.shape),
        budget_ms=arguments.budget_ms,
        threads=arguments.threads,
        device=arguments.device or "",
        repository=settings,
    )
    with sentences(), steps_bar("measuring", quiet=arguments.json) as progress:
        found = measure(job, progress)
    if arguments.json:
        print(to_json(benched(subject.version, found, arguments.threads)))
        return Exit.OK
    from rich.console import Console

    from appliance.tools.commands.views import measurement_view

    Console().print(measurement_view(subject.version, found))
    return Exit.OK


def _rows(text: str) -> tuple[int, ...]:
    return tuple(map(natural(1, ROWS_MAX), text.split(",")))


def _variants(text: str) -> tuple[str, ...]:
    """Each once, in the order of the table."""
    asked = [each.strip().lower() for each in text.split(",")]
    unknown = [each for each in dict.fromkeys(asked) if each not in PRECISIONS and each != ALL]
    if unknown:
        shown = ", ".join(f"'{printable(each)}'" for each in unknown)
        raise argparse.ArgumentTypeError(
            f"no such precision: {shown}; there are {', '.join(PRECISIONS)}, {ALL}"
        )
    return tuple(each for each in PRECISIONS if each in asked or ALL in asked)
