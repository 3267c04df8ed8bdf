"""Have the version served again that was wanted before the present one; a running 'serve' takes it over at once.

Each call goes one step further back, as far as versions are still installed; those that failed on this box are passed
over.
"""

from __future__ import annotations

import argparse

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable
from appliance.cli.model import wait


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME")
    store_session.add_arguments(parser)
    wait.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Go back."""
    wait.check_reachable(arguments)
    with store_session.writing(arguments) as store:
        model = store.catalog.model(arguments.model)
        left = model.wanted if model else 0
        failed = store_session.failed_here(arguments.state_dir, arguments.model)
        number = store.roll_back(arguments.model, store_session.wall_ms(), failed)
        generation = store.catalog.generation
    print(
        f"{printable(arguments.model)}/{number} is wanted again, in the place of version {left}", flush=True
    )
    way = model.wanted_before if model else ()
    if passed := failed.intersection(way[: way.index(number)]):
        print(f"Passed over, because it failed here: version {', '.join(map(str, sorted(passed)))}")
    wait.wait_for(arguments, {arguments.model: number}, generation)
    return Exit.OK
