"""A bar on the terminal for work that is counted in bytes; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


def _ignored(count: int) -> None:
    pass


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Advance]:
    """Gives what is to be told how many bytes were done since it was told last. The bar is on standard error, if that
    is a terminal, and is gone when the work is done."""
    if not sys.stderr.isatty():
        yield _ignored
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
