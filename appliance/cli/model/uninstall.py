"""Take a version, or all of a model, out of the store. What a running 'serve' still uses is removed when it is done."""

from __future__ import annotations

import argparse

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME[/VERSION]", help="without a version: all of the model")
    store_session.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Uninstall, and remove what nobody needs then."""
    name, number = store_session.reference(arguments.model)
    with store_session.writing(arguments) as store:
        gone = store.uninstall(name, number)
    print(f"{printable(arguments.model)} uninstalled: {store_session.bytes_text(gone.bytes)} freed")
    return Exit.OK
