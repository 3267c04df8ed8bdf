"""What a store keeps: versions that are pinned stay, those that are uninstalled leave."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from appliance.cli import store_session
from appliance.cli.command_table import Command
from appliance.cli.failure import Exit, printable
from appliance.store.full_disk import bytes_text
from appliance.store.running import read_running


def _add_pin(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``pin`` and ``unpin``."""
    parser.add_argument("model", metavar="NAME/VERSION")
    store_session.add_arguments(parser)


def _pin(arguments: argparse.Namespace, *, pinned: bool) -> int:
    """Pin it, or let it go."""
    name, number = store_session.numbered(arguments.model)
    with store_session.writing(arguments) as store:
        store.pin(name, number, pinned=pinned)
    print(f"{printable(arguments.model)} is {'pinned' if pinned else 'not pinned any more'}")
    return Exit.OK


def _add_uninstall(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME[/VERSION]", help="without a version: all of the model")
    store_session.add_arguments(parser)


def _uninstall(arguments: argparse.Namespace) -> int:
    """Uninstall, and remove the garbage."""
    name, number = store_session.reference(arguments.model)
    with store_session.writing(arguments) as store:
        model = store.catalog.model(name)
        present = [each for each in model.versions if number in (None, each.version)] if model else []
        gone = store.uninstall(name, number)
        in_use = {each.digest for each in read_running(arguments.state_dir)}
    held = ", ".join(f"{name}/{each.version}" for each in present if each.digest in in_use)
    rest = (
        f"; {held} is in use, and goes with the next install, uninstall or 'appliance store gc' after "
        "the daemon has let go of it"
    )
    freed = bytes_text(gone.bytes)
    print(printable(f"{arguments.model} uninstalled: {freed} freed{rest if held else ''}"))
    return Exit.OK


PIN: Final = Command(
    about="""\
Keep a version in the store, wanted or not: it is never evicted to make room, and not uninstalled by mistake.""",
    add_arguments=_add_pin,
    run=partial(_pin, pinned=True),
)
UNPIN: Final = Command(
    about="""\
Let a version be evicted or uninstalled again when nobody wants it.""",
    add_arguments=_add_pin,
    run=partial(_pin, pinned=False),
)
UNINSTALL: Final = Command(
    about="""\
Take a version, or all of a model, out of the store. What a running 'serve' still uses is removed when it is done.""",
    add_arguments=_add_uninstall,
    run=_uninstall,
)
