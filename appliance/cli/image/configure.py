"""Take a configuration that this box was given: as it is, or not at all.

Units of the image run it for the credential ``appliance.toml`` and for a stick. One with problems is refused; the one
before stays, and the fleet is told so until one is taken. The service has it from its next start on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from appliance import configuration
from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.image.here import told
from appliance.config import loading
from appliance.domain.errors import ArtefactError, ConfigInvalid
from appliance.domain.regular_file import read_file
from appliance.durable import RealFolder, remove_file
from appliance.image import note
from appliance.store.layout import GIVEN

IN_FORCE: Final = Path("/etc/appliance/appliance.toml")
BYTES_MAX: Final = 1 << 20
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
    try:
        data = read_file(str(given), BYTES_MAX, called=f"'{given}'")
    except ArtefactError as error:
        raise _refused(target, [str(error)]) from error
    with told():
        with closing(RealFolder(target.parent)) as folder:
            changed = _take(folder, given, target, data)
        if changed:
            print("the box takes the configuration that it was given")
        _tell(target, "")
    return Exit.OK


def _take(folder: RealFolder, given: Path, target: Path, data: bytes) -> bool:
    """Put ``data`` in the place of what is in force, and say whether it is another. It is checked there: who brings a
    stick may change what is on it meanwhile, and keys are named relative to where the file is. Fails where it is
    refused."""
    draft = f".{target.name}.new"
    try:
        remove_file(folder, draft)
        with folder.create(draft) as file:
            file.write(data)
            file.sync()
        configuration.load_for_next_start(target.parent / draft)
        if target.exists() and target.read_bytes() == data:
            return False
        (target.parent / draft).chmod(READABLE)
        folder.rename(draft, target.name)
        folder.sync_directory("")
    except ConfigInvalid as error:
        named = (replace(problem, file=str(given)) for problem in error.problems)
        raise _refused(target, [str(problem) for problem in named]) from error
    finally:
        remove_file(folder, draft)
    return True


def _refused(target: Path, problems: Sequence[str]) -> CommandFailed:
    """The failure, once the fleet is told."""
    with told():
        why = "; ".join(problems)
        _tell(target, f"the configuration that this box was given is refused, the one before stays: {why}")
    return CommandFailed("the configuration is refused, the one before stays:", Exit.REFUSED, lines=problems)


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
