"""What boxes are made of, from a box's records to a person's screen."""

from __future__ import annotations

import json

import pytest

from appliance.cli.failure import Exit
from appliance.controller import facts
from appliance.fleet import inventory, records
from appliance.fleet.inventory import CHARACTERS_MAX, FACTS_MAX, bounded, newest
from appliance.fleet.records import Health, Inventory
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_fleet_commands import Fleet, NewBox, fleet

__all__ = ["fleet"]

GPU = "NVIDIA L4, 22.5 GiB, compute capability 8.9"


def told(**facts: str) -> bytes:
    return records.encode(Inventory(facts=facts))


def made(new_box: NewBox, name: str, group: str = "site", **facts: str) -> Box:
    """A box that has told what it is."""
    box = new_box(name, group=group)
    box.send([records.encode(Health(uptime_ms=1, accepting=True)), told(**facts)])
    return box


def test_who_runs_which_release_is_counted_and_named(fleet: Fleet, new_box: NewBox) -> None:
    for name in ("a", "b", "c"):
        made(new_box, name, appliance="2.0", memory_bytes=str(64 << 30), boot=name, **{"cuda:0": GPU})
    made(new_box, "d", "other", appliance="1.0", boot="d")
    new_box("silent")
    assert [line.split(maxsplit=2) for line in fleet("facts")[1].splitlines()[1:] if "─" not in line] == [
        ["appliance", "3", "2.0"],
        ["appliance", "1", "1.0"],
        ["cuda:0", "3", GPU],
        ["memory_bytes", "3", "64.0 GiB"],
    ]
    out = fleet("facts", "appliance")[1]
    assert [line.split(maxsplit=2) for line in out.splitlines() if line[:1].isdigit()] == [
        ["2.0", "3", "a, b, c"],
        ["1.0", "1", "d"],
    ]
    of_group = json.loads(fleet("facts", "appliance", "--group", "other", "--json")[1])
    assert of_group == [
        {
            "name": "appliance",
            "devices": 1,
            "different": 1,
            "values": [{"value": "1.0", "count": 1, "devices": ["d"]}],
        }
    ]


def test_a_box_shows_what_it_is_and_forgets_what_it_was(fleet: Fleet, desk: Desk, new_box: NewBox) -> None:
    box = made(new_box, "a", appliance="1.0", **{"cuda:0": GPU})
    assert f"a: made of: appliance 1.0, cuda:0 {GPU}" in fleet("devices", "a")[1]
    assert "made of" not in fleet("devices")[1]
    box.send([told(appliance="2.0"), told(appliance="2.1")], first=2)
    assert desk.person().get("/devices/a")["facts"] == {"appliance": "2.1"}
    box.send([told(appliance="1.0")], first=1)
    assert desk.person().get("/devices/a")["facts"] == {"appliance": "2.1"}, "told twice"
    desk.person().post("/devices/a/revoke")
    assert fleet("facts", "--json")[1] == "[]\n"


def test_a_fact_that_no_device_told_is_an_error(fleet: Fleet, new_box: NewBox) -> None:
    made(new_box, "a", appliance="1.0")
    status, out, err = fleet("facts", "aplliance")
    assert (status, out) == (Exit.REFUSED, "")
    assert "no device has told of 'aplliance'; 'appliance fleet facts' shows what they tell" in err


def test_of_values_that_all_differ_the_first_are_told_and_the_others_counted(
    fleet: Fleet, new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "VALUES_MAX", 2)
    for name in ("a", "b", "c", "d", "e"):
        made(new_box, name, kernel=f"6.{name}" if name > "b" else "6")
    rows = [line.split(maxsplit=2) for line in fleet("facts")[1].splitlines() if line.startswith("kernel")]
    assert rows == [["kernel", "2", "6"], ["kernel", "1", "6.c"], ["kernel", "2", "(2 further values)"]]
    assert len(json.loads(fleet("facts", "kernel", "--json")[1])[0]["values"]) == 4


def test_what_a_hostile_box_tells_is_kept_within_bounds(fleet: Fleet, desk: Desk, new_box: NewBox) -> None:
    many = {f"{number}\x1b[2J": "x" * 4000 for number in range(FACTS_MAX + 1)}
    box = made(new_box, "a", **many)
    kept = desk.person().get("/devices/a")["facts"]
    assert len(kept) == FACTS_MAX
    assert {len(value) for value in kept.values()} == {CHARACTERS_MAX}
    assert "\x1b" not in fleet("facts")[1] + fleet("devices", "a")[1] + fleet("facts", "0\x1b[2J")[1]
    wrong = b"\x94" + inventory.KIND + b"\x01\x00\xc1"
    box.send([told(kernel="6"), wrong, b"\x94" + inventory.KIND], first=2)
    assert desk.person().get("/devices/a")["facts"] == {"kernel": "6"}


def test_the_newest_record_counts_and_others_are_passed_over() -> None:
    health = records.encode(Health(uptime_ms=1, accepting=True))
    assert newest([]) is newest([health, b""]) is None
    assert newest([told(a="1"), told(a="2"), health]) == {"a": "2"}
    assert newest([told()]) == bounded({}) == {}
