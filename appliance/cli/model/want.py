"""Another of the versions that a store holds is wanted.

Apart from going back, which reads no model and is to be quick.
"""

from __future__ import annotations

import argparse
from typing import Final

from appliance.cli import store_session
from appliance.cli.command_table import Command
from appliance.cli.failure import Exit, printable
from appliance.cli.model import golden_loss, interface_change, wait


def _add_want(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME/VERSION", help="what to serve")
    store_session.add_arguments(parser)
    wait.add_arguments(parser)
    interface_change.add_argument(parser)


def _want(arguments: argparse.Namespace) -> int:
    """Want it."""
    name, number = store_session.numbered(arguments.model)
    wait.check_reachable(arguments)
    with store_session.writing(arguments) as store:
        before = store.catalog
        allowed = arguments.allow_interface_change
        store.want(name, number, store_session.wall_ms(), interface_change=allowed)
        changed = store.catalog.model(name) != before.model(name)
        again = store_session.ask_again(store, before, arguments.state_dir, name, number, order=True)
        catalog = store.catalog
    already = (
        " already; it failed here and is to be tried again" if again else " already; nothing was changed"
    )
    print(f"{printable(arguments.model)} is wanted{'' if changed else already}", flush=True)
    interface_change.tell(arguments, before, catalog, name, number)
    golden_loss.tell(before, catalog, name, number)
    store_session.tell_held(arguments.state_dir, name)
    wait.wait_for(arguments, {name: number}, catalog.generation)
    return Exit.OK


WANT: Final = Command(
    about="""\
Have an installed version served in the place of the one that is; a running 'serve' proves it first, unless it was
proven on this box before: then it takes over at once.

One that failed on this box is tried again. One that clients of what serves cannot talk to is held back: its inputs or
outputs are others. With --allow-interface-change it goes live.
""",
    add_arguments=_add_want,
    run=_want,
)
