"""Tell that this start came to something: a version that was given up for a rotten root loses its tries.

A unit of the image runs it at each start.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.cli.arguments import configuration_at
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.image.here import this_machine, told
from appliance.image import note
from appliance.image.starts import given_up, settle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file; the fleet is told by way of its state_dir"
    )


def run(arguments: argparse.Namespace) -> int:
    """Settle it. The fleet is told first: where the power goes in between, all of this is done once more. Where it
    cannot be told that is said here alone: the directory for it is the daemon's, and no start hangs on that."""
    with told():
        machine = this_machine()
        gone = given_up(machine)
        if gone is not None:
            text = f"version {gone.version} of the image never came up any more and was given up"
            print(text)
            _tell(arguments.config, text)
        settle(machine, gone)
    return Exit.OK


def _tell(config: Path | None, text: str) -> None:
    try:
        if state := configuration_at(config).state_dir:
            note.leave(Path(state), text)
    except (CommandFailed, OSError) as error:
        print(printable(f"the fleet cannot be told: {error}"))
