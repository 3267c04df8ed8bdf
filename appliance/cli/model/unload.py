"""Have a running appliance serve nothing of a model, over its control socket, until it is loaded again or the appliance
starts anew."""

from __future__ import annotations

import argparse

from appliance.cli.failure import Exit, printable
from appliance.cli.model import wait


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from appliance.cli import control_client

    parser.add_argument("model", metavar="NAME")
    control_client.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Unload."""
    from appliance.cli import control_client

    control_client.unload(arguments.socket, arguments.model, wait.LIMIT_S)
    print(f"{printable(arguments.model)} is not served any more")
    return Exit.OK
