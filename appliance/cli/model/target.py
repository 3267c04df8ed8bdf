"""Where a command writes: one spelling of the option for all, and no file that is there is lost by mistake."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.cli.failure import CommandFailed


def add_output(
    parser: argparse.ArgumentParser,
    text: str,
    *,
    metavar: str = "PATH",
    dest: str = "output",
    default: Path | None = None,
) -> None:
    """Declare ``-o``, which may be written out either way."""
    parser.add_argument(
        "-o", "--output", "--out", dest=dest, type=Path, default=default, metavar=metavar, help=text
    )


def free_target(output: Path | None, name: str, *, force: bool) -> Path:
    """The file to write: ``output``, or ``name`` in it if it is a directory, or here. Fails when its directory is not
    there, or when it is there itself, unless that is wanted by ``force``."""
    target = output or Path(name)
    if target.is_dir():
        target = target / name
    if not target.parent.is_dir():
        raise CommandFailed(f"'{target.parent}' is not a directory")
    if target.exists() and not force:
        raise CommandFailed(f"'{target}' is there already; give --force to replace it, or another -o")
    return target
