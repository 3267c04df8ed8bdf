"""The devices of a fleet as a person is shown them: all or some, how each stands, what is wrong, how many are where.

Who watches has a screen, so those that need somebody come first, and the others are counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, printable
from appliance.cli.fleet.facts import fact_text
from appliance.cli.fleet.session import Controller, read_profile, table, watched
from appliance.cli.fleet.view import Row, add_showing, ago, now_ms, settings_text, span, wishes_text
from appliance.cli.help_text import folded
from appliance.cli.numbers import natural
from appliance.cli.terminal import print_text
from appliance.domain.manifest import NAME_RULE, is_name
from appliance.domain.quantity import counted
from appliance.fleet.arrival import IN_CONFLICT
from appliance.fleet.inventory import BOOT
from appliance.fleet.places import (
    FAILURES,
    HELD,
    QUIET_S,
    REVOKED,
    Standing,
    Whereabouts,
    census,
    done,
    is_silent,
    whereabouts,
)

CONFLICT: Final = f"{IN_CONFLICT}; look why, then 'appliance fleet resume {{name}}'"
TITLES: Final = ("device", "group", "state", "seen", "document", "there", "(knows)", "models")
THERE: Final = {Whereabouts.THERE: "yes", Whereabouts.NOT_YET: "not yet", Whereabouts.HELD: "held"}
URGENT: Final = (
    Whereabouts.CONFLICT, Whereabouts.NOT_YET, Whereabouts.HELD, Whereabouts.THERE, Whereabouts.REVOKED,
)  # fmt: skip
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
    now = now_ms()
    silent = [silent_s is not None and is_silent(_standing(each), now, silent_s) for each in found]
    return [
        each
        for each, unheard in zip(found, silent, strict=True)
        if unheard or (not_there and _is_amiss(each))
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
    counts = census(map(_standing, found), now_ms(), (silent_s,))
    where = ", ".join(f"{counts.places[each]:,} {each}" for each in Whereabouts if counts.places.get(each))
    how_long = "a day" if silent_s == QUIET_S else span(silent_s)
    quiet = f"; {counts.silent[0]:,} not heard from for {how_long}" if counts.silent[0] else ""
    never = f"; {counts.never:,} never heard from" if counts.never else ""
    return f"{counted(counts.devices, 'device')}: {where}{quiet}{never}"


def _standing(device: Any) -> Standing:
    """The device, as far as it is counted."""
    phases = [model["phase"] for model in device["models"]]
    return Standing(device["state"], device["converged"], phases, device["seen_ms"])


def _place(device: Any) -> Whereabouts:
    return whereabouts(_standing(device))


def _is_amiss(device: Any) -> bool:
    """Whether somebody may have to do something about it."""
    return device["state"] != REVOKED and (_place(device) != Whereabouts.THERE or bool(_problems(device)))


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
    """Whether it has done what is wanted, in few words."""
    return THERE[done(device["converged"], _standing(device).phases)]


def _model_text(model: Any) -> str:
    """What serves, and what is at it."""
    serving = f"{model['name']}/{model['serving'] or '-'}"
    further = f" to {model['wanted']}" if model["wanted"] not in (0, model["serving"]) else ""
    return serving + further + (f" ({model['phase']})" if model["phase"] not in ("", "done") else "")


def _notes(found: list[Any]) -> list[str]:
    """What a row has no room for: why something is not there, and of a device alone what is wished and what it is."""
    return [f"{each['name']}: {text}" for each in found for text in (*_problems(each), *_own(each))]


def _problems(device: Any) -> list[str]:
    reasons = [
        f"{model['name']} {model['phase']}: {model['reason']}"
        for model in device["models"]
        if model["phase"] in FAILURES or model["phase"] == HELD
    ]
    conflict = [CONFLICT.format(name=device["name"])] if device["state"] == "conflict" else []
    return [*conflict, *device["problems"], *reasons]


def _own(device: Any) -> list[str]:
    own = [wishes_text(device["wishes"]), settings_text(device["settings"])]
    alone = [f"for it alone: {', '.join(each for each in own if each)}"] if any(own) else []
    # A controller of an earlier release does not tell.
    facts = [
        f"{name} {fact_text(name, value)}" for name, value in device.get("facts", {}).items() if name != BOOT
    ]
    return [*alone, *([f"made of: {', '.join(facts)}"] if facts else [])]


DEVICES: Final = Command(
    about="Show the devices of the fleet, and how they stand.", add_arguments=_add, run=_run
)
