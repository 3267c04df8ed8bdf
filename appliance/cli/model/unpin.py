"""Let a version be evicted or uninstalled again when nobody wants it."""

from __future__ import annotations

import argparse

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME/VERSION")
    store_session.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Unpin it."""
    name, number = store_session.numbered(arguments.model)
    with store_session.writing(arguments) as store:
        store.pin(name, number, pinned=False)
    print(f"{printable(arguments.model)} is not pinned any more")
    return Exit.OK
