"""The devices of a fleet as a person is shown them: all or some, how each stands, what is wrong, how many are where.

Who watches has a screen, so those that need somebody come first, and the others are counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, printable
from appliance.cli.fleet.arrival import IN_CONFLICT
from appliance.cli.fleet.session import Controller, read_profile, table, watched
from appliance.cli.fleet.view import Row, add_showing, ago, left_s, settings_text, span, wishes_text
from appliance.cli.help_text import folded
from appliance.cli.numbers import natural
from appliance.cli.terminal import print_text
from appliance.domain.manifest import NAME_RULE, is_name
from appliance.domain.quantity import counted

CONFLICT: Final = f"{IN_CONFLICT}; look why, then 'appliance fleet resume {{name}}'"
TITLES: Final = ("device", "group", "state", "seen", "document", "there", "(knows)", "models")
QUIET_S: Final = 86_400
WORDS: Final = {
    "yes": "there",
    "not yet": "not yet there",
    "held": "held",
    "conflict": "in conflict",
    "revoked": "revoked",
}
"""Where a device is, in the order in which they are counted."""
URGENT: Final = ("conflict", "not yet", "held", "yes", "revoked")
BELOW: Final = "  "


def _add(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("device", metavar="DEVICE", nargs="?", default="", help="only this one")
    which.add_argument("--group", metavar="NAME", default="", help="only those of this group")
    parser.add_argument(
        "--not-there",
        action="store_true",
        help="only those that are not where they were wished, or say that something is wrong",
    )
    parser.add_argument(
        "--silent",
        type=natural(1),
        metavar="S",
        help="only those that were not heard from for S seconds; with --not-there these as well",
    )
    add_showing(parser)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.device and not is_name(arguments.device):
        raise CommandFailed(f"'{arguments.device}' is no device: {NAME_RULE}")
    controller = Controller(read_profile())

    def show() -> None:
        found = _asked(controller, arguments.device, arguments.group)
        shown = _chosen(found, not_there=arguments.not_there, silent_s=arguments.silent)
        summary = _summary(found, arguments.group, arguments.silent or QUIET_S)
        if arguments.json:
            print(json.dumps(shown, indent=None if arguments.watch else 2))
        elif arguments.watch and sys.stdout.isatty():
            _fill_screen(shown, summary)
        else:
            table(TITLES, _rows(shown), _notes(shown))
            if arguments.not_there or arguments.silent or len(found) != 1:
                print_text(summary, below=BELOW)

    return watched(show, watch=arguments.watch)


def _asked(controller: Controller, device: str, group: str) -> list[Any]:
    """The device, those of the group, or all. A controller of an earlier release tells of all where a group is asked
    for."""
    if device:
        return [controller.get(f"/devices/{device}")]
    return [each for each in controller.get("/devices", group=group) if group in ("", each["group"])]


def _chosen(found: list[Any], *, not_there: bool, silent_s: int | None) -> list[Any]:
    """Those that are asked for: all where nothing is said."""
    if not not_there and silent_s is None:
        return found
    silent = [silent_s is not None and _is_silent(each, silent_s) for each in found]
    return [
        each
        for each, is_silent in zip(found, silent, strict=True)
        if is_silent or (not_there and _is_amiss(each))
    ]


def _fill_screen(found: Sequence[Any], summary: str) -> None:
    """As much as the terminal has room for, the most urgent first."""
    found = sorted(found, key=lambda each: (URGENT.index(_place(each)), not _problems(each)))
    size = shutil.get_terminal_size()
    summary_lines = folded(summary, size.columns, BELOW).count("\n") + 1
    table(TITLES, _rows(found), _notes(found), lines=max(size.lines - summary_lines - 1, 1))
    print_text(summary, below=BELOW)


def _summary(found: Sequence[Any], group: str, silent_s: int = QUIET_S) -> str:
    """How many are where."""
    if not found:
        return f"no device is in the group '{printable(group)}'" if group else "no device was enrolled so far"
    places = Counter(map(_place, found))
    where = ", ".join(f"{places[place]:,} {word}" for place, word in WORDS.items() if places[place])
    silent = Counter(each["seen_ms"] > 0 for each in found if _is_silent(each, silent_s))
    how_long = "a day" if silent_s == QUIET_S else span(silent_s)
    quiet = f"; {silent[True]:,} not heard from for {how_long}" if silent[True] else ""
    never = f"; {silent[False]:,} never heard from" if silent[False] else ""
    return f"{counted(len(found), 'device')}: {where}{quiet}{never}"


def _place(device: Any) -> str:
    """Where it is, as ``WORDS`` has it."""
    return str(device["state"]) if device["state"] in ("conflict", "revoked") else _there(device)


def _is_silent(device: Any, silent_s: int) -> bool:
    """Whether it should ask and has not for so long, or never has."""
    return device["state"] != "revoked" and left_s(device["seen_ms"]) < -silent_s


def _is_amiss(device: Any) -> bool:
    """Whether somebody may have to do something about it."""
    return device["state"] != "revoked" and (_place(device) != "yes" or bool(_problems(device)))


def _rows(found: list[Any]) -> list[Row]:
    return [
        (
            each["name"],
            each["group"] or "-",
            each["state"],
            ago(each["seen_ms"]),
            f"{each['told_generation']} of {each['generation']}",
            _there(each),
            each["freshness"] or "-",
            ", ".join(_model_text(model) for model in each["models"]) or "-",
        )
        for each in found
    ]


def _there(device: Any) -> str:
    """Whether it has done what is wanted. One that did all but what a person holds there is not where it was wished:
    who waits for the wish is told the same."""
    if not device["converged"]:
        return "not yet"
    return "held" if any(model["phase"] == "held" for model in device["models"]) else "yes"


def _model_text(model: Any) -> str:
    """What serves, and what is at it."""
    serving = f"{model['name']}/{model['serving'] or '-'}"
    further = f" to {model['wanted']}" if model["wanted"] not in (0, model["serving"]) else ""
    return serving + further + (f" ({model['phase']})" if model["phase"] not in ("", "done") else "")


def _notes(found: list[Any]) -> list[str]:
    """What a row has no room for: why something is not there, and what is wished of the one device alone."""
    return [f"{each['name']}: {text}" for each in found for text in (*_problems(each), *_own(each))]


def _problems(device: Any) -> list[str]:
    reasons = [
        f"{model['name']} {model['phase']}: {model['reason']}"
        for model in device["models"]
        if model["phase"] in ("failed", "refused", "held")
    ]
    conflict = [CONFLICT.format(name=device["name"])] if device["state"] == "conflict" else []
    return [*conflict, *device["problems"], *reasons]


def _own(device: Any) -> list[str]:
    own = [wishes_text(device["wishes"]), settings_text(device["settings"])]
    return [f"for it alone: {', '.join(each for each in own if each)}"] if any(own) else []


DEVICES: Final = Command(
    about="Show the devices of the fleet, and how they stand.", add_arguments=_add, run=_run
)
