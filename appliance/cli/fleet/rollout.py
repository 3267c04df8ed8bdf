"""Rollouts: a version that the controller has go out in waves of groups, by itself."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.session import Controller, read_profile, table, watched
from appliance.cli.fleet.view import Row, add_showing, ago
from appliance.cli.numbers import natural
from appliance.cli.terminal import print_text
from appliance.domain.manifest import NAME_RULE, is_name
from appliance.domain.quantity import counted

ACTIONS: Final = ("halt", "resume", "back", "stop")
LIMITS: Final = ("stay_s", "share", "allow")
TITLES: Final = ("rollout", "state", "wave", "there", "coming", "unheard", "held", "failed", "groups")
SHOWN: Final = 10
"""Rollouts that are listed: those that are over are many after a while."""
OVER: Final = ("done", "taken back", "stopped")


def _run(arguments: argparse.Namespace) -> int:
    """Begin a rollout, or have something done with the one of a model."""
    model, mark, number = arguments.model.partition("=")
    actions = [each for each in ACTIONS if getattr(arguments, each)]
    if not is_name(model):
        raise CommandFailed(f"'{model}' is no model: {NAME_RULE}")
    if mark:
        return _start(arguments, model, number)
    if len(actions) != 1 or arguments.wave or arguments.allow_interface_change:
        raise CommandFailed(
            "say MODEL=VERSION and --wave to begin a rollout, or MODEL and one of --halt, --resume, --back and --stop"
        )
    (action,) = actions
    said = {name: getattr(arguments, name) for name in LIMITS if getattr(arguments, name) is not None}
    if said and action != "resume":
        raise CommandFailed(
            "--stay, --share and --allow are for a rollout that begins or goes on: see --resume"
        )
    body = said if action == "resume" else None
    return _say(arguments, Controller(read_profile()).post(f"/rollouts/{model}/{action}", body))


def _start(arguments: argparse.Namespace, model: str, number: str) -> int:
    if arguments.halt or arguments.resume or arguments.stop:
        raise CommandFailed("--halt, --resume and --stop are for a rollout that is there: give MODEL alone")
    if not (number.isascii() and number.isdecimal() and int(number[:20])):
        raise CommandFailed(f"'{arguments.model}' is no MODEL=VERSION")
    body: dict[str, Any] = {
        "model": model,
        "version": int(number[:20]),
        "waves": [wave.split(",") for wave in arguments.wave],
        "back": arguments.back,
        "interface_change": arguments.allow_interface_change,
    }
    body |= {name: getattr(arguments, name) for name in LIMITS if getattr(arguments, name) is not None}
    wrong = [group for wave in body["waves"] for group in wave if not is_name(group)]
    if wrong:
        raise CommandFailed(f"no groups are called so: {', '.join(map(repr, wrong))}; {NAME_RULE}")
    return _say(arguments, Controller(read_profile()).post("/rollouts", body))


def _say(arguments: argparse.Namespace, found: Any) -> int:
    """Say what it is at now, to a person or a program."""
    if arguments.json:
        print(json.dumps(found), flush=True)
    else:
        print_text(printable(f"{_title(found)}: {_standing(found)}"))
    return Exit.OK


def _list(arguments: argparse.Namespace) -> int:
    """Show them, the newest last."""
    controller = Controller(read_profile())

    def show() -> None:
        found = controller.get("/rollouts")
        if arguments.json:
            print(json.dumps(found, indent=None if arguments.watch else 2))
            return
        shown = [each for each in found if each["state"] not in OVER or each in found[-SHOWN:]]
        notes = [line for each in shown for line in _notes(each)]
        if left := len(found) - len(shown):
            notes.append(f"and {left} before that are over; --json has them")
        table(TITLES, [row for each in shown for row in _rows(each)], notes)

    return watched(show, watch=arguments.watch)


def _rows(rollout: Any) -> Iterator[Row]:
    """A row for each wave; what is of the rollout stands in its first one."""
    for number, wave in enumerate(rollout["waves"]):
        of_all = (_title(rollout), rollout["state"]) if not number else ("", "")
        others = [wave[each] for each in ("unheard", "held", "refused")]
        counts = (_there(wave), wave["serving"] + wave["coming"], *others) if wave["began_ms"] else ("-",) * 5
        yield *of_all, f"{number + 1}: {_at(wave)}", *counts, ", ".join(wave["groups"])


def _title(rollout: Any) -> str:
    return f"{rollout['number']} {rollout['model']}/{rollout['version']}"


def _at(wave: Any) -> str:
    """What a wave is at, and since when."""
    if not wave["began_ms"]:
        return "waits"
    return f"done {ago(wave['done_ms'])} ago" if wave["done_ms"] else f"began {ago(wave['began_ms'])} ago"


def _there(wave: Any) -> str:
    """How many are there of those that count."""
    count = sum(wave[each] for each in ("there", "serving", "coming", "unheard"))
    return f"{wave['there']:,} of {count:,}"


def _notes(rollout: Any) -> Iterator[str]:
    """What the rows have no room for: why it is as it is, and who refused."""
    if rollout["state"] not in OVER:
        yield f"{_title(rollout)}: {_standing(rollout)}"
    elif rollout["reason"]:
        yield f"{_title(rollout)}: {rollout['state']} {ago(rollout['since_ms'])} ago: {rollout['reason']}"
    for each in rollout["failed"]:
        yield f"{each['device']}: {each['phase']}: {each['reason']}"
    refused = sum(wave["refused"] for wave in rollout["waves"])
    if (more := refused - len(rollout["failed"])) > 0:
        yield f"and {more:,} more; 'appliance fleet devices --not-there' shows all"


def _standing(rollout: Any) -> str:
    """What it is at, why, and what can be done."""
    waves = rollout["waves"]
    begun = [wave for wave in waves if wave["began_ms"]]
    where = f"in wave {len(begun)} of {len(waves)}"
    why = f": {rollout['reason']}" if rollout["reason"] else ""
    model = rollout["model"]
    match rollout["state"]:
        case "running":
            needs = f"{rollout['share']} % are to serve it for {rollout['stay_s']} s"
            return f"runs {where}; {needs}, {counted(rollout['allow'], 'device')} may refuse it"
        case "halted":
            rest = f"'appliance fleet rollout {model}' with --resume, --back or --stop says how it goes on"
            return f"halted {where}{why}; {rest}"
        case "taken back":
            return f"taken back {where}{why}; its groups are wished what they were before"
        case "stopped":
            return f"stopped {where}{why}; what it wished stays"
    return f"done; all {counted(len(waves), 'wave')} serve it"


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL[=VERSION]", help="what is to go out; MODEL alone: of its newest rollout"
    )
    parser.add_argument(
        "--wave",
        action="append",
        default=[],
        metavar="GROUP[,GROUP]",
        help="groups that get the version together; once for each wave, the first wave first",
    )
    parser.add_argument(
        "--stay",
        dest="stay_s",
        type=natural(1, 86_400),
        metavar="S",
        help="a wave is done when its devices were heard S seconds after they began to serve the version, and serve it "
        "still; longer than their swap.watch_s (default: 300)",
    )
    parser.add_argument(
        "--share",
        type=natural(1, 100),
        metavar="PERCENT",
        help="so many of a wave have to; those that are held or refused it do not count (default: 100)",
    )
    parser.add_argument(
        "--allow",
        type=natural(0),
        metavar="N",
        help="halt when more than N devices refused it or went back, in all waves together (default: 0)",
    )
    parser.add_argument(
        "--allow-interface-change",
        action="store_true",
        help="have it go live although clients of what serves cannot talk to it",
    )
    parser.add_argument("--halt", action="store_true", help="wish for nothing further, until --resume")
    parser.add_argument(
        "--resume", action="store_true", help="go on; --stay, --share and --allow may say otherwise now"
    )
    parser.add_argument(
        "--back",
        action="store_true",
        help="wish again for what was before, as an order; with MODEL=VERSION: if devices have it halt",
    )
    parser.add_argument("--stop", action="store_true", help="end it; what it wished stays")
    parser.add_argument("--json", action="store_true", help="print JSON")


ROLLOUT: Final = Command(
    about="Have a version go out in waves of groups: the controller wishes for it wave by wave, and halts when too "
    "many devices refuse it.",
    add_arguments=_add,
    run=_run,
)
ROLLOUTS: Final = Command(
    about="Show rollouts: which wave they are at, where its devices are, why they halted.",
    add_arguments=add_showing,
    run=_list,
)
