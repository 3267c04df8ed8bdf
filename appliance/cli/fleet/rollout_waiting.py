"""Waiting until the newest rollout of a model is over: the controller is asked again and again, as for a wish.

A rollout goes on however the waiting ends, and by itself whether somebody waits or not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, Final

from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.arrival_view import say
from appliance.cli.fleet.rollout_view import (
    TITLES,
    failed_lines,
    no_rollout,
    notes,
    progress,
    rollouts_of,
    rows,
    standing,
)
from appliance.cli.fleet.session import Controller, Profile, clear_screen, table
from appliance.cli.fleet.waiting import Asking, Outcome
from appliance.cli.model.wait import MOST_S, add_bound, bound_s, check_bound
from appliance.cli.terminal import print_text
from appliance.domain.manifest import NAME_RULE, is_name
from appliance.fleet.rollout import State
from appliance.fleet.told import Rollout

LIMIT_S: Final = MOST_S
"""A wave alone takes as long as its devices are to stay."""
LONGEST_S: Final = 7 * LIMIT_S
ENDS: Final = "Ctrl-C ends the waiting; the rollout goes on"
Show = Callable[[Rollout | None, str], None]
"""Told what the rollout is at, as far as that is known, and why that could not be asked, if so."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare whether and how long to wait."""
    parser.add_argument(
        "--wait",
        action="store_true",
        help="until the newest rollout of MODEL runs no more; --json: one document then",
    )
    add_bound(parser, "with --wait: seconds to wait at most; the rollout goes on", LIMIT_S, LONGEST_S)


def check(arguments: argparse.Namespace) -> None:
    """Fails where words do not go together."""
    check_bound(arguments)
    if arguments.model and not is_name(arguments.model):
        raise CommandFailed(f"'{arguments.model}' is no model: {NAME_RULE}")
    if arguments.wait and arguments.watch:
        raise CommandFailed("--wait and --watch do not go together: leave one out")
    if arguments.wait and not arguments.model:
        raise CommandFailed("--wait follows the newest rollout of a model: give MODEL as well")


def wait_for(arguments: argparse.Namespace, profile: Profile) -> int:
    """Wait until the newest rollout of the model runs no more, and say what became of it; with --json as one document.
    Raises CommandFailed where it is not done."""
    watch = Watch(profile, arguments.model, bound_s(arguments, LIMIT_S))
    try:
        outcome = watch.until_over(_shown(json=arguments.json))
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    if arguments.json:
        found = {"outcome": outcome, "waited_s": round(watch.waited_s, 1), "rollout": watch.rollout}
        say(json.dumps(found))
    if outcome is not Outcome.SERVED:
        raise watch.failure(outcome)
    if not arguments.json:
        say(printable(f"{_name(watch.rollout)} was done after {watch.waited_s:.0f} s of waiting"))
    return Exit.OK


class Watch:
    """Looks at the newest rollout of the model, for ``limit_s`` at most; at that one alone, whatever begins after it.
    ``rollout`` is what it was at by the last look that worked."""

    def __init__(self, profile: Profile, model: str, limit_s: float) -> None:
        self.rollout: Rollout | None = None
        self._model = model
        self._asking = Asking(profile, limit_s)

    @property
    def waited_s(self) -> float:
        """Since it began."""
        return self._asking.waited_s

    def until_over(self, show: Show) -> Outcome:
        """Look until it runs no more, or time is over."""

        def told(outcome: Outcome | None) -> None:
            if outcome is not Outcome.UNKNOWN:  # that is told as how it ended
                show(self.rollout, self._asking.trouble)

        return self._asking.until_over(self._look, told)

    def _look(self) -> Outcome | None:
        """Ask once; how it ends, where that is known."""
        found = self._asking.ask(self._asked)
        if found is None:
            return None if self._asking.passes else Outcome.UNKNOWN
        self.rollout = found
        if found["state"] == State.RUNNING:
            return None
        return Outcome.SERVED if found["state"] == State.DONE else Outcome.STOPPED

    def _asked(self, controller: Controller) -> Rollout:
        """The one that is waited for. Raises CommandFailed."""
        found, known = rollouts_of(controller, self._model), self.rollout
        if known is None and not found:
            raise no_rollout(self._model)
        if known is None:
            return found[-1]
        for each in found:
            if each["number"] == known["number"]:
                return each
        raise CommandFailed(f"{_name(known)} is no longer kept at the controller", Exit.REFUSED)

    def failure(self, outcome: Outcome) -> CommandFailed:
        """What is told of an ``outcome`` that is not the one that was waited for."""
        rollout = self.rollout
        at = "it was not looked at so far" if rollout is None else progress(rollout)
        match outcome:
            case Outcome.STOPPED:
                text = f"the rollout does not go on by itself: {standing(rollout)}"
                return CommandFailed(text, Exit.STOPPED, lines=failed_lines(rollout))
            case Outcome.OVERDUE:
                text = (
                    f"the rollout is not over after {self._asking.limit_s:g} s: {at}; it goes on, and "
                    "'appliance fleet devices --not-there' names who is missing"
                )
                return CommandFailed(text, Exit.OVERDUE)
            case Outcome.INTERRUPTED:
                return CommandFailed(
                    f"the waiting was interrupted: {at}; the rollout goes on", Exit.INTERRUPTED
                )
        if rollout is None and not self._asking.passes:
            return CommandFailed(self._asking.trouble, self._asking.status)
        text = f"what becomes of the rollout is not known: {self._asking.trouble}"
        return CommandFailed(text, self._asking.status)


def _name(rollout: Any) -> str:
    return f"rollout {rollout['number']} of {rollout['model']}/{rollout['version']}"


def _shown(*, json: bool) -> Show:
    """Show it while it goes on: its waves where there is a terminal, a line for what is new else."""
    if json:
        return lambda _rollout, _trouble: None
    return _picture if sys.stdout.isatty() else _printer()


def _picture(rollout: Rollout | None, trouble: str) -> None:
    """The table, and below it what is of one that runs; how it ended is told by who waited."""
    below = [trouble] if trouble else []
    clear_screen()
    if rollout is not None and rollout["state"] != State.RUNNING:
        table(TITLES, list(rows(rollout)))
    elif rollout is not None:
        table(TITLES, list(rows(rollout)), [*notes(rollout, newest=True), *below, ENDS])
    else:
        print_text("\n".join(map(printable, [*below, ENDS])))
    sys.stdout.flush()


def _printer() -> Show:
    """Print what is new: where the devices are, who refused it, trouble. How it ended is told by who waited."""
    said = set[str]()
    last = ""

    def show(rollout: Rollout | None, trouble: str) -> None:
        nonlocal last
        runs = rollout is not None and rollout["state"] == State.RUNNING
        failed = [each for each in failed_lines(rollout) if each not in said] if runs else []
        said.update(failed)
        text = trouble or (progress(rollout) if runs else "")
        for each in (*failed, *([text] if text not in ("", last) else [])):
            say(printable(each))
        last = text

    return show
