"""Measure a model on this machine: time to load, first answer, runs by batch size, memory.

It is loaded in a process of its own and runs on one thread, in place, as in a worker; requests, queues and copies
of the server are not part of it. It runs on its golden set's first case, else on random values. What --json prints is
what 'appliance model pack --measured FILE' takes.
"""

from __future__ import annotations

import argparse

from appliance.cli.arguments import natural
from appliance.cli.failure import Exit
from appliance.cli.package_policy import repository_of
from appliance.cli.terminal import steps_bar
from appliance.tools.commands.options import (
    add_shapes,
    add_source,
    sentences,
    subject_of,
)
from appliance.tools.evaluation.cost_file import benched, to_json
from appliance.tools.evaluation.jobs import MeasureJob
from appliance.tools.evaluation.process import measure

BUDGET_MS = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_source(parser)
    parser.add_argument(
        "--rows", type=_rows, default=(), metavar="N,N", help="batch sizes (default: 1, 2, 4 ... up to 32)"
    )
    add_shapes(parser)
    parser.add_argument(
        "--budget-ms",
        type=natural(1),
        default=BUDGET_MS,
        metavar="MS",
        help=f"for each size (default {BUDGET_MS})",
    )
    parser.add_argument("--threads", type=natural(1), default=1, help="threads of the session (default 1)")
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of a table, for 'pack --measured'"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and show."""
    settings = repository_of(arguments.config)
    subject = subject_of(arguments, settings)
    job = MeasureJob(
        source=subject.source,
        rows=arguments.rows,
        shapes=dict(arguments.shape),
        budget_ms=arguments.budget_ms,
        threads=arguments.threads,
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
    return tuple(map(natural(1), text.split(",")))
