"""Take a configuration that this box was given: as it is, or not at all.

Units of the image run it for the credential ``appliance.toml`` and for a stick. One with problems is refused; the one
before stays, and the fleet is told so until one is taken. The service has it from its next start on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from appliance import configuration
from appliance.cli.arguments import contents
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.image.here import told
from appliance.config import loading
from appliance.domain.errors import ConfigInvalid
from appliance.durable import RealFolder, remove_file
from appliance.image import note
from appliance.store.layout import GIVEN

IN_FORCE: Final = Path("/etc/appliance/appliance.toml")
READABLE: Final = 0o644
"""It is root's, and read by the users of the services."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the configuration that was given")
    parser.add_argument(
        "--config", type=Path, default=IN_FORCE, metavar="FILE", help=f"what it replaces (default {IN_FORCE})"
    )


def run(arguments: argparse.Namespace) -> int:
    """Take it, or tell why not."""
    given, target = arguments.file, arguments.config
    data = contents(given)
    try:
        configuration.load_for_next_start(given)
    except ConfigInvalid as error:
        why = "; ".join(map(str, error.problems))
        with told():
            _tell(
                target, f"the configuration that this box was given is refused, the one before stays: {why}"
            )
        raise CommandFailed(
            "the configuration is refused, the one before stays:",
            Exit.REFUSED,
            lines=map(str, error.problems),
        ) from error
    with told():
        if not target.exists() or target.read_bytes() != data:
            _replace(target, data)
            print("the box takes the configuration that it was given")
        _tell(target, "")
    return Exit.OK


def _replace(target: Path, data: bytes) -> None:
    draft = f".{target.name}.new"
    folder = RealFolder(target.parent)
    try:
        remove_file(folder, draft)
        with folder.create(draft) as file:
            file.write(data)
            file.sync()
        (target.parent / draft).chmod(READABLE)
        folder.rename(draft, target.name)
        folder.sync_directory("")
    finally:
        folder.close()


def _tell(target: Path, text: str) -> None:
    """Have the fleet know, or no longer, by way of the state directory that is in force; there may be none."""
    try:
        state = loading.load(target if target.exists() else None).state_dir
    except ConfigInvalid:
        return
    if not state or not Path(state).is_dir():
        return
    if text:
        note.leave(Path(state), text, GIVEN)
    else:
        note.remove(Path(state), GIVEN)
