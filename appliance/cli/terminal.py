"""What commands put on the terminal besides their tables: texts, lists of problems, bars for work that lasts.

Bars are on standard error, if that is a terminal, and are gone when the work is done; where nothing is watched there
are none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from appliance.cli.failure import printable
from appliance.cli.help_text import folded

Advance = Callable[[int], None]
"""Told how many bytes were done since it was told last."""
ShowShare = Callable[[float, str], None]
"""Told which share of the work is done, and what it is at."""
ShowSteps = Callable[[int, int, str], None]
"""Told how many steps are done, how many there are in all, and what is done next."""


def print_text(text: str, file: TextIO | None = None, *, below: str = "") -> None:
    """Print ``text`` to ``file``, or standard output. On a terminal no word of it is broken, and what goes on in a
    further line begins with ``below``."""
    stream = sys.stdout if file is None else file
    print(folded(text, _columns(stream), below) if stream.isatty() else text, file=stream)


def _columns(terminal: TextIO) -> int:
    """Of this one: standard output may be a file."""
    if terminal is sys.stdout or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return os.get_terminal_size(terminal.fileno()).columns or shutil.get_terminal_size().columns


def print_problems(problems: Sequence[tuple[str, str]], where: str = "place") -> None:
    """Print one row for each: ``where`` it is, and what is wrong there."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column(where, overflow="fold")
    table.add_column("problem", overflow="fold", ratio=2)
    for place, text in problems:
        table.add_row(Text(printable(place)), Text(printable(text)))
    Console().print(table)


@contextmanager
def bytes_bar(title: str, total: int) -> Iterator[Advance]:
    """A bar for work that is counted in bytes, of which there are ``total``."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def share_bar(title: str) -> Iterator[ShowShare | None]:
    """A bar for work of which a share is done; None where it is not watched."""
    if not sys.stderr.isatty():
        yield None
        return
    with _worded_bar(title) as show:
        yield lambda share, text: show(share, 1.0, text)


@contextmanager
def steps_bar(title: str, *, quiet: bool = False) -> Iterator[ShowSteps]:
    """A bar for work in steps; with ``quiet`` there is none."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total, _text: None
        return
    with _worded_bar(title) as show:
        yield show


@contextmanager
def _worded_bar(title: str) -> Iterator[Callable[[float, float, str], None]]:
    """A bar with what is being done beside it, which goes on in further lines where it is long."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    whole = Column(no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}", markup=False, table_column=whole),
        BarColumn(bar_width=24, table_column=whole.copy()),
        TextColumn("{task.fields[step]}", markup=False, table_column=Column(overflow="fold")),
        TimeElapsedColumn(table_column=whole.copy()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(printable(title), total=None, step="")
        yield lambda done, total, text: bars.update(
            task, completed=done, total=total, step=Text(printable(text)).plain, refresh=True
        )
