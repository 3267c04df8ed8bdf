"""Have the version served again that was wanted before the present one; a running 'serve' takes it over at once.

Each call goes one step further back, as far as versions are still installed.
"""

from __future__ import annotations

import argparse

from appliance.cli import store_session
from appliance.cli.failure import Exit, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="NAME")
    store_session.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Go back."""
    with store_session.writing(arguments) as store:
        model = store.catalog.model(arguments.model)
        left = model.wanted if model else 0
        number = store.roll_back(arguments.model, store_session.wall_ms())
    print(f"{printable(arguments.model)}/{number} is wanted again, in the place of version {left}")
    return Exit.OK
