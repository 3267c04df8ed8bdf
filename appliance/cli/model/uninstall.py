"""Take a version, or all of a model, out of the store. What a running 'serve' still uses is removed when it is done."""

from __future__ import annotations

import argparse

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable
from appliance.store.running import read_running


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME[/VERSION]", help="without a version: all of the model")
    store_session.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Uninstall, and remove what nobody needs then."""
    name, number = store_session.reference(arguments.model)
    with store_session.writing(arguments) as store:
        model = store.catalog.model(name)
        present = [each for each in model.versions if number in (None, each.version)] if model else []
        gone = store.uninstall(name, number)
        in_use = {each.digest for each in read_running(arguments.state_dir).versions}
    held = ", ".join(f"{name}/{each.version}" for each in present if each.digest in in_use)
    rest = (
        f"; {held} is in use, and goes with the next install, uninstall or 'appliance store gc' after "
        "the daemon has let go of it"
    )
    freed = store_session.bytes_text(gone.bytes)
    print(printable(f"{arguments.model} uninstalled: {freed} freed{rest if held else ''}"))
    return Exit.OK
