"""Show what a package holds: what it says of itself, who signed it, files, inputs and outputs, operators, tensors,
golden set. Weights are not read and nothing is judged; 'appliance model verify' does that. What is
found to be wrong all the same is told below, and the status says so.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from appliance.cli import package_policy
from appliance.cli.failure import CommandFailed, Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("package", metavar="PACKAGE", type=Path, help="file NAME-VERSION.model")
    package_policy.add_arguments(parser)
    parser.add_argument(
        "--tensors",
        type=int,
        default=20,
        metavar="N",
        help="how many tensors, the largest first (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all tensors")


def run(arguments: argparse.Namespace) -> int:
    """Show it."""
    from appliance.domain.errors import PackageInvalid
    from appliance.package.verification import inspect_package

    try:
        found = inspect_package(arguments.package, package_policy.policy_of(arguments))
    except PackageInvalid as error:
        problems = list(map(str, error.problems))
        raise CommandFailed(f"'{arguments.package}' is no package:", Exit.REFUSED, lines=problems) from error
    except OSError as error:
        raise CommandFailed(f"'{arguments.package}' cannot be read: {error.strerror}") from error
    from appliance.cli import text_table
    from appliance.cli.package_view import as_json, view

    if arguments.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        text_table.output().print(view(found, arguments.tensors))
    return Exit.REFUSED if found.problems else Exit.OK
