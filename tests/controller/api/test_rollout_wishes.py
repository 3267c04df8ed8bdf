"""Rollouts and the wishes of their groups: what was wished before, what a person wishes for meanwhile, and what is
wished again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.controller.rollout_steps import Stepped
from appliance.controller.schemas import Wish
from appliance.controller.wishing import put_wish
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_people_api import packages
from tests.controller.api.test_rollouts import GROUPS, Site

__all__ = ["packages"]

NewBox = Callable[..., Box]


@pytest.fixture
def site(desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> Site:
    return Site(desk, new_box, packages)


def test_who_has_it_go_back_has_each_group_wish_what_it_did_before(site: Site) -> None:
    site.want("north", None)
    site.start(waves=[["north"], ["pilot", "south"]], back=True)
    assert json.loads(site.person.get("/audit")[-1]["detail"])["back"] is True
    site.follow("north")
    assert site.versions() == [2, 2, 2]
    site.follow("pilot", refuses=True)
    wishes = site.wishes()
    assert site.newest()["state"] == "taken back"
    assert wishes["north"] is None
    for group in ("pilot", "south"):
        assert (wishes[group]["version"], wishes[group]["order"], wishes[group]["downgrade"]) == (
            1,
            True,
            True,
        )
    assert site.audit()[-1] == "rollout-taken-back"


def test_a_group_that_was_wished_the_version_before_is_wished_it_as_the_rest_and_keeps_it(site: Site) -> None:
    site.want("pilot", 2)
    site.start(interface_change=True)
    assert site.wishes()["pilot"]["interface_change"], "it may have been refused for that"
    site.follow("pilot")
    found = site.act("back")
    assert (found["state"], found["reason"]) == (
        "taken back",
        "by admin; wished the version before, and keep it: pilot",
    )
    assert found == site.newest()
    assert json.loads(site.person.get("/audit")[-1]["detail"])["reason"] == found["reason"]
    assert (site.versions(), site.wishes()["south"]["interface_change"]) == ([2, 1, 1], True)


def test_a_group_that_keeps_the_version_is_named_also_where_devices_had_it_go_back(site: Site) -> None:
    site.want("pilot", 2)
    site.start(back=True)
    site.follow("pilot")
    for refuses in (True, False):
        site.follow("north", refuses=refuses)
    assert site.newest()["reason"] == (
        "1 device refused it or went back, and 0 may; wished the version before, and keep it: pilot"
    )
    assert site.versions() == [2, 1, 1]


def test_a_group_in_which_a_person_wished_otherwise_since_is_not_named_as_one_that_keeps_it(
    site: Site,
) -> None:
    site.want("pilot", 2)
    site.start()
    site.want("pilot", 3)
    assert site.act("back")["reason"] == "by admin"


def test_an_older_version_is_wished_as_a_downgrade_where_that_is_said(site: Site) -> None:
    site.start()
    assert not site.wishes()["pilot"]["downgrade"]
    site.act("halt")
    found = site.start(downgrade=True)
    assert (found["downgrade"], site.wishes()["pilot"]["downgrade"]) == (True, True)
    site.follow("pilot")
    assert [site.wishes()[group]["downgrade"] for group in GROUPS] == [True, True, True]


def test_a_person_who_wishes_otherwise_halts_it(site: Site) -> None:
    site.start()
    site.want("pilot", 3)
    found = site.newest()
    assert (found["state"], found["reason"]) == ("halted", "admin wished m=3 for the group 'pilot'")
    line = site.person.get("/audit")[-1]
    assert (line["what"], line["who"]) == ("rollout-halted", "admin")
    assert site.steps() == Stepped([]), "it has halted with the wish"
    site.follow()
    assert site.versions() == [3, 1, 1]
    site.act("resume")
    assert site.versions() == [2, 1, 1]
    site.want("south", None)
    assert site.newest()["reason"] == "the wish for the group 'south' was taken back"
    site.act("resume")
    site.follow()
    site.follow()
    assert site.newest()["state"] == "done"
    site.act("back")
    assert site.wishes()["pilot"]["version"] == 1, "as it was before the rollout, not before it went on"
    assert site.wishes()["south"] is None


def test_what_a_person_wished_for_since_is_not_taken_back(site: Site) -> None:
    site.start(waves=[["pilot", "north"], ["south"]])
    site.want("pilot", 3)
    assert site.act("back")["state"] == "taken back"
    assert site.versions() == [3, 1, 1]


def test_what_a_box_said_before_another_wish_counts_for_nothing_when_it_goes_on(site: Site) -> None:
    """It was told of the other wish, and what it does of that is not known."""
    site.start()
    box = site.boxes["pilot"]
    for _ in range(2):
        site.tell(box, "pilot")
        site.steps()
    assert site.newest()["waves"][0]["serving"] == 1
    site.want("pilot", 3)
    site.desk.now_ms += 70_000
    known = site.person.get("/devices/box-pilot")["told_generation"]
    assert box.polled(root=1, timestamp=known, snapshot=known, targets=known).document
    assert site.newest()["state"] == "halted"
    site.act("resume")
    site.steps()
    assert (site.versions(), site.newest()["waves"][0]["there"]) == ([2, 1, 1], 0)


def test_another_share_lets_no_wish_of_a_person_pass(site: Site) -> None:
    """One of an earlier release, which left it to the next step to halt for it."""
    site.start()
    with site.desk.home.store.transaction() as rows:
        put_wish(rows, "group/south", "m", Wish(3), "admin", site.desk.now_ms)
    assert site.act("resume", {"share": 50})["state"] == "running"
    assert [each.reason for each in site.steps().told] == ["admin wished m=3 for the group 'south'"]


def test_who_has_it_go_on_right_after_a_wish_of_another_person_is_not_told_that_it_runs(site: Site) -> None:
    site.start()
    site.want("pilot", 3)
    assert site.act("resume")["state"] == "running"
    assert site.versions() == [2, 1, 1]
