"""Make a model directory, as 'serve --models' and 'model pack' read them, from what other people's tools leave behind.

SOURCE is an ONNX file, an entry of a Triton model repository (config.pbtxt and versions), or a folder of a model hub
that holds an ONNX export (model.onnx or onnx/model.onnx). Settings that only say how Triton runs a model are left out
and told; anything else that cannot be served here is reported, all of it at once, and nothing is written then. A model
that is too new for the ONNX Runtime of this machine is imported, for a box may have a later one, with a warning.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from appliance.cli import package_policy
from appliance.cli.arguments import add_output
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.numbers import version_number
from appliance.store.full_disk import FULL, reason_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SOURCE", type=Path, help="ONNX file, Triton entry, or hub folder")
    text = "directory of models that gets the new one (default: models)"
    add_output(parser, text, metavar="DIR", default=Path("models"))
    parser.add_argument("--name", help="name of the model (default: that of SOURCE)")
    parser.add_argument(
        "--version", type=version_number, help="version to make, or to take of a Triton entry (default: all)"
    )
    package_policy.add_repository(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Import, and tell what is otherwise than in the source."""
    from appliance.domain.errors import ArtefactError, ModelInvalid
    from appliance.domain.manifest import NAME_RULE, is_name
    from appliance.tools.packaging.importing import import_model
    from appliance.tools.packaging.source import SourceAbsent

    if arguments.name is not None and not is_name(arguments.name):
        raise CommandFailed(f"--name '{arguments.name}' is not {NAME_RULE}")
    settings = package_policy.repository_of(arguments.config)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        made = import_model(arguments.source, arguments.output, arguments.name, arguments.version, settings)
    except ModelInvalid as error:
        problems = list(map(str, error.problems))
        text = f"'{arguments.source}' cannot be imported:"
        status = Exit.USAGE if isinstance(error, SourceAbsent) else Exit.REFUSED
        raise CommandFailed(text, status, lines=problems) from error
    except ArtefactError as error:
        raise CommandFailed(f"'{arguments.source}' cannot be imported: {error}", Exit.REFUSED) from error
    except OSError as error:
        place = arguments.output if error.errno in FULL else error.filename or arguments.output
        raise CommandFailed(f"'{place}': {reason_of(error, place)}") from error
    for warning in made.warnings:
        print(printable(warning), file=sys.stderr)
    if arguments.json:
        about = {
            "home": str(made.home),
            "versions": made.versions,
            "notes": made.notes,
            "warnings": made.warnings,
        }
        print(json.dumps(about, indent=2))
        return Exit.OK
    versions = ", ".join(map(str, made.versions))
    print(f"{printable(str(made.home))}: version{'s' * (len(made.versions) > 1)} {versions}")
    for note in made.notes:
        print(f"  {printable(note)}")
    return Exit.OK
