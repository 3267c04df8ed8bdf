"""``appliance runtime``: which runtimes are installed, and whether one does what the port demands."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.domain.device_wish import ON_CPU, ON_CUDA
from appliance.domain.errors import ApplianceError, ConfigInvalid
from appliance.runtimes.runtime import lacking, offers, open_runtimes
from appliance.tools.conformance.check import check_runtime
from appliance.tools.conformance.outcome import Outcome


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _list(arguments: argparse.Namespace) -> int:
    found = [(offer, *_found(offer.name)) for offer in offers()]
    if arguments.json:
        told = [{**offer._asdict(), "absent": absent, "lacking": less} for offer, absent, less in found]
        print(json.dumps(told, indent=2))
    else:
        _print(
            ("runtime", "usable", "package", "made by"),
            [
                (each.name, _usable(absent, less), each.package or "built in", each.place)
                for each, absent, less in found
            ],
            [
                absent.removeprefix(f"runtime '{each.name}' ") or (f"on a GPU: {less}" if less else "")
                for each, absent, less in found
            ],
        )
    return Exit.OK


def _usable(absent: str, less: str) -> str:
    if absent:
        return "no"
    return "on the processor" if less else "yes"


def _found(name: str) -> tuple[str, str]:
    """Why a runtime cannot be had here, and why not for models on a GPU; "" where it can."""
    try:
        return "", lacking(open_runtimes([name])[name])
    except ConfigInvalid as error:
        return error.problems[0].text, ""


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the runtime, as 'appliance runtime list' shows it")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="the identity model in the runtime's own format: the directory of its version, or of the model with "
        "that in it (default: an ONNX file, model.onnx)",
    )
    parser.add_argument(
        "--accelerator",
        action="store_true",
        help="try it as a model with KIND_GPU: the worker may use the devices that the runtime names",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _check(arguments: argparse.Namespace) -> int:
    try:
        device = ON_CUDA if arguments.accelerator else ON_CPU
        outcomes = list(check_runtime(arguments.name, arguments.model, device))
    except ApplianceError as error:
        raise CommandFailed(str(error)) from error
    good = all(outcome.holds for outcome in outcomes)
    if arguments.json:
        cases = [asdict(outcome) for outcome in outcomes]
        print(json.dumps({"runtime": arguments.name, "conforms": good, "cases": cases}, indent=2))
    else:
        _show(arguments.name, outcomes)
    return Exit.OK if good else Exit.REFUSED


def _show(name: str, outcomes: Sequence[Outcome]) -> None:
    _print(
        ("case", "holds", "what is demanded"),
        [(each.name, "yes" if each.holds else "NO", each.demands) for each in outcomes],
        [each.text for each in outcomes],
    )
    wrong = sum(not outcome.holds for outcome in outcomes)
    if wrong:
        print(f"runtime '{name}' does not conform: {wrong} of {len(outcomes)} demands do not hold")
    else:
        print(f"runtime '{name}' conforms: all {len(outcomes)} demands hold")


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]], said: Sequence[str] = ()) -> None:
    """A table of rows, each with its longest text at its end; what is ``said`` of a row stands below the table, behind
    the names of all rows it is said of."""
    from rich.text import Text

    from appliance.cli.text_table import Column, TextTable, output

    *firsts, tail = titles
    columns = [Column(title=title, left=True) for title in firsts]
    names: dict[str, list[str]] = {}
    for row, text in zip(rows, said, strict=False):
        names.setdefault(text, []).append(row[0])
    notes = [Text(f"{', '.join(of)}: {printable(text)}") for text, of in names.items() if text]
    cells = [[Text(printable(cell)) for cell in row] for row in rows]
    output().print(TextTable(columns=columns, rows=cells, notes=notes, tail=tail))


LIST = Command(
    about="Show the runtimes that are known here, whether each can be had, and which package it is from. The setting "
    "repository.runtimes says which of them serve.",
    add_arguments=_list_arguments,
    run=_list,
)
CHECK = Command(
    about="Try a runtime on a model that gives back what it is given: inputs a and b, outputs p = a and q = b, all "
    "FP32 of rank 2 with free dimensions. Each demand of the port is tried in a forked process of its own, "
    "and the model is run once in a worker, in its jail. docs/RUNTIMES.md says more of the port.",
    add_arguments=_check_arguments,
    run=_check,
)
