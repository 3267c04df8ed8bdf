"""Show which image this machine runs, which others are on its disk, and what the next start takes."""

from __future__ import annotations

import argparse
import json

from appliance.cli.failure import Exit
from appliance.cli.image.here import this_machine
from appliance.image.machine import Machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Look and show."""
    machine = this_machine()
    if arguments.json:
        print(json.dumps(as_json(machine)))
        return Exit.OK
    from rich.table import Table

    from appliance.cli.text_table import output

    table = Table("version", "state", "")
    for entry in machine.entries:
        notes = ["runs"] if entry.version == machine.version else []
        notes += ["the next start takes it"] if entry is machine.next else []
        table.add_row(entry.version, entry.word, ", ".join(notes))
    if machine.entries:
        output().print(table)
    else:
        print(
            f"'{machine.folder}' holds no version: the next start finds none. 'appliance image update' brings one."
        )
    print(f"/var is {'sealed by the TPM' if machine.sealed else 'not sealed'}")
    return Exit.OK


def as_json(machine: Machine) -> dict[str, object]:
    """The same for programs."""
    return {
        "version": machine.version,
        "variant": machine.variant,
        "machine": machine.architecture,
        "sealed": machine.sealed,
        "next": machine.next.version if machine.next else "",
        "versions": [
            {"version": entry.version, "state": entry.word, "left": entry.left, "done": entry.done}
            for entry in machine.entries
        ],
    }
