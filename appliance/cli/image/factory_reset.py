"""Have the next start erase what this box keeps: models, enrolment, configuration, logs. The image stays as it is."""

from __future__ import annotations

import argparse

from appliance.cli.failure import Exit
from appliance.cli.image.here import this_machine, told
from appliance.image import reset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--keep-models", action="store_true", help="keep the store of models")


def run(arguments: argparse.Namespace) -> int:
    """Leave the request."""
    this_machine()
    with told():
        reset.ask(keep_models=arguments.keep_models)
    what = "all but the models" if arguments.keep_models else "all"
    print(f"the next start erases {what} that this box keeps")
    return Exit.OK
