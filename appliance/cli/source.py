"""Where models come from, as the commands that serve or check it are told: a directory of models, or a store."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--models", metavar="DIR", help="directory that holds NAME/VERSION/model.onnx")
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="serve the store in DIR, which 'appliance model install' fills, instead",
    )


def given(arguments: argparse.Namespace) -> dict[str, object]:
    """What of it the command line says, as a table of the configuration."""
    said = {"models": arguments.models, "state_dir": arguments.state_dir}
    return {key: value for key, value in said.items() if value}
