"""Waiting until a version has stayed where it came: a box may go back by itself while it watches one."""

from __future__ import annotations

import re

import pytest

from appliance.cli.failure import Exit
from appliance.fleet.messages import ModelReport
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_fleet_commands import Fleet, fleet
from tests.controller.api.test_people_api import packages
from tests.controller.api.test_waiting import (
    SERVES_ONE,
    WANT,
    Between,
    between,
    box,
    follows,
    generation,
    says,
)

__all__ = ["between", "box", "fleet", "packages"]


def test_who_has_a_version_stay_is_told_of_a_box_that_goes_back_after_it_served(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    """Its daemon watches the version for a while, as swap.watch_s says."""
    went_back = ModelReport(name="m", wanted=1, serving=2, phase="failed", reason="fails: 2 of 7 requests")
    follows(box, desk, ModelReport(name="m", wanted=2, serving=2, phase="done"))
    between += [
        lambda: follows(box, desk, SERVES_ONE),
        lambda: says(box, desk, generation(desk), went_back),
    ]
    status, _, error = fleet(*WANT, "--stay", "60", "--timeout", "90")
    assert status == Exit.STOPPED
    assert "north: failed: fails: 2 of 7 requests; it serves version 2" in error


def test_a_version_stayed_when_each_box_says_so_long_enough_after_it_began_to_serve(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    between += [
        lambda: follows(box, desk, SERVES_ONE),
        lambda: follows(box, desk),
        *[lambda: says(box, desk, generation(desk), SERVES_ONE)] * 3,
    ]
    status, out, error = fleet(*WANT, "--stay", "10", "--timeout", "60")
    assert (status, error) == (Exit.OK, "")
    assert not between, "what went away between and came back began anew"
    assert out.count("north: serves it") == 2
    assert re.search(r"m/1 serves on 1 of 1 device after \d+ s, and each said so 10 s later\n", out)


def test_a_box_that_serves_and_falls_silent_has_not_said_that_the_version_stayed(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    between.append(lambda: follows(box, desk, SERVES_ONE))
    status, _, error = fleet(*WANT, "--stay", "2", "--timeout", "2")
    assert status == Exit.OVERDUE
    assert "m/1 serves on 1 of 1 device, and not every one said 2 s later that it still does" in error
    assert "north: serves it, last heard 0 s after it began" in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--stay", "5"), "--stay is for --wait"),
        (("--wait", "--stay", "20", "--timeout", "10"), "--stay is longer than --timeout"),
    ],
)
def test_a_stay_that_cannot_be_waited_for_is_not_wished(
    fleet: Fleet, desk: Desk, box: Box, words: tuple[str, ...], told: str
) -> None:
    status, _, error = fleet("want", "m=1", "--group", "site", *words)
    assert (status, told in error) == (Exit.USAGE, True), error
    assert all(not each["wishes"] for each in desk.person().get("/groups"))
