"""Have an installed version served in the place of the one that is; a running 'serve' proves it first.

One that failed on this box is tried again.
"""

from __future__ import annotations

import argparse

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable
from appliance.cli.model import wait


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME/VERSION")
    store_session.add_arguments(parser)
    wait.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Want it."""
    name, number = store_session.numbered(arguments.model)
    wait.check_reachable(arguments)
    with store_session.writing(arguments) as store:
        before = store.catalog
        store.want(name, number, store_session.wall_ms())
        changed = store.catalog is not before
        again = store_session.ask_again(store, before, arguments.state_dir, name, number)
        generation = store.catalog.generation
    already = (
        " already; it failed here and is to be tried again" if again else " already; nothing was changed"
    )
    print(f"{printable(arguments.model)} is wanted{'' if changed else already}", flush=True)
    wait.wait_for(arguments, {name: number}, generation)
    return Exit.OK
