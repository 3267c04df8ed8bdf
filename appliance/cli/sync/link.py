"""Say what the link is at the moment: 'free', 'metered' (only what fleet.metered names goes over it), or 'off'.

It stays so across restarts until something else is said; a running agent heeds it within seconds. Without a word it
shows what was said.
"""

from __future__ import annotations

import argparse

from appliance.cli.failure import Exit
from appliance.cli.sync import session
from appliance.sync.box import link_state
from appliance.sync.budget import LINK_STATES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("state", choices=LINK_STATES, nargs="?", help="what it is from now on")
    session.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Say it, or show it."""
    if arguments.state:
        with session.failures():
            session.write_link_state(arguments.state_dir, arguments.state)
    print(f"the link is {link_state(arguments.state_dir)}")
    return Exit.OK
