"""What a running appliance serves and does: once (``status``), or again and again (``top``)."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Final, Self

from appliance.cli import endpoint
from appliance.cli.activity import Interval, between
from appliance.cli.arguments import check_known
from appliance.cli.command_table import Command
from appliance.cli.failure import Exit
from appliance.cli.numbers import seconds
from appliance.cli.snapshot import Snapshot, parse
from appliance.cli.status_source import StatusSource

Show = Callable[[Interval], None]
FRAME_LINES = 2
"""Lines of a screen beside what is shown: the help, the cursor's."""


def _add_status(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names", metavar="NAME[/VERSION]", nargs="*", help="what to show (default: all models)"
    )
    endpoint.add_arguments(parser)
    parser.add_argument("--workers", action="store_true", help="show the worker processes, too")
    parser.add_argument("--json", action="store_true", help="print the document that /status.json gives")


def _check_known(names: Sequence[str], snapshot: Snapshot) -> None:
    """Fail for the first of ``names`` that is neither a model nor a version; near ones are told of its own kind."""
    for name in names:
        known = {model.key if "/" in name else model.name for model in snapshot.models}
        check_known((name,), known)


def _status(arguments: argparse.Namespace) -> int:
    """Fetch once and show."""
    source = StatusSource(arguments)
    document = source.fetch()
    snapshot = parse(document, source.url)
    _check_known(arguments.names, snapshot)
    if arguments.json:
        sys.stdout.write(document.decode().rstrip() + "\n")
        return Exit.OK
    from appliance.cli.activity_view import view
    from appliance.cli.text_table import output

    output().print(view(between(None, snapshot).only(arguments.names), workers=arguments.workers))
    return Exit.OK


def _add_top(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names", metavar="NAME[/VERSION]", nargs="*", help="what to show (default: all models)"
    )
    endpoint.add_arguments(parser)
    parser.add_argument(
        "--interval",
        type=seconds(0.1, 3600),
        default=1.0,
        metavar="S",
        help="seconds from one look to the next (default 1)",
    )
    parser.add_argument("--workers", action="store_true", help="show the worker processes, too")
    parser.add_argument("--once", action="store_true", help="show one interval and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each interval")


def _top(arguments: argparse.Namespace) -> int:
    """Sample and show until told to stop."""
    source = StatusSource(arguments)
    with ExitStack() as stack:
        live = sys.stdout.isatty() and sys.stdin.isatty() and not arguments.json and not arguments.once
        keys = stack.enter_context(_Keys(live))
        screen = _screen(arguments.workers) if live else _printer(arguments.json, arguments.workers)
        show = stack.enter_context(screen)
        for before, now in _samples(source, keys, arguments):
            show(between(before, now).only(arguments.names).busiest_first())
            if arguments.once:
                break
    return Exit.OK


def _samples(
    source: StatusSource, keys: _Keys, arguments: argparse.Namespace
) -> Iterator[tuple[Snapshot, Snapshot]]:
    before = parse(source.fetch(), source.url)
    _check_known(arguments.names, before)
    while keys.wait(arguments.interval) != "q":
        now = parse(source.fetch(), source.url)
        yield before, now
        before = now


@contextmanager
def _printer(json_wanted: bool, workers: bool) -> Iterator[Show]:
    from appliance.cli.activity_view import as_json, view
    from appliance.cli.text_table import output

    def show(found: Interval) -> None:
        if json_wanted:
            print(json.dumps(as_json(found)), flush=True)
        else:
            output().print(view(found, workers=workers, rates=True))

    yield show


@contextmanager
def _screen(workers: bool) -> Iterator[Show]:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from appliance.cli.activity_view import view

    with Live(screen=True, auto_refresh=False) as live:
        live.update(Text("waiting for the first interval"), refresh=True)

        def show(found: Interval) -> None:
            lines = os.get_terminal_size().lines - FRAME_LINES
            shown = view(found, lines, workers=workers, rates=True)
            live.update(Group(shown, Text("q: quit", style="dim")), refresh=True)

        yield show


class _Keys:
    """Single keys from the terminal, without echo and without waiting for a newline; the terminal is left as it was.
    When not ``active``, standard input is not touched."""

    def __init__(self, active: bool) -> None:
        self._active = active
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._active:
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._active:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The key that was pressed within ``seconds``, lower case, or "" when none was."""
        if not self._active:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)  # noqa: TID251 - its number is low
        return os.read(sys.stdin.fileno(), 64).decode("ascii", "replace")[:1].lower() if ready else ""


STATUS: Final = Command(
    about="""\
Show what a running appliance serves: state, requests since its start, latencies, queues and workers.""",
    add_arguments=_add_status,
    run=_status,
)
TOP: Final = Command(
    about="""\
Watch a running appliance: rates, with those of the last two minutes as bars, latencies, batches, queues and workers
of the last interval. q or Ctrl-C ends it.

Without a terminal it prints one table after the other.
""",
    add_arguments=_add_top,
    run=_top,
)
