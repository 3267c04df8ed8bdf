"""Show what happened to the versions of a model on this box: what changed when, how it ended, and why.

Told by the records that 'serve' keeps in the state directory; whether it runs does not matter.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from appliance.cli import store_session
from appliance.cli.arguments import check_known
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.numbers import natural
from appliance.core.rollout.records import Change
from appliance.core.rollout.version import Artifact
from appliance.domain.manifest import INT64_MAX
from appliance.domain.moment import moment
from appliance.engine.versions.history import read_history
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import SERVE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME", nargs="?", default="", help="the model (default: all)")
    store_session.add_place(parser, "TOML file that says state_dir")
    parser.add_argument(
        "--after",
        type=natural(0, INT64_MAX),
        default=0,
        metavar="N",
        help="only what has a higher number (see --json) than N",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Read and show, oldest first."""
    folder = arguments.state_dir / SERVE
    try:
        if not arguments.state_dir.is_dir():
            raise CommandFailed(f"'{arguments.state_dir}' is no directory; give that of 'serve --state-dir'")
        changes = read_history(folder, arguments.model, arguments.after)
        if arguments.model and not changes:
            check_known([arguments.model], _known(arguments.state_dir))
    except OSError as error:
        raise CommandFailed(f"'{folder}' cannot be read: {error.strerror}") from error
    if arguments.json:
        print(json.dumps([asdict(change) for change in changes], indent=2))
    elif changes:
        _show(changes)
    else:
        print(f"Nothing happened to {printable(arguments.model) or 'any model'} here yet.")
    return Exit.OK


def _known(state: Path) -> set[str]:
    """Models that something happened to, or that are installed."""
    with store_session.told():
        catalog = read_catalog(state)
    installed = catalog.models if catalog is not None else ()
    return {each.name for each in read_history(state / SERVE)} | {each.name for each in installed}


def _show(changes: tuple[Change, ...]) -> None:
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable, output

    columns = (
        *(Column(title=title, left=True) for title in ("version", "when", "ended", "serving")),
        Column(title="stage", left=True, leaves=2),
        Column(title="took", leaves=1),
    )
    rows = [[Text(printable(word)) for word in _words(change)] for change in changes]
    output().print(TextTable(columns=columns, rows=rows, tail="why"))


def _words(change: Change) -> tuple[str, ...]:
    form = " packed form" if change.artifact is Artifact.PACKED else ""
    return (
        f"{change.name}/{change.version}{form}",
        moment(change.at_ms),
        change.ending.value,
        f"{change.before or '-'} -> {change.after or '-'}",
        change.stage,
        f"{change.took_ms:,} ms",
        change.reason,
    )
