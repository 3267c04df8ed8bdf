"""What the commands that change what is served have in common: waiting until it is, with a bar for who watches."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.going_live import Arrived, OnItsWay, Stranded, whereabouts
from appliance.cli.snapshot import DEFAULT_URL, fetch, parse

LOOK_S: Final = 0.1
"""How often the appliance is asked."""
LIMIT_S: Final = 600.0

Show = Callable[[OnItsWay], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare whether, where and how long to wait."""
    parser.add_argument(
        "--wait", action="store_true", help="until a running 'serve' has brought it live, with a progress bar"
    )
    add_place(parser, "with --wait: ")


def add_place(parser: argparse.ArgumentParser, when: str) -> None:
    """Declare where to ask how far it is, and how long; ``when`` that counts."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"{when}its HTTP address (default {DEFAULT_URL})")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=LIMIT_S,
        metavar="S",
        help=f"seconds to wait at most (default {LIMIT_S:.0f})",
    )


def check_reachable(arguments: argparse.Namespace) -> None:
    """Fails where one is to wait for an appliance that does not answer: before anything is changed."""
    if arguments.wait:
        parse(fetch(arguments.url), arguments.url)


def wait_for(
    arguments: argparse.Namespace, name: str, version: int, generation: int, *, trial: bool = False
) -> None:
    """Wait, if that was asked for, until the version that the catalog ``generation`` asks for serves, or is on
    ``trial``, and say so. Fails when it never will, or not within the time; what was asked for stays asked for."""
    if not arguments.wait:
        return
    key = f"{name}/{version}"
    began = time.monotonic()
    with bar(key) as show:
        while True:
            found = whereabouts(json.loads(fetch(arguments.url)), name, version, generation, trial=trial)
            if not isinstance(found, OnItsWay):
                break
            show(found)
            if time.monotonic() - began > arguments.timeout:
                raise CommandFailed(
                    f"{key} is not live after {arguments.timeout:g} s: {found.text}; it stays asked for, and "
                    "'appliance status' tells what becomes of it",
                    Exit.REFUSED,
                )
            time.sleep(LOOK_S)
    if isinstance(found, Stranded):
        raise CommandFailed(f"{key} does not go live: {found.reason}", Exit.REFUSED)
    assert isinstance(found, Arrived)
    print(f"{printable(key)} {printable(found.text)} after {time.monotonic() - began:.1f} s")


@contextmanager
def bar(key: str) -> Iterator[Show]:
    """A bar on standard error when that is a terminal; else nothing."""
    if not sys.stderr.isatty():
        yield lambda found: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    columns = (
        TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
        ),
        BarColumn(bar_width=24),
        TextColumn(
            "{task.fields[step]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
        ),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(printable(key), total=1.0, step="")
        yield lambda found: bars.update(
            task, completed=found.share, step=Text(printable(found.text)).plain, refresh=True
        )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError("must be above 0 and at most 86400 seconds")
    return value
