"""Waiting until what was wished for a group or a device serves there: the controller is asked again and again.

A wish that is waited for is made already and stays, however the waiting ends. A controller that does not answer for a
while is asked again; a device that is silent is never taken for one that is there.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final, TypeVar

from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.fleet.arrival_view import (
    Show,
    apart_text,
    counts,
    document,
    outstanding_lines,
    say,
    shortened,
    shown,
    stay_lines,
)
from appliance.cli.fleet.session import Controller, ControllerTrouble, Profile
from appliance.cli.model.wait import MOST_S, add_bound, bound_s, check_bound
from appliance.cli.numbers import seconds
from appliance.fleet.arrival import Arrival, Stay, Wished, arrival_of
from appliance.fleet.messages import MessageInvalid
from appliance.fleet.told import Device, Wish, devices_in, groups_in

Answer = TypeVar("Answer")
LOOK_S: Final = 2.0
LOOK_S_MOST: Final = 15.0
SPELL: Final = 30
"""One look in so many parts of the time that was waited, within LOOK_S and LOOK_S_MOST."""
SILENCE_S: Final = 30.0
"""For how long the controller may be silent before a look has failed."""
LOOK_S_LEAST: Final = 10.0
"""What a look may take, however little time is left: over a slow link it is better late than not known."""


class Outcome(StrEnum):
    """How the waiting ended."""

    SERVED = "served"
    STOPPED = "stopped"
    OVERDUE = "overdue"
    INTERRUPTED = "interrupted"
    REPLACED = "replaced"
    NO_DEVICE = "no device"
    UNKNOWN = "unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare whether and how long to wait."""
    parser.add_argument(
        "--wait", action="store_true", help="until every device concerned says that it serves the version"
    )
    add_bound(parser, "with --wait: seconds to wait at most; the wish stays")
    parser.add_argument(
        "--stay",
        type=seconds(1.0, MOST_S),
        metavar="S",
        help="with --wait: until each says so S seconds after it began to serve, too; longer than the box's "
        "swap.watch_s and a poll, it ends only when no box can go back by itself (default: it need not)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Fails where there is nothing that devices tell, or only for how long to wait is said: before anything is
    changed."""
    check_bound(arguments)
    if arguments.stay is not None and not arguments.wait:
        raise CommandFailed("--stay is for --wait: give --wait as well, or leave it out")
    if arguments.stay is not None and arguments.stay > bound_s(arguments):
        raise CommandFailed("--stay is longer than --timeout, so it would never be done: raise --timeout")
    if arguments.wait and arguments.withdraw:
        raise CommandFailed("--wait is for a version that is wished for; leave out --withdraw")
    if arguments.wait and arguments.trial:
        raise CommandFailed(
            "--wait is for the version that serves, devices tell of no trial; leave out --trial"
        )


def wait_for(arguments: argparse.Namespace, profile: Profile, wished: Wished) -> int:
    """Wait until every device that the wish concerns serves what is ``wished``, and say so; with --json as one
    document. Raises CommandFailed where it ends otherwise."""
    watch = Watch(profile, wished, bound_s(arguments), arguments.stay or 0.0)
    try:
        with shown(wished, json=arguments.json) as show:
            outcome = watch.until_over(show)
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    if arguments.json:
        say(json.dumps(document(wished, watch.arrival, outcome, watch.waited_s)))
    elif watch.arrival.apart:
        say(printable(apart_text(watch.arrival.apart)))
    if outcome is not Outcome.SERVED:
        raise watch.failure(outcome)
    if not arguments.json:
        stayed = f", and each said so {arguments.stay:g} s later" if arguments.stay else ""
        say(printable(f"{counts(wished, watch.arrival)} after {watch.waited_s:.0f} s{stayed}"))
    return Exit.OK


class Asking:
    """Asks the controller again and again, for ``limit_s`` at most. ``trouble`` says why there was no answer the last
    time, ``status`` is the exit status of that, and ``passes`` whether there may be one later."""

    def __init__(self, profile: Profile, limit_s: float) -> None:
        self.trouble = ""
        self.status = Exit.REFUSED
        self.passes = True
        self.limit_s = limit_s
        self._controller = Controller(profile, min(SILENCE_S, max(limit_s, LOOK_S_LEAST)))
        self._url = profile.url
        self._began_s = time.monotonic()

    @property
    def waited_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    def ask(self, question: Callable[[Controller], Answer]) -> Answer | None:
        """What the controller says to the ``question``; None: see ``trouble``."""
        self.trouble = ""
        try:
            return self._in_time(question)
        except CommandFailed as failure:
            self.passes = isinstance(failure, ControllerTrouble) or failure.status is Exit.UNREACHABLE
            self.trouble = shortened(str(failure))
            self.status = Exit.UNREACHABLE if self.passes else failure.status
            return None

    def until_over(
        self, look: Callable[[], Outcome | None], show: Callable[[Outcome | None], None]
    ) -> Outcome:
        """Look again and again, and show it, until it is known how it ends, or time is over."""
        while True:
            outcome = look()
            show(outcome)
            left_s = self.limit_s - self.waited_s
            if outcome is not None:
                return outcome
            if left_s <= 0:
                return Outcome.UNKNOWN if self.trouble else Outcome.OVERDUE
            time.sleep(min(pause_s(self.waited_s), left_s))

    def _in_time(self, question: Callable[[Controller], Answer]) -> Answer:
        """The answer, as long as there is time: whoever answers byte by byte is never silent, and never done. Raises
        CommandFailed."""
        found: list[Answer] = []
        failed: list[Exception] = []

        def ask() -> None:
            try:
                found.append(question(self._controller))
            except Exception as error:  # noqa: BLE001  it is raised where it is waited for
                failed.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(max(self.limit_s - self.waited_s, LOOK_S_LEAST))
        if failed:
            raise failed[0]
        if not found:
            text = f"the controller at {self._url} does not answer: it was not done when time was over"
            raise CommandFailed(text, Exit.UNREACHABLE)
        return found[0]


class Watch:
    """Looks at how the devices stand, for ``limit_s`` at most, until the version serves and has stayed for ``stay_s``.
    ``arrival`` is where they were at the last look that worked."""

    def __init__(self, profile: Profile, wished: Wished, limit_s: float, stay_s: float = 0.0) -> None:
        self.arrival = Arrival(marks={})
        self.stay = Stay(stay_s)
        self._wished = wished
        self._asking = Asking(profile, limit_s)
        self._instead = ""

    @property
    def waited_s(self) -> float:
        """Since it began."""
        return self._asking.waited_s

    def until_over(self, show: Show) -> Outcome:
        """Look until it is known how it ends, or time is over."""
        return self._asking.until_over(self._look, lambda _: show(self.arrival, self._asking.trouble))

    def _look(self) -> Outcome | None:
        """Ask once; how it ends, where that is known."""
        answer = self._asking.ask(self._asked)
        if answer is None:
            return None if self._asking.passes else Outcome.UNKNOWN
        devices, wish = answer
        self.arrival = arrival_of(self._wished, devices, self.arrival.marks)
        self.stay.look(self.arrival)
        if wish is None or wish["version"] != self._wished.version:
            name = self._wished.model
            self._instead = "was taken back" if wish is None else f"gave way to {name}={wish['version']}"
            return Outcome.REPLACED
        if not self.arrival.standings:
            return Outcome.NO_DEVICE
        if self.arrival.is_everywhere:
            return None if self.stay.outstanding(self.arrival) else Outcome.SERVED
        return Outcome.STOPPED if self.arrival.is_stopped else None

    def _asked(self, controller: Controller) -> tuple[list[Device], Wish | None]:
        """The devices, and then what is wished of the model now: a wish that came between is seen. Raises
        CommandFailed, also for an answer that tells of no devices."""
        wished = self._wished
        try:
            if wished.device:
                (device,) = devices_in([controller.get(f"/devices/{wished.device}")])
                return [device], device["wishes"].get(wished.model)
            # A controller of an earlier release tells of all devices and groups: who is concerned is looked at here.
            devices = devices_in(controller.get("/devices", group=wished.group))
            groups = groups_in(controller.get("/groups", group=wished.group))
        except MessageInvalid as error:
            raise controller.stranger() from error
        wishes = next((each["wishes"] for each in groups if each["name"] == wished.group), {})
        return devices, wishes.get(wished.model)

    def failure(self, outcome: Outcome) -> CommandFailed:
        """What is told of an ``outcome`` that is not the one that was waited for."""
        wished, lines = self._wished, outstanding_lines(self.arrival)
        standing = counts(wished, self.arrival)
        match outcome:
            case Outcome.STOPPED:
                text = f"not all devices will get there: {standing}; the wish stays:"
                return CommandFailed(text, Exit.STOPPED, lines=lines)
            case Outcome.OVERDUE if self.arrival.is_everywhere:
                text = (
                    f"{standing}, and not every one said {self.stay.stay_s:g} s later that it still does; "
                    "the wish stays:"
                )
                lines = stay_lines(self.stay.outstanding(self.arrival))
                return CommandFailed(text, Exit.OVERDUE, lines=lines)
            case Outcome.OVERDUE:
                text = (
                    f"not all devices are there after {self._asking.limit_s:g} s: {standing}; the wish stays:"
                )
                return CommandFailed(text, Exit.OVERDUE, lines=lines)
            case Outcome.INTERRUPTED:
                text = (
                    f"the waiting was interrupted: {standing}; the wish stays, and --withdraw takes it back"
                )
                return CommandFailed(text, Exit.INTERRUPTED)
            case Outcome.REPLACED:
                text = f"the wish that is waited for {self._instead} meanwhile: {standing}"
                return CommandFailed(text, Exit.REFUSED)
            case Outcome.NO_DEVICE:
                text = (
                    f"there is no device to wait for: {wished.scope} has none that it is for; the wish stays, and "
                    f"'{wished.undo}' takes it back"
                )
                return CommandFailed(text, Exit.REFUSED)
        trouble = self._asking.trouble
        if wished.version:
            text = f"whether {wished.what} serves everywhere is not known: {trouble}; the wish stays"
        else:
            text = f"whether {wished.model} no longer serves anywhere is not known: {trouble}; the wish stays"
        return CommandFailed(text, self._asking.status)


def pause_s(waited_s: float) -> float:
    """For how long to leave the controller alone: for longer where it takes longer."""
    return min(max(waited_s / SPELL, LOOK_S), LOOK_S_MOST)
