"""Rollouts: a version that the controller has go out in waves of groups, by itself."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from appliance.cli.command_table import Command
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.rollout_view import OVER, TITLES, no_rollout, notes, rollouts_of, rows, standing
from appliance.cli.fleet.session import Controller, read_profile, table, watched
from appliance.cli.fleet.view import add_showing
from appliance.cli.numbers import natural, version_number
from appliance.cli.terminal import print_text
from appliance.domain.manifest import NAME_RULE, is_name
from appliance.fleet.rollout import State

ACTIONS: Final = ("halt", "resume", "back", "stop")
LIMITS: Final = ("stay_s", "share", "allow")
SHOWN: Final = 10
"""Rollouts that are listed: those that are over are many after a while."""


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
        print_text("\n".join(map(printable, (standing(found), *_next(found)))))
    return Exit.OK


def _next(rollout: Any) -> Iterator[str]:
    """Where to look after what was said."""
    if rollout["state"] == State.RUNNING:
        yield "'appliance fleet rollouts --watch' shows where its devices are"
    elif rollout["state"] == State.BACK:
        yield "'appliance fleet devices --not-there' names those that are not back yet"


def _list(arguments: argparse.Namespace) -> int:
    """Show them, or those of a model, the newest last; or wait for its newest one."""
    from appliance.cli.fleet import rollout_waiting

    rollout_waiting.check(arguments)
    profile = read_profile()
    if arguments.wait:
        return rollout_waiting.wait_for(arguments, profile)
    controller = Controller(profile)

    def show() -> None:
        found = rollouts_of(controller, arguments.model)
        if arguments.model and not found:
            raise no_rollout(arguments.model)
        if arguments.json:
            print(json.dumps(found, indent=None if arguments.watch else 2))
            return
        newest = found[-(1 if arguments.watch else SHOWN) :]
        shown = [each for each in found if each["state"] not in OVER or each in newest]
        below = [line for each in shown for line in notes(each, newest=each is found[-1])]
        if left := len(found) - len(shown):
            below.append(f"and {left} before that are over; --json has them")
        table(TITLES, [row for each in shown for row in rows(each)], below)

    return watched(show, watch=arguments.watch)


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


def _add_list(parser: argparse.ArgumentParser) -> None:
    from appliance.cli.fleet import rollout_waiting

    parser.add_argument("model", metavar="MODEL", nargs="?", default="", help="only those of this model")
    add_showing(parser)
    rollout_waiting.add_arguments(parser)


ROLLOUT: Final = Command(
    about="Have a version go out in waves of groups: the controller wishes for it wave by wave, and halts when too "
    "many devices refuse it.",
    add_arguments=_add,
    run=_run,
)
ROLLOUTS: Final = Command(
    about="Show rollouts: which wave they are at, where its devices are, why they halted; or wait for one to be over.",
    add_arguments=_add_list,
    run=_list,
)
