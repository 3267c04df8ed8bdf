"""Keep a version in the store, wanted or not: it is never evicted to make room, and not uninstalled by mistake."""

from __future__ import annotations

import argparse

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME/VERSION")
    store_session.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Pin it."""
    name, number = store_session.numbered(arguments.model)
    with store_session.writing(arguments) as store:
        store.pin(name, number, pinned=True)
    print(f"{printable(arguments.model)} is pinned")
    return Exit.OK
