"""Show what happened to the versions of a model on this box: what changed when, how it ended, and why.

Told by the records that 'serve' keeps in the state directory; whether it runs does not matter.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.engine.history import read_history
from appliance.engine.records import Change
from appliance.store.layout import SERVE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME", nargs="?", default="", help="the model (default: all)")
    parser.add_argument(
        "--state-dir", metavar="DIR", type=Path, required=True, help="state directory that holds the store"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Read and show, oldest first."""
    folder = arguments.state_dir / SERVE
    try:
        if not arguments.state_dir.is_dir():
            raise CommandFailed(f"'{arguments.state_dir}' is no directory; give that of 'serve --state-dir'")
        changes = read_history(folder, arguments.model)
    except OSError as error:
        raise CommandFailed(f"'{folder}' cannot be read: {error.strerror}") from error
    if arguments.json:
        print(json.dumps([asdict(change) for change in changes], indent=2))
    elif changes:
        _show(changes)
    else:
        print(f"Nothing happened to {printable(arguments.model) or 'any model'} here yet.")
    return Exit.OK


def _show(changes: tuple[Change, ...]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for title in ("when", "version", "ended", "serving", "stage", "took", "why"):
        table.add_column(title, justify="right" if title == "took" else "left")
    for change in changes:
        table.add_row(
            datetime.fromtimestamp(change.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            Text(printable(f"{change.name}/{change.version}")),
            change.ending.value,
            f"{change.before or '-'} -> {change.after or '-'}",
            change.stage,
            f"{change.took_ms:,} ms",
            Text(printable(change.reason)),
        )
    Console().print(table)
