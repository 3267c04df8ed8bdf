"""What a person at a terminal sees of rollouts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.fleet.rollout import SHOWN
from appliance.cli.fleet.session import Controller
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_fleet_commands import Fleet, fleet
from tests.controller.api.test_people_api import packages
from tests.controller.api.test_rollouts import Site

__all__ = ["fleet", "packages"]

NewBox = Callable[..., Box]
WAVES = ("--wave", "pilot", "--wave", "north,south")
NOTHING = re.compile(r"^ +2: waits +- +- +- +- +- +north, south$", re.MULTILINE)


@pytest.fixture
def site(desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> Site:
    return Site(desk, new_box, packages)


def test_a_rollout_is_begun_and_shown_with_its_waves(site: Site, fleet: Fleet) -> None:
    status, out, _ = fleet(
        "rollout", "m=2", *WAVES, "--stay", "60", "--share", "90", "--allow", "1", "--back"
    )
    assert status == Exit.OK
    assert out == (
        "rollout 1 of m/2 runs in wave 1 of 2: 90 % are to serve it for 60 s, 1 may refuse it\n"
        "'appliance fleet rollouts --watch' shows where its devices are\n"
    )
    found = site.newest()
    assert [wave["groups"] for wave in found["waves"]] == [["pilot"], ["north", "south"]]
    assert (found["stay_s"], found["share"], found["allow"], found["back"]) == (60, 90, 1, True)
    site.steps()
    out = fleet("rollouts")[1]
    assert re.search(r"^1 m/2 +running +1: for .*? +0 of 1 +0 +1 +0 +0 +pilot$", out, re.MULTILINE), out
    assert NOTHING.search(out)
    assert (
        "\n1 device of wave 1 is not there: 'appliance fleet devices --group pilot --not-there' names" in out
    )
    site.follow("pilot")
    out = fleet("rollouts")[1]
    assert re.search(r"^1 m/2 +running +1: done +1 of 1 +0 +0 +0 +0 +pilot$", out, re.MULTILINE), out
    assert re.search(r"^ +2: for .*? +0 of 2 +0 +2 +0 +0 +north, south$", out, re.MULTILINE), out
    assert "\n2 devices of wave 2 are not there: 'appliance fleet devices --not-there' names" in out
    site.follow("north", "south")
    site.follow("north", "south")
    out = fleet("rollouts")[1]
    assert re.search(
        r"^rollout 1 of m/2 was done .* ago: enough devices of each wave serve it$", out, re.MULTILINE
    ), out
    titles = out.splitlines()[0].split()
    assert titles == ["rollout", "state", "wave", "there", "coming", "unheard", "held", "failed", "groups"]
    assert re.search(r"^ +2: done +2 of 2 +0 +0 +0 +0 +north, south$", out, re.MULTILINE), out
    assert json.loads(fleet("rollouts", "--json")[1]) == site.person.get("/rollouts")


def test_one_that_halted_says_why_who_and_what_can_be_done(site: Site, fleet: Fleet) -> None:
    fleet("rollout", "m=2", *WAVES, "--stay", "60")
    site.follow("pilot", refuses=True)
    out = fleet("rollouts")[1]
    assert re.search(r"^1 m/2 +halted +1: not done +0 of 0 +0 +0 +0 +1 +pilot$", out, re.MULTILINE), out
    assert NOTHING.search(out)
    assert re.search(
        r"rollout 1 of m/2 halted in wave 1 of 2 .* ago: 1 device refused it or went back, and 0 may; 'appliance fleet "
        r"rollout m' with --resume, --back or --stop says how it goes on\nbox-pilot: failed: golden case 'a'\n",
        out,
    )
    status, _, error = fleet("rollout", "m", "--resume")
    assert status == Exit.REFUSED
    assert (
        "rollout 1 of m/2 would halt at once: 1 device refused it or went back, and 0 may; allow 1" in error
    )
    assert "none may" not in fleet("rollout", "m", "--resume", "--allow", "1")[1]
    assert "halted in wave 1 of 2" in fleet("rollout", "m", "--halt")[1]
    status, out, _ = fleet("rollout", "m", "--back")
    assert (status, "rollout 1 of m/2 was taken back in wave 1 of 2" in out) == (Exit.OK, True)
    assert "'appliance fleet devices --not-there' names those that are not back yet\n" in out
    assert site.versions() == [1, 1, 1]
    assert "box-pilot: failed: golden case 'a'\n" in fleet("rollouts")[1]
    assert json.loads(fleet("rollout", "m=2", "--wave", "pilot", "--json")[1])["number"] == 2
    assert "box-pilot: failed" not in fleet("rollouts")[1], "it is of an earlier one, which is over"
    assert "was stopped in wave 1 of 1" in fleet("rollout", "m", "--stop")[1]


def test_a_wave_of_which_no_device_counts_says_that_it_waits_for_ever(site: Site, fleet: Fleet) -> None:
    site.person.post("/want", {"model": "m", "device": "box-pilot", "wish": {"version": 1}})
    fleet("rollout", "m=2", *WAVES)
    assert "no device of wave 1" not in fleet("rollouts")[1], "nobody has looked yet"
    site.steps()
    out = fleet("rollouts")[1]
    assert (
        "no device of wave 1 can bring it on: each is held, refused it or has a wish of its own; mend that, or "
        "'appliance fleet rollout m' with --back or --stop\n"
    ) in out
    assert "1 device of wave 1 has a wish of its own for m, and does not count\n" in out
    assert "not there:" not in out


def test_a_wave_at_which_nobody_has_looked_has_no_counts_yet(site: Site, fleet: Fleet) -> None:
    fleet("rollout", "m=2", *WAVES)
    out = fleet("rollouts")[1]
    assert re.search(r"^1 m/2 +running +1: for .*? +- +- +- +- +- +pilot$", out, re.MULTILINE), out
    assert "not there:" not in out
    assert fleet("rollouts", "m", "--wait", "--timeout", "0.1")[1] == (
        "rollout 1 of m/2 runs in wave 1 of 2, at which nobody has looked yet\n"
    )
    site.steps()
    assert re.search(r"running +1: for .*? +0 of 1 +0 +1 +0 +0 +pilot$", fleet("rollouts")[1], re.MULTILINE)


def test_those_that_serve_and_do_not_count_yet_are_told_with_when_they_may(site: Site, fleet: Fleet) -> None:
    site.desk.now_ms = int(time.time() * 1000) - 60_000
    site.start(waves=[["north", "south"], ["pilot"]], stay_s=40_000)
    began_ms = site.desk.now_ms
    for _ in range(2):
        for group in ("north", "south"):
            site.tell(site.boxes[group], group)
        site.steps()
    wave = site.newest()["waves"][0]
    assert (wave["serving"], wave["due_ms"]) == (2, began_ms + 2_000 + 40_000_000)
    out = fleet("rollouts")[1]
    assert "\n2 devices of wave 1 serve it, not for 40000 s yet: the last may count in 11 h\n" in out
    assert "not there:" not in out
    fleet("rollout", "m", "--resume", "--stay", "10")
    out = fleet("rollouts")[1]
    assert "\n2 devices of wave 1 serve it, not for 10 s yet: they count when heard again\n" in out
    fleet("rollout", "m", "--halt")
    assert "serve it, not for" not in fleet("rollouts")[1]


def test_who_wishes_otherwise_hears_which_rollout_halts_for_it(site: Site, fleet: Fleet) -> None:
    fleet("rollout", "m=2", *WAVES)
    told = "rollout 1 of m/2 halts for this; 'appliance fleet rollout m' with --resume, --back or --stop\n"
    for words in (("m=2", "--group", "north"), ("m=3", "--device", "box-north"), ("m=1", "--group", "south")):
        assert fleet("want", *words)[::2] == (Exit.OK, "")
    assert fleet("want", "m=3", "--group", "north")[::2] == (Exit.OK, told)
    assert fleet("rollout", "m", "--resume")[0] == Exit.OK
    assert json.loads(fleet("want", "m", "--withdraw", "--group", "pilot", "--json")[1])["halts"] == [
        "rollout 1 of m/2"
    ]
    assert fleet("want", "m=1", "--group", "north")[::2] == (Exit.OK, ""), "it has halted already"


def test_an_older_version_goes_out_as_a_downgrade(site: Site, fleet: Fleet) -> None:
    assert fleet("rollout", "m=1", *WAVES, "--downgrade")[0] == Exit.OK
    assert site.newest()["downgrade"] is True
    assert site.wishes()["pilot"]["downgrade"] is True


def test_of_a_wave_with_many_groups_some_are_named(site: Site, fleet: Fleet, new_box: NewBox) -> None:
    names = [f"g{number}" for number in range(10)]
    for name in names:
        new_box(f"of-{name}", group=name)
    fleet("rollout", "m=2", "--wave", "pilot", "--wave", ",".join(names))
    out = fleet("rollouts")[1]
    assert "g6, g7 and 2 more" in " ".join(out.split())
    assert "g8" not in out


def test_the_newest_and_those_that_are_not_over_are_shown(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(SHOWN + 2):
        site.start()
        site.act("stop")
    out = fleet("rollouts")[1]
    assert "and 2 before that are over; --json has them" in out
    assert [int(each) for each in re.findall(r"^(\d+) m/2", out, re.MULTILINE)] == list(range(3, SHOWN + 3))
    assert len(json.loads(fleet("rollouts", "--json")[1])) == SHOWN + 2
    site.start()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("appliance.cli.fleet.session.time.sleep", interrupted)
    status, out, _ = fleet("rollouts", "--watch")
    assert (status, re.findall(r"^(\d+) m/2", out, re.MULTILINE)) == (Exit.INTERRUPTED, [str(SHOWN + 3)])
    assert f"and {SHOWN + 2} before that are over" in out, "a screen is for what goes on"


def test_those_of_one_model_are_shown_alone(
    site: Site, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start()
    assert re.search(r"^1 m/2 +running", fleet("rollouts", "m")[1], re.MULTILINE)
    assert json.loads(fleet("rollouts", "m", "--json")[1]) == site.person.get("/rollouts?model=m")
    assert site.person.get("/rollouts?model=other") == []
    status, out, error = fleet("rollouts", "other")
    assert (status, out) == (Exit.REFUSED, "")
    assert error == "appliance fleet rollouts: there is no rollout of 'other'\n"
    get = Controller.get
    monkeypatch.setattr(Controller, "get", lambda self, path, **query: get(self, path))
    error = fleet("rollouts", "other")[2]
    assert "there is no rollout of 'other'" in error, "a controller of an earlier release tells of all"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("m",), "say MODEL=VERSION and --wave to begin a rollout, or MODEL and one of"),
        (("m", "--halt", "--stop"), "say MODEL=VERSION and --wave"),
        (("m", "--halt", "--wave", "pilot"), "--downgrade are for a rollout that begins: give MODEL=VERSION"),
        (("m", "--resume", "--allow-interface-change"), "--downgrade are for a rollout that begins"),
        (("m", "--resume", "--downgrade"), "--downgrade are for a rollout that begins"),
        (
            ("m", "--halt", "--share", "5"),
            "--stay, --share and --allow are for a rollout that begins or goes on",
        ),
        (("m=2", "--resume"), "--halt, --resume and --stop are for a rollout that is there"),
        (("m=0", "--wave", "pilot"), "'m=0' is no MODEL=VERSION"),
        (("m=two", "--wave", "pilot"), "'m=two' is no MODEL=VERSION"),
        ((f"m={'9' * 5000}", "--wave", "pilot"), "is no MODEL=VERSION"),
        (("M=2", "--wave", "pilot"), "'M' is no model: "),
        (("../m", "--halt"), "'../m' is no model: "),
        (("m=2", "--wave", "pilot,PILOT", "--wave", ""), "no groups are called so: 'PILOT', ''; "),
    ],
)
def test_words_that_make_no_rollout_are_refused_before_anybody_is_asked(
    site: Site, fleet: Fleet, words: tuple[str, ...], told: str
) -> None:
    status, _, error = fleet("rollout", *words)
    assert (status, told in error, error.count("\n")) == (Exit.USAGE, True, 1), error
    assert site.person.get("/rollouts") == []


def test_what_the_controller_refuses_is_one_line(site: Site, fleet: Fleet) -> None:
    status, _, error = fleet("rollout", "m=9", "--wave", "pilot,nobody", "--wave", "pilot")
    assert status == Exit.REFUSED
    assert error == (
        "appliance fleet rollout: the rollout cannot begin: groups that come twice: pilot; m/9 was not released; "
        "there are versions 1, 2, 3; no device is in: nobody\n"
    )
    assert (
        "no device is in: pilto (did you mean 'pilot'?), nobody\n"
        in fleet("rollout", "m=2", "--wave", "pilto,nobody")[2]
    )
    assert "it has no wave" in fleet("rollout", "m=2")[2]
    assert "there is no rollout of 'other'" in fleet("rollout", "other", "--halt")[2]
