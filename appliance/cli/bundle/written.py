"""A bundle that a command writes, and where its commands run: on a box, or at a controller."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from appliance.cli import store_session
from appliance.cli.arguments import free_target
from appliance.cli.failure import CommandFailed
from appliance.cli.terminal import bytes_bar
from appliance.fleet.bundle import Index
from appliance.transfer.bundle_writer import Part, Sign, write_directory, write_file


def add_place(parser: argparse.ArgumentParser) -> None:
    """Declare where it is: the state directory of a box, or a controller's directory."""
    store_session.add_place(parser, "TOML file that says state_dir", required=False)
    parser.add_argument(
        "--controller", type=Path, metavar="DIR", help="directory of a controller, in place of a box's"
    )
    before = parser.get_default("settle")
    parser.set_defaults(settle=(*before, partial(_settle)))


def _settle(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if (arguments.state_dir is None) == (arguments.controller is None):
        parser.error(
            "--state-dir (or a --config that says it) is required on a box, --controller at a controller"
        )


def write(target: Path, index: Index, parts: Sequence[Part], sign: Sign, *, force: bool) -> None:
    """Write the bundle, with a bar: into ``target`` if that is a directory, as that file if not."""
    with bytes_bar("writing", sum(each.member.size for each in parts)) as advance:
        if target.is_dir():
            try:
                write_directory(target, index, parts, sign, advance)
            except FileExistsError as error:
                raise CommandFailed(f"'{target}' already holds a bundle; give another directory") from error
        else:
            write_file(free_target(target, target.name, force=force), index, parts, sign, advance)
