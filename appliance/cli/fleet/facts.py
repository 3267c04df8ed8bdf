"""What the boxes of a fleet are made of, as a person is shown it: who runs which release, where the GPUs are.

A box says it at each start; of one that was not heard from since it is what it said last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.session import Controller, read_profile, table
from appliance.cli.fleet.view import Row
from appliance.domain.quantity import bytes_text, counted

NAMES_SHOWN: Final = 20
VALUE_CHARACTERS: Final = 50
"""Of a value beside the names of those that have it."""
BYTES: Final = "_bytes"
"""How the names of facts end that are counts of bytes."""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "fact",
        metavar="FACT",
        nargs="?",
        default="",
        help="only this one, and which devices have which value",
    )
    parser.add_argument("--group", metavar="NAME", default="", help="only devices of this group")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(arguments: argparse.Namespace) -> int:
    found = Controller(read_profile()).get("/facts", fact=arguments.fact, group=arguments.group)
    if arguments.fact and not found:
        raise CommandFailed(
            f"no device has told of '{arguments.fact}'; 'appliance fleet facts' shows what they tell",
            Exit.REFUSED,
        )
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif arguments.fact:
        table((printable(arguments.fact), "devices", "which"), _holder_rows(found[0]))
    else:
        table(("fact", "devices", "is"), [row for fact in found for row in _count_rows(fact)])
    return Exit.OK


def fact_text(name: str, value: str) -> str:
    """The value as people read it."""
    return bytes_text(int(value)) if name.endswith(BYTES) and value.isdecimal() else value


def _count_rows(fact: Any) -> list[Row]:
    rows: list[Row] = [
        (fact["name"], f"{each['count']:,}", fact_text(fact["name"], each["value"]))
        for each in fact["values"]
    ]
    if left := fact["different"] - len(fact["values"]):
        among = fact["devices"] - sum(each["count"] for each in fact["values"])
        rows.append((fact["name"], f"{among:,}", f"({counted(left, 'further value')})"))
    return rows


def _holder_rows(fact: Any) -> list[Row]:
    return [
        (_short(fact_text(fact["name"], each["value"])), f"{each['count']:,}", _names(each["devices"]))
        for each in fact["values"]
    ]


def _short(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS else value[: VALUE_CHARACTERS - 1] + "…"


def _names(devices: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(devices) - NAMES_SHOWN
    return ", ".join(devices[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


FACTS: Final = Command(
    about="Show what the devices of the fleet are made of: releases, kernels, processors, GPUs.",
    add_arguments=_add,
    run=_run,
)
