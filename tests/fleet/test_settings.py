"""Settings from afar: a closed list with bounds, all or none, and what the box's own file says stands."""

from __future__ import annotations

import pytest

from appliance.config.fleet import FleetConfig
from appliance.fleet.documents import Setting
from appliance.fleet.settings import NAMES, effective, local_problems, setting_problems, shown


def test_right_ones_are_taken() -> None:
    settings: dict[str, Setting] = {
        "fleet.poll_s": 300,
        "fleet.windows": ("Mon-Fri 22:00-06:00 Europe/Berlin",),
        "fleet.metered": ("control",),
    }
    assert setting_problems(settings) == ()
    now = effective(FleetConfig(), (), settings)
    assert (now.poll_s, now.windows, now.metered) == (300, settings["fleet.windows"], ("control",))
    assert now.month_bytes == 0


def test_what_the_box_itself_says_stands() -> None:
    local = FleetConfig(poll_s=30)
    settings: dict[str, Setting] = {"fleet.poll_s": 300, "fleet.month_bytes": 5}
    now = effective(local, {"poll_s"}, settings)
    assert (now.poll_s, now.month_bytes) == (30, 5)
    assert shown(local, {"poll_s"}, settings)["fleet.poll_s"] == "30 (set on the box)"
    assert shown(local, {"poll_s"}, settings)["fleet.month_bytes"] == "5"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"fleet.poll_s": 4}, "fleet.poll_s: "),
        ({"fleet.poll_s": True}, "fleet.poll_s: "),
        ({"fleet.poll_s": "60"}, "fleet.poll_s: "),
        ({"fleet.windows": ("whenever",)}, "window 1 must be like"),
        ({"fleet.windows": ("25:00-26:00",)}, "names an hour"),
        ({"fleet.windows": ("10:00-12:00 Mars/Base",)}, "time zone that there is not"),
        ({"fleet.windows": ("Mon-Fry 10:00-12:00",)}, "days are Mon, Tue"),
        ({"fleet.priorities": ("control", "x" * 99)}, "has 1 entries that are not one of"),
        ({"fleet.directories": ("/",)}, "'fleet.directories' is no setting from afar"),
        ({"grpc.addresses": ("0.0.0.0:1",)}, "'grpc.addresses' is no setting from afar"),
        ({"fleet.poll_s": 60, "\n": 1}, r"'\n' is no setting from afar"),
    ],
)
def test_a_wrong_one_is_told_and_no_more_than_that(settings: dict[str, Setting], told: str) -> None:
    problems = setting_problems(settings)
    assert len(problems) == 1
    assert told in problems[0]
    assert "x" * 30 not in problems[0]


def test_none_of_the_settings_says_where_the_box_gets_its_bytes_or_listens() -> None:
    for closed in ("directories", "neighbours", "neighbour_address", "contact_plan"):
        assert f"fleet.{closed}" not in NAMES


def test_what_the_box_itself_says_wrongly_is_told_at_once() -> None:
    local = FleetConfig(windows=("Moon 22:00-06:00",), metered=("control", "films"))
    assert [each.split(":")[0] for each in local_problems(local)] == ["fleet.windows", "fleet.metered"]
    assert not list(local_problems(FleetConfig()))
