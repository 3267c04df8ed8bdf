"""Rollouts whose clock is set, that rest for long, and that are asked for with more than there can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.controller import tables
from appliance.controller.publishing import Publisher
from appliance.controller.releases import Releases
from appliance.controller.rollout_steps import RolloutSteps
from appliance.controller.server import pause_s
from appliance.controller.wishing import BASES_MAX, bases_on
from appliance.fleet import messages
from appliance.fleet.messages import ModelReport, Report
from appliance.fleet.places import REVOKED
from appliance.fleet.rollout import GROUPS_MAX
from tests.controller.api.desk import Desk
from tests.controller.api.test_people_api import packages
from tests.controller.api.test_rollouts import PLAN, NewBox, Site

__all__ = ["packages"]

DAY_MS = 86_400_000


@pytest.fixture
def site(desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> Site:
    return Site(desk, new_box, packages)


def test_a_clock_that_is_set_back_holds_no_wave_up_for_as_long(site: Site) -> None:
    site.start()
    site.desk.now_ms += 3 * DAY_MS
    site.tell(site.boxes["pilot"], "pilot")
    site.steps()
    site.tell(site.boxes["pilot"], "pilot")
    site.steps()
    assert site.newest()["waves"][0]["serving"] == 1
    site.desk.now_ms -= 3 * DAY_MS
    site.tell(site.boxes["pilot"], "pilot")
    site.steps()
    assert site.versions() == [2, 1, 1], "it was heard for no time since the clock was set"
    site.follow("pilot")
    assert site.versions() == [2, 2, 2]


def test_a_clock_that_is_set_forward_is_no_stay(site: Site) -> None:
    home, passed_s = site.desk.home, [0.0]
    releases = Releases(home.store, home.blobs, home.package_keys)
    steps = RolloutSteps(home.store, Publisher(home.keys), releases, lambda: passed_s[0])

    def heard(pause_s: float) -> None:
        site.desk.now_ms += round(1000 * pause_s)
        passed_s[0] += pause_s
        site.tell(site.boxes["pilot"], "pilot")
        steps.step(site.desk.now_ms)

    site.person.post("/rollouts", PLAN)
    steps.step(site.desk.now_ms)
    heard(5)
    heard(5)
    assert site.newest()["waves"][0]["serving"] == 1
    site.desk.now_ms += 3 * DAY_MS
    heard(5)
    heard(5)
    assert site.versions() == [2, 1, 1], "it has served for some seconds"
    heard(60)
    assert site.versions() == [2, 2, 2]


def test_a_rollout_that_cannot_be_read_is_told_of(site: Site) -> None:
    site.start()
    with site.desk.home.store.transaction() as rows:
        rows.change(tables.rollouts, {"number": 1}, rollout="{")
    assert "truncated" in site.steps().error


def test_what_nobody_looked_at_while_it_was_halted_is_no_stay(site: Site) -> None:
    site.start()
    for _ in range(2):
        site.tell(site.boxes["pilot"], "pilot")
        site.steps()
    assert site.newest()["waves"][0]["serving"] == 1
    site.act("halt")
    site.desk.now_ms += DAY_MS
    site.tell(site.boxes["pilot"], "pilot", refuses=True)
    site.tell(site.boxes["pilot"], "pilot")
    site.act("resume")
    site.steps()
    assert site.versions() == [2, 1, 1], "it fell back meanwhile, and serves for a moment"
    site.follow("pilot")
    assert site.versions() == [2, 2, 2]


def test_who_refused_counts_on_when_another_wave_is_wished_anew(site: Site) -> None:
    site.start(waves=[["pilot"], ["north"], ["south"]], share=50, allow=0)
    site.follow("pilot")
    site.tell(site.boxes["pilot"], "pilot", refuses=True)
    site.steps()
    assert site.newest()["state"] == "halted"
    site.want("north", 3)
    assert site.act("resume", {"allow": 1})["state"] == "running"
    site.steps()
    found = site.newest()
    assert [wave["refused"] for wave in found["waves"]] == [1, 0, 0], (
        "it is silent since, and refused all the same"
    )


def test_a_box_that_says_it_has_everything_has_few_ways_built_for_it(site: Site) -> None:
    claimed = ModelReport(name="m", serving=7, installed=tuple(range(1, 1000)))
    other = ModelReport(name="m", serving=3, installed=(2, 3))
    for box, said in (("pilot", claimed), ("north", other), ("south", claimed)):
        report = messages.encode(Report(device=f"box-{box}", models=(said, claimed)[: 1 + (said is claimed)]))
        site.boxes[box].polled(report=report, report_digest="x")
    with site.desk.home.store.transaction() as rows:
        rows.change(tables.devices, {"name": "box-south"}, state=REVOKED)
        devices = {row.name: row for row in rows.all(tables.devices)}
    assert bases_on([devices["box-north"]], "m") == {2, 3}
    assert bases_on([devices["box-pilot"]], "m") == {7, *range(1000 - BASES_MAX, 1000)}
    assert bases_on([devices["box-south"]], "m") == set(), "it is not one of the fleet any more"


def test_more_groups_than_there_can_be_are_told_without_their_names(site: Site) -> None:
    many = [f"g{number}" for number in range(50 * GROUPS_MAX)]
    found = site.person.post("/rollouts", {**PLAN, "waves": [many]})
    assert found["code"] == "refused", found
    assert "more than" in found["error"]
    assert len(found["error"]) < 500


@pytest.mark.parametrize(("took_s", "expected"), [(0.01, 5), (1, 20), (3600, 300)])
def test_a_look_that_built_streams_for_an_hour_is_followed_by_one_soon(
    took_s: float, expected: float
) -> None:
    assert pause_s(took_s) == expected
