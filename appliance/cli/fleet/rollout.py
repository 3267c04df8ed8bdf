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
from appliance.cli.numbers import natural, version_number
from appliance.cli.terminal import print_text
from appliance.domain.manifest import NAME_RULE, is_name
from appliance.domain.quantity import counted

ACTIONS: Final = ("halt", "resume", "back", "stop")
LIMITS: Final = ("stay_s", "share", "allow")
TITLES: Final = ("rollout", "state", "wave", "there", "coming", "unheard", "held", "failed", "groups")
SHOWN: Final = 10
"""Rollouts that are listed: those that are over are many after a while."""
GROUPS_SHOWN: Final = 8
OVER: Final = ("done", "taken back", "stopped")


def _run(arguments: argparse.Namespace) -> int:
    """Begin a rollout, or have something done with the one of a model."""
    model, mark, number = arguments.model.partition("=")
    actions = [each for each in ACTIONS if getattr(arguments, each)]
    if not is_name(model):
        raise CommandFailed(f"'{model}' is no model: {NAME_RULE}")
    if mark:
        return _start(arguments, model, number)
    if arguments.wave or arguments.allow_interface_change or arguments.downgrade:
        raise CommandFailed(
            "--wave, --allow-interface-change and --downgrade are for a rollout that begins: give MODEL=VERSION"
        )
    if len(actions) != 1:
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
    try:
        version = version_number(number)
    except argparse.ArgumentTypeError as error:
        raise CommandFailed(f"'{arguments.model}' is no MODEL=VERSION") from error
    body: dict[str, Any] = {
        "model": model,
        "version": version,
        "waves": [wave.split(",") for wave in arguments.wave],
        "back": arguments.back,
        "interface_change": arguments.allow_interface_change,
        "downgrade": arguments.downgrade,
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
        print_text("\n".join(map(printable, (_standing(found), *_next(found)))))
    return Exit.OK


def _next(rollout: Any) -> Iterator[str]:
    """Where to look after what was said."""
    if rollout["state"] == "running":
        yield "'appliance fleet rollouts --watch' shows where its devices are"
    elif rollout["state"] == "taken back":
        yield "'appliance fleet devices --not-there' names those that are not back yet"


def _list(arguments: argparse.Namespace) -> int:
    """Show them, the newest last."""
    controller = Controller(read_profile())

    def show() -> None:
        found = controller.get("/rollouts")
        if arguments.json:
            print(json.dumps(found, indent=None if arguments.watch else 2))
            return
        newest = found[-(1 if arguments.watch else SHOWN) :]
        shown = [each for each in found if each["state"] not in OVER or each in newest]
        notes = [line for each in shown for line in _notes(each, newest=each is found[-1])]
        if left := len(found) - len(shown):
            notes.append(f"and {left} before that are over; --json has them")
        table(TITLES, [row for each in shown for row in _rows(each)], notes)

    return watched(show, watch=arguments.watch)


def _rows(rollout: Any) -> Iterator[Row]:
    """A row for each wave; what is of the rollout stands in its first one."""
    for number, wave in enumerate(rollout["waves"]):
        of_all = (f"{rollout['number']} {_what(rollout)}", rollout["state"]) if not number else ("", "")
        others = [wave[each] for each in ("unheard", "held", "refused")]
        counts = (_there(wave), wave["serving"] + wave["coming"], *others) if wave["began_ms"] else ("-",) * 5
        yield *of_all, f"{number + 1}: {_at(rollout, wave)}", *counts, _groups(wave["groups"])


def _groups(names: list[str]) -> str:
    """Their names, as far as they are few."""
    left = len(names) - GROUPS_SHOWN
    return ", ".join(names[:GROUPS_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _what(rollout: Any) -> str:
    return f"{rollout['model']}/{rollout['version']}"


def _at(rollout: Any, wave: Any) -> str:
    """What a wave is at."""
    if not wave["began_ms"]:
        return "waits" if rollout["state"] not in OVER else "-"
    if wave["done_ms"]:
        return "done"
    return f"for {ago(wave['began_ms'])}" if rollout["state"] == "running" else "not done"


def _there(wave: Any) -> str:
    """How many are there of those that count."""
    return f"{wave['there']:,} of {_counting(wave):,}"


def _counting(wave: Any) -> int:
    """Devices of which a share is to be there."""
    count: int = sum(wave[each] for each in ("there", "serving", "coming", "unheard"))
    return count


def _notes(rollout: Any, *, newest: bool) -> Iterator[str]:
    """What the rows have no room for: why it is as it is, who is looked for where, and who refused. Of those that are
    over, only the ``newest`` has all."""
    if newest or rollout["state"] != "done":
        yield _standing(rollout)
    if not newest and rollout["state"] in OVER:
        return
    for number, wave in enumerate(rollout["waves"], start=1):
        yield from _wave_notes(rollout, number, wave)
    for each in rollout["failed"]:
        yield f"{each['device']}: {each['phase']}: {each['reason']}"
    refused = sum(wave["refused"] for wave in rollout["waves"])
    if (more := refused - len(rollout["failed"])) > 0:
        yield f"and {more:,} more; 'appliance fleet devices --not-there' shows all"


def _wave_notes(rollout: Any, number: int, wave: Any) -> Iterator[str]:
    """Who of a wave is not there, by which command that shows; what the counts of its row leave out; and that it waits
    in vain."""
    of, away = f"of wave {number}", wave["coming"] + wave["unheard"]
    left_out = wave["held"] + wave["refused"] + wave["apart"]
    if away and rollout["state"] == "running" and not wave["done_ms"]:
        group = f" --group {wave['groups'][0]}" if len(wave["groups"]) == 1 else ""
        are = "is" if away == 1 else "are"
        yield f"{counted(away, 'device')} {of} {are} not there: 'appliance fleet devices{group} --not-there' names them"
    if wave["apart"]:
        have = "has a wish of its" if wave["apart"] == 1 else "have wishes of their"
        count = "does" if wave["apart"] == 1 else "do"
        yield f"{counted(wave['apart'], 'device')} {of} {have} own for {rollout['model']}, and {count} not count"
    if rollout["state"] == "running" and left_out and not _counting(wave):
        yield (
            f"no device {of} can bring it on: each is held, refused it or has a wish of its own; mend that, or "
            f"'appliance fleet rollout {rollout['model']}' with --back or --stop"
        )


def _standing(rollout: Any) -> str:
    """What it is at, why, and what can be done."""
    of = f"rollout {rollout['number']} of {_what(rollout)}"
    begun = sum(wave["began_ms"] > 0 for wave in rollout["waves"])
    where = f"in wave {begun} of {len(rollout['waves'])}"
    why = f"{ago(rollout['since_ms'])} ago: {rollout['reason']}"
    match rollout["state"]:
        case "running":
            may = f"{rollout['allow']:,} may" if rollout["allow"] else "none may"
            return f"{of} runs {where}: {rollout['share']} % are to serve it for {rollout['stay_s']} s, {may} refuse it"
        case "halted":
            rest = f"'appliance fleet rollout {rollout['model']}' with --resume, --back or --stop"
            return f"{of} halted {where} {why}; {rest} says how it goes on"
        case "done":
            return f"{of} was done {ago(rollout['since_ms'])} ago: enough devices of each wave serve it"
    return f"{of} was {rollout['state']} {where} {why}"


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
    parser.add_argument(
        "--downgrade",
        action="store_true",
        help="have it taken although a newer version was wanted before; else devices that lack it refuse it",
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
