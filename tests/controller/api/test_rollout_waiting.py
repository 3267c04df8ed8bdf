"""Waiting for a rollout at a real controller, whose boxes tell it what the test has them tell."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.fleet import waiting
from appliance.cli.fleet.session import Controller, read_profile, write_profile
from appliance.controller.tokens import HOUR_MS
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_fleet_commands import Fleet, fleet
from tests.controller.api.test_people_api import packages
from tests.controller.api.test_rollouts import Site
from tests.controller.api.test_waiting import Between, Terminal, between, plain
from tests.faults.cut_proxy import CutProxy

__all__ = ["between", "fleet", "packages"]

NewBox = Callable[..., Box]
WAIT = ("rollouts", "m", "--wait", "--timeout", "30")


@pytest.fixture
def site(desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> Site:
    return Site(desk, new_box, packages)


def test_who_waits_sees_each_change_and_that_all_of_it_is_done(
    site: Site, fleet: Fleet, between: Between
) -> None:
    site.start()
    between += [lambda: site.follow("pilot"), lambda: None, lambda: site.follow("north", "south")]
    between.append(lambda: site.follow("north", "south"))
    status, out, error = fleet(*WAIT)
    assert (status, error) == (Exit.OK, "")
    lines = out.splitlines()
    assert lines[0] == "rollout 1 of m/2 runs in wave 1 of 2: 0 of 1 there, 1 unheard"
    assert "rollout 1 of m/2 runs in wave 2 of 2: 0 of 2 there, 2 unheard" in lines
    assert lines[-1].startswith("rollout 1 of m/2 was done after ")
    assert len(set(lines)) == len(lines), "what stays as it was is said once"
    assert fleet(*WAIT)[0] == Exit.OK, "it is done already"


def test_one_that_devices_halt_ends_the_waiting_with_their_reasons(
    site: Site, fleet: Fleet, between: Between
) -> None:
    site.start()
    between.append(lambda: site.follow("pilot", refuses=True))
    status, out, error = fleet(*WAIT)
    assert status == Exit.STOPPED
    assert "halted" not in out
    assert "the rollout does not go on by itself: rollout 1 of m/2 halted in wave 1 of 2 " in error
    assert "1 device refused it or went back, and 0 may" in error
    assert error.endswith("\nbox-pilot: failed: golden case 'a'\n")


@pytest.mark.parametrize(("act", "state"), [("back", "taken back"), ("stop", "stopped"), ("halt", "halted")])
def test_one_that_a_person_ends_ends_the_waiting(
    site: Site, fleet: Fleet, between: Between, act: str, state: str
) -> None:
    site.start()
    between.append(lambda: site.act(act))
    status, out, error = fleet(*WAIT, "--json")
    assert (status, f"{state} in wave 1 of 2" in error, "by admin" in error) == (Exit.STOPPED, True, True)
    found = json.loads(out)
    assert (found["outcome"], found["rollout"]["state"]) == ("stopped", state)
    assert found["rollout"] == site.newest()


def test_the_newest_of_the_model_is_followed_and_no_later_one(
    site: Site, fleet: Fleet, between: Between
) -> None:
    site.start()
    site.act("stop")
    site.start(waves=[["pilot"]])

    def ends_and_another_begins() -> None:
        site.act("stop")
        site.start()

    between.append(ends_and_another_begins)
    status, _, error = fleet(*WAIT)
    assert (status, "rollout 2 of m/2 was stopped" in error) == (Exit.STOPPED, True)


def test_when_time_is_over_it_is_said_what_is_missing_and_that_it_goes_on(site: Site, fleet: Fleet) -> None:
    site.start()
    status, out, error = fleet("rollouts", "m", "--wait", "--timeout", "0.2", "--json")
    assert (status, json.loads(out)["outcome"]) == (Exit.OVERDUE, "overdue")
    assert (
        "the rollout is not over after 0.2 s: rollout 1 of m/2 runs in wave 1 of 2: 0 of 1 there, 1 unheard; it goes "
        "on, and 'appliance fleet devices --not-there' names who is missing" in error
    )
    assert site.newest()["state"] == "running"


def test_a_controller_that_is_gone_is_asked_until_time_is_over(site: Site, fleet: Fleet) -> None:
    site.start()
    with CutProxy(f"127.0.0.1:{site.desk.port}", 1 << 20) as proxy:
        write_profile(replace(read_profile(), url=f"https://{proxy.address}"))
        status, out, error = fleet("rollouts", "m", "--wait", "--timeout", "1")
    assert status == Exit.UNREACHABLE
    assert out.count("does not answer") == 1, "said once, and asked again and again"
    assert "what becomes of the rollout is not known: the controller at " in error


def test_a_controller_that_fails_for_a_while_has_ended_nothing(
    site: Site, fleet: Fleet, between: Between
) -> None:
    def rename(before: str, after: str) -> None:
        with sqlite3.connect(site.desk.folder / "fleet.db") as database:
            database.execute(f"ALTER TABLE {before} RENAME TO {after}")

    def mend() -> None:
        rename("away", "rollouts")
        site.act("stop")

    site.start()
    between += [lambda: rename("rollouts", "away"), mend]
    status, out, _ = fleet(*WAIT)
    assert (status, "the database failed" in out) == (Exit.STOPPED, True)


def test_who_may_not_ask_any_more_is_told(site: Site, fleet: Fleet, between: Between) -> None:
    site.start()
    between.append(lambda: setattr(site.desk, "now_ms", site.desk.now_ms + 366 * 24 * HOUR_MS))
    status, _, error = fleet(*WAIT)
    assert status == Exit.REFUSED
    assert "what becomes of the rollout is not known: this token is not known here" in error


@pytest.mark.parametrize("answer", [None, 5, [5], [{"number": 1, "model": "m"}], {"error": "x"}])
def test_what_tells_of_no_rollouts_is_no_controller_and_a_program_gets_its_document(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(Controller, "get", lambda self, path, **query: answer)
    status, out, error = fleet("rollouts", "m", "--wait", "--timeout", "0.2", "--json")
    assert (status, json.loads(out)["outcome"]) == (Exit.UNREACHABLE, "unknown")
    assert json.loads(out)["rollout"] is None
    assert "is no controller" in error


def test_where_the_model_has_no_rollout_nothing_is_waited_for(site: Site, fleet: Fleet) -> None:
    site.start()
    for words in (("--wait",), ()):
        status, out, error = fleet("rollouts", "other", *words)
        assert (status, out) == (Exit.REFUSED, "")
        assert error == "appliance fleet rollouts: there is no rollout of 'other'\n"


def test_one_that_is_no_longer_kept_is_not_taken_for_done(site: Site, fleet: Fleet, between: Between) -> None:
    def forgotten() -> None:
        with sqlite3.connect(site.desk.folder / "fleet.db") as database:
            database.execute("DELETE FROM rollouts")

    site.start()
    between.append(forgotten)
    status, _, error = fleet(*WAIT)
    assert (status, "rollout 1 of m/2 is no longer kept at the controller" in error) == (Exit.REFUSED, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("m", "--wait", "--watch"), "--wait and --watch do not go together: leave one out"),
        (("--wait",), "--wait follows the newest rollout of a model: give MODEL as well"),
        (("m", "--timeout", "5"), "--timeout is for --wait: give --wait as well"),
        (("M", "--wait"), "'M' is no model: "),
    ],
)
def test_words_that_do_not_go_together_are_refused(fleet: Fleet, words: tuple[str, ...], told: str) -> None:
    status, out, error = fleet("rollouts", *words)
    assert (status, out, told in error, error.count("\n")) == (Exit.USAGE, "", True, 1), error


def test_the_waiting_lasts_a_day_unless_it_says_otherwise(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = list[float]()
    made = waiting.Asking.__init__

    def noted(self: waiting.Asking, profile: Any, limit_s: float) -> None:
        limits.append(limit_s)
        made(self, profile, limit_s)

    monkeypatch.setattr(waiting.Asking, "__init__", noted)
    site.start()
    site.act("stop")
    for words in ((), ("--timeout", "604800")):
        assert fleet("rollouts", "m", "--wait", *words)[0] == Exit.STOPPED
    assert limits == [86_400, 604_800]


def test_a_terminal_shows_the_waves_until_it_is_interrupted(site: Site, fleet: Fleet, tmp_path: Path) -> None:
    site.start()
    terminal = Terminal(tmp_path / "profile.json", "rollouts", "m", "--wait")
    terminal.until("Ctrl-C ends the waiting; the rollout goes on")
    terminal.interrupt()
    assert terminal.ended() == Exit.INTERRUPTED
    shown = " ".join(plain(terminal.written).split())
    assert "1 m/2 running 1: for" in shown
    assert "the waiting was interrupted: rollout 1 of m/2 runs in wave 1 of 2" in shown


def test_a_terminal_keeps_the_waves_as_they_were_at_the_end(site: Site, fleet: Fleet, tmp_path: Path) -> None:
    site.start()
    terminal = Terminal(tmp_path / "profile.json", "rollouts", "m", "--wait")
    terminal.until("Ctrl-C ends the waiting; the rollout goes on")
    site.act("stop")
    assert terminal.ended() == Exit.STOPPED
    last = " ".join(plain(terminal.written.rpartition("\x1b[2J")[2]).split())
    assert "1 m/2 stopped 1: not done 0 of 1" in last
    assert last.count("was stopped in wave 1 of 2") == 1
    assert "Ctrl-C" not in last


def test_a_program_that_is_interrupted_gets_its_document(site: Site, fleet: Fleet, between: Between) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    site.start()
    between.append(interrupted)
    status, out, error = fleet(*WAIT, "--json")
    assert (status, json.loads(out)["outcome"]) == (Exit.INTERRUPTED, "interrupted")
    assert "0 of 1 there, 1 unheard; the rollout goes on" in error
