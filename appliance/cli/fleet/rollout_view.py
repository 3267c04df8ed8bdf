"""Rollouts as a person is shown them: a row for each wave, and lines below the table for what it has no room for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.fleet.session import Controller
from appliance.cli.fleet.view import Row, ago, left_s, span
from appliance.domain.quantity import counted
from appliance.fleet.messages import MessageInvalid
from appliance.fleet.rollout import OPEN, State
from appliance.fleet.told import Rollout, rollouts_in

TITLES: Final = ("rollout", "state", "wave", "there", "coming", "unheard", "held", "failed", "groups")
PLACES: Final = ("there", "serving", "coming", "unheard", "held", "refused", "apart")
GROUPS_SHOWN: Final = 8
OVER: Final = frozenset(State) - OPEN


def rollouts_of(controller: Controller, model: str) -> list[Rollout]:
    """Those of the model, or all where it is "", the oldest first. Raises CommandFailed."""
    try:
        found = rollouts_in(controller.get("/rollouts", model=model))
    except MessageInvalid as error:
        raise controller.stranger() from error
    # A controller of an earlier release tells of all models.
    return [each for each in found if model in ("", each["model"])]


def no_rollout(model: str) -> CommandFailed:
    """What is told where there is none of the model."""
    return CommandFailed(f"there is no rollout of '{model}'", Exit.REFUSED)


def rows(rollout: Any) -> Iterator[Row]:
    """A row for each wave; what is of the rollout stands in its first one."""
    for number, wave in enumerate(rollout["waves"]):
        of_all = (f"{rollout['number']} {_what(rollout)}", rollout["state"]) if not number else ("", "")
        others = [wave[each] for each in ("unheard", "held", "refused")]
        counts = (_there(wave), wave["serving"] + wave["coming"], *others) if _is_seen(wave) else ("-",) * 5
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
    return f"for {ago(wave['began_ms'])}" if rollout["state"] == State.RUNNING else "not done"


def _is_seen(wave: Any) -> bool:
    """Whether somebody has looked where its devices are: a wave without any cannot begin."""
    return wave["began_ms"] > 0 and any(wave[each] for each in PLACES)


def _there(wave: Any) -> str:
    """How many are there of those that count."""
    return f"{wave['there']:,} of {_counting(wave):,}"


def _counting(wave: Any) -> int:
    """Devices of which a share is to be there."""
    count: int = sum(wave[each] for each in ("there", "serving", "coming", "unheard"))
    return count


def notes(rollout: Any, *, newest: bool) -> Iterator[str]:
    """What the rows have no room for: why it is as it is, who is looked for where, and who refused. Of those that are
    over, only the ``newest`` has all."""
    if newest or rollout["state"] != State.DONE:
        yield standing(rollout)
    if not newest and rollout["state"] in OVER:
        return
    for number, wave in enumerate(rollout["waves"], start=1):
        yield from _wave_notes(rollout, number, wave)
    yield from failed_lines(rollout)


def _wave_notes(rollout: Any, number: int, wave: Any) -> Iterator[str]:
    """Who of a wave is not there, by which command that shows; what the counts of its row leave out; and that it waits
    in vain."""
    of, away = f"of wave {number}", wave["coming"] + wave["unheard"]
    if wave["serving"] and rollout["state"] == State.RUNNING and not wave["done_ms"]:
        serve = "serves" if wave["serving"] == 1 else "serve"
        yield (
            f"{counted(wave['serving'], 'device')} {of} {serve} it, not for {rollout['stay_s']} s yet: "
            f"{_due(wave, rollout['stay_s'])}"
        )
    left_out = wave["held"] + wave["refused"] + wave["apart"]
    if away and rollout["state"] == State.RUNNING and not wave["done_ms"]:
        group = f" --group {wave['groups'][0]}" if len(wave["groups"]) == 1 else ""
        are = "is" if away == 1 else "are"
        yield f"{counted(away, 'device')} {of} {are} not there: 'appliance fleet devices{group} --not-there' names them"
    if wave["apart"]:
        have = "has a wish of its" if wave["apart"] == 1 else "have wishes of their"
        count = "does" if wave["apart"] == 1 else "do"
        yield f"{counted(wave['apart'], 'device')} {of} {have} own for {rollout['model']}, and {count} not count"
    if rollout["state"] == State.RUNNING and left_out and not _counting(wave):
        yield (
            f"no device {of} can bring it on: each is held, refused it or has a wish of its own; mend that, or "
            f"'appliance fleet rollout {rollout['model']}' with --back or --stop"
        )


def _due(wave: Any, stay_s: int) -> str:
    """By when those that serve may count. Clocks of desk and controller may differ: it is never longer than they are
    to stay."""
    one = wave["serving"] == 1
    within_s = math.ceil(min(left_s(wave.get("due_ms", 0)), stay_s))  # an earlier release does not say it
    if within_s > 0:
        return f"{'it' if one else 'the last'} may count in {span(within_s)}"
    return "it counts when heard again" if one else "they count when heard again"


def progress(rollout: Any) -> str:
    """Which wave it is at, and where the devices of that are."""
    begun = [wave for wave in rollout["waves"] if wave["began_ms"]]
    where = f"rollout {rollout['number']} of {_what(rollout)} runs in wave {len(begun)} of {len(rollout['waves'])}"
    if not begun:
        return where
    last = begun[-1]
    if not _is_seen(last):
        return f"{where}, at which nobody has looked yet"
    words = {
        "serving": f"serving for less than {rollout['stay_s']} s",
        "coming": "coming",
        "unheard": "unheard",
        "held": "held",
        "refused": "failed",
    }
    told = [f"{last[key]:,} {word}" for key, word in words.items() if last[key]]
    return ", ".join([f"{where}: {_there(last)} there", *told])


def failed_lines(rollout: Any) -> Iterator[str]:
    """Who refused it, and why, as far as they are named."""
    for each in rollout["failed"]:
        yield f"{each['device']}: {each['phase']}: {each['reason']}"
    refused = sum(wave["refused"] for wave in rollout["waves"])
    if (more := refused - len(rollout["failed"])) > 0:
        yield f"and {more:,} more; 'appliance fleet devices --not-there' shows all"


def standing(rollout: Any) -> str:
    """What it is at, why, and what can be done."""
    of = f"rollout {rollout['number']} of {_what(rollout)}"
    begun = sum(wave["began_ms"] > 0 for wave in rollout["waves"])
    where = f"in wave {begun} of {len(rollout['waves'])}"
    why = f"{ago(rollout['since_ms'])} ago: {rollout['reason']}"
    match rollout["state"]:
        case State.RUNNING:
            may = f"{rollout['allow']:,} may" if rollout["allow"] else "none may"
            return f"{of} runs {where}: {rollout['share']} % are to serve it for {rollout['stay_s']} s, {may} refuse it"
        case State.HALTED:
            rest = f"'appliance fleet rollout {rollout['model']}' with --resume, --back or --stop"
            return f"{of} halted {where} {why}; {rest} says how it goes on"
        case State.DONE:
            return f"{of} was done {ago(rollout['since_ms'])} ago: enough devices of each wave serve it"
    return f"{of} was {rollout['state']} {where} {why}"
