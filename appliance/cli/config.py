"""Check a configuration file, or show the configuration in force: the defaults with what a file says instead.

Checking asks this machine too, as serving does: the model directory, the log's directory and the CPUs must be there.
What 'serve' is told on its command line to serve, 'check' is told the same way.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance import configuration
from appliance.cli import source
from appliance.cli.config_listing import as_plain, as_toml
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.config import loading
from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import ConfigInvalid, Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|show")
    check = actions.add_parser("check", help="report every problem that 'serve' would have with a file here")
    check.add_argument("file", metavar="FILE", type=Path)
    source.add_arguments(check)
    show = actions.add_parser("show", help="print every key with its value, unit and meaning, as TOML")
    show.add_argument("file", metavar="FILE", type=Path, nargs="?")
    show.add_argument("--json", action="store_true", help="print JSON instead of TOML")


def run(arguments: argparse.Namespace) -> int:
    """Check or show."""
    if arguments.action == "check":
        return _check(arguments.file, source.given(arguments))
    return _show(arguments.file, arguments.json)


def _check(file: Path, overrides: Mapping[str, object]) -> int:
    try:
        configuration.load(file, overrides)
    except ConfigInvalid as error:
        _print_problems(file, error.problems)
        return Exit.REFUSED
    print(f"{printable(str(file))}: no problems")
    return Exit.OK


def _show(file: Path | None, json_wanted: bool) -> int:
    try:
        config = loading.load(file) if file else ApplianceConfig()
    except ConfigInvalid as error:
        problems = map(str, error.problems)
        raise CommandFailed("the configuration has problems:", Exit.REFUSED, lines=problems) from error
    print(json.dumps(as_plain(config), indent=2) if json_wanted else as_toml(config), end="")
    return Exit.OK


def _print_problems(file: Path, problems: Sequence[Problem]) -> None:
    print(f"{printable(str(file))}: {len(problems)} problem{'s' * (len(problems) > 1)}", flush=True)
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("key", no_wrap=True)
    table.add_column("problem")
    for problem in problems:
        table.add_row(Text(printable(problem.key) or "-"), Text(printable(problem.text)))
    Console().print(table)
