"""How a version does out there, from boxes' telemetry to a person's screen and a script's exit status; whatever clocks,
links and boxes do, the figures stay those of what was done."""

from __future__ import annotations

import json
import re
from math import inf
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.fleet.session import Controller
from appliance.controller import comparing, tables
from appliance.controller.fleet_store import ROW_BYTES
from appliance.fleet import messages, records
from appliance.fleet.messages import ModelReport, Report
from appliance.fleet.records import Inventory, Loaded, ModelHistory
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_fleet_commands import Fleet, NewBox, fleet
from tests.controller.api.test_people_api import packages, released
from tests.fleet.test_deeds import minute

__all__ = ["fleet", "packages"]

HOUR_MS = 3_600_000
FAST, SLOW = [1_200_000] * 200, [12_000_000] * 200
KEPT = 30 * 24 * HOUR_MS


@pytest.fixture(autouse=True)
def today(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person's clock is the controller's."""
    monkeypatch.setattr("appliance.cli.fleet.compare.now_ms", lambda: desk.now_ms)


def did(desk: Desk, box: Box, *records_of: bytes, first: int = 0) -> None:
    assert box.send(list(records_of), first=first).next == first + len(records_of)


def loaded(version: int, **more: Any) -> bytes:
    return records.encode(
        Loaded(name="m", version=version, load_ms=40, memory_bytes=8 << 20, cases=3, absolute=0.25, **more)
    )


def ended(version: int, ending: str, reason: str = "") -> bytes:
    return records.encode(
        ModelHistory(sequence=1, name="m", version=version, identity="i", ending=ending, reason=reason)
    )


def asked(fleet: Fleet, *words: str) -> Any:
    status, out, err = fleet("compare", *words, "--json")
    assert status in (Exit.OK, Exit.STOPPED, Exit.OVERDUE), err
    return json.loads(out)


def two_versions(desk: Desk, new_box: NewBox, name: str, second: list[int], *more: bytes) -> Box:
    """A box that served both, in the group of its name's first letter."""
    box = new_box(name, group=name[0])
    now = desk.now_ms
    did(desk, box, minute(now - 2 * HOUR_MS, FAST), minute(now, second, 2), loaded(1), loaded(2), *more)
    return box


def test_an_engineer_sees_how_a_version_does_and_where_it_does_not(
    fleet: Fleet, desk: Desk, new_box: NewBox, tmp_path: Path
) -> None:
    for name in ("a1", "a2", "a3"):
        two_versions(desk, new_box, name, FAST).tell(models=(ModelReport(name="m", wanted=2, serving=2),))
    two_versions(desk, new_box, "b1", SLOW, records.encode(Inventory(facts={"processor": "Atom"})))
    did(desk, new_box("b2"), ended(2, "refused", "golden: too far off"))
    found = asked(fleet, "m")
    assert (found["version"], found["against"], found["versions"]) == (2, 1, {"1": 800, "2": 800})
    assert (found["serving"], found["compared"], found["unfit"], len(found["sites"])) == (3, 4, 1, 5)
    assert (found["new"]["requests"], found["old"]["requests"]) == (800, 800)
    assert found["p99_ratio"] == 1.0
    assert found["worst_ratio"] > 9
    out = fleet("compare", "m=2", "--against", "1")[1]
    assert "b2: refused: golden: too far off" in out
    assert "where half of the sites have" in out
    assert re.findall(r"^(a\d|b\d) +[\d-]", out, re.MULTILINE) == ["b2", "b1", "a1", "a2", "a3"], (
        "the worst first"
    )
    assert asked(fleet, "m", "--group", "a")["worst_ratio"] == 1.0
    assert [each["device"] for each in asked(fleet, "m", "--device", "b1")["sites"]] == ["b1"]
    page = tmp_path / "page.html"
    assert fleet("compare", "m", "--page", str(page), "--p99-ratio", "1.1")[0] == Exit.STOPPED
    told = page.read_text()
    assert told.count("<circle") == 8
    assert "missed" in told
    assert "golden: too far off" in told


def test_sites_where_it_is_wished_count_also_those_that_say_nothing_or_do_not_take_it(
    fleet: Fleet, desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    released(desk, packages[2])
    desk.person().post("/want", {"model": "m", "group": "a", "wish": {"version": 2}})
    two_versions(desk, new_box, "a1", FAST)
    new_box("a2", group="a")
    refusing = new_box("a3", group="a")
    refusing.polled()
    known = desk.person().get("/devices/a3")["generation"]
    older = ModelReport(name="m", phase="refused", reason="it is older than version 5")
    report = Report(device="a3", generation=known, models=(older,))
    told = {"root": 1, "timestamp": known, "snapshot": known, "targets": known}
    refusing.polled(**told, report=messages.encode(report), report_digest="x")
    found = asked(fleet, "m=2", "--p99-ratio", "2", "--on", "60")
    assert [(each["device"], each["ending"], each["reason"]) for each in found["sites"]] == [
        ("a1", "", ""), ("a2", "", ""), ("a3", "refused", "it is older than version 5"),
    ]  # fmt: skip
    assert (found["unheard"], found["unfit"]) == (1, 1)
    assert [found["judgement"][each] for each in ("met", "missed", "unknown", "verdict")] == [
        1,
        1,
        1,
        "unknown",
    ]
    status, _, err = fleet("compare", "m=9")
    assert status == Exit.REFUSED
    assert "no device has told of 'm/9', and it is wished on none" in err


@pytest.mark.parametrize(
    ("words", "status", "verdict"),
    [
        (("--p99-ratio", "1.1", "--on", "75"), Exit.OK, "met"),
        (("--p99-ratio", "1.1", "--on", "95"), Exit.STOPPED, "missed"),
        (("--failed-percent", "1"), Exit.OK, "met"),
        (("--p99-ratio", "1.1", "--on", "75", "--least", "201"), Exit.OVERDUE, "unknown"),
    ],
)
def test_a_script_asks_by_the_exit_status(
    fleet: Fleet, desk: Desk, new_box: NewBox, words: tuple[str, ...], status: Exit, verdict: str
) -> None:
    for name, times in (("a", FAST), ("b", FAST), ("c", FAST), ("d", SLOW)):
        two_versions(desk, new_box, name, times)
    assert fleet("compare", "m", *words)[0] == status
    assert asked(fleet, "m", *words)["judgement"]["verdict"] == verdict


def test_answers_that_are_no_numbers_are_off_by_none(fleet: Fleet, desk: Desk, new_box: NewBox) -> None:
    off = Loaded(name="m", version=2, cases=3, failure="too far off", absolute=inf, relative=inf)
    did(desk, new_box("a"), minute(desk.now_ms, FAST, 2), records.encode(off))
    (site,) = asked(fleet, "m", "--failed-percent", "1")["sites"]
    assert (site["load"]["absolute"], site["load"]["relative"]) == (None, None)
    assert "golden set: too far off" in fleet("compare", "m")[1]


@pytest.mark.parametrize("answer", [None, 5, [], {}, {"model": "m", "sites": [{}]}])
def test_what_gives_no_comparison_is_no_controller(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(Controller, "get", lambda self, path, **query: answer)
    status, _, err = fleet("compare", "m")
    assert status == Exit.UNREACHABLE
    assert "is no controller" in err


def test_a_controller_that_does_not_know_of_comparisons_is_of_an_earlier_release(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.cli.fleet.compare._path", lambda arguments: "/later/m")
    status, _, err = fleet("compare", "m", "--group", "a")
    assert status == Exit.UNREACHABLE
    assert "does not know '/api/v1/later/m': it is a controller of an earlier release, or none\n" in err


def test_late_repeated_and_lost_telemetry_counts_once_where_it_belongs(
    fleet: Fleet, desk: Desk, new_box: NewBox
) -> None:
    box, began = new_box("a"), desk.now_ms
    late = [minute(began + each * HOUR_MS, FAST, 1 + each // 36) for each in range(72)]
    desk.now_ms += 72 * HOUR_MS
    did(desk, box, *late)
    did(desk, box, *late)
    did(desk, box, *late[-2:], minute(desk.now_ms, FAST, 2), first=70)
    found = asked(fleet, "m")
    assert found["versions"] == {"1": 36 * 200, "2": 37 * 200}
    for since in ("24h", "20h"):
        assert asked(fleet, "m", "--since", since)["versions"] == {"2": 25 * 200}, (
            "from a quarter of a day on"
        )
    assert asked(fleet, "m", "--since", "17h")["versions"] == {"2": 19 * 200}


def test_what_a_box_lost_and_that_it_is_silent_is_said(fleet: Fleet, desk: Desk, new_box: NewBox) -> None:
    box = new_box("a")
    box.polled()
    did(desk, box, minute(desk.now_ms, FAST, 2))
    did(desk, box, minute(desk.now_ms, FAST, 2), first=5)
    out = fleet("compare", "m")[1]
    assert "a: 4 records of what it did were lost, so it did more than is told" in out
    assert "not heard from" not in out
    desk.now_ms += 25 * HOUR_MS
    assert "1 site not heard from for a day" in fleet("compare", "m")[1]


@pytest.mark.parametrize("ahead_h", [0, 48, -48])
def test_a_clock_that_is_wrong_moves_nothing_out_of_the_time_that_is_asked_for(
    fleet: Fleet, desk: Desk, new_box: NewBox, ahead_h: int
) -> None:
    box = new_box("a")
    desk.now_ms += 96 * HOUR_MS
    box.tell(wall_ms=desk.now_ms + ahead_h * HOUR_MS)
    for place, hour in enumerate((-30, -1)):
        did(desk, box, minute(desk.now_ms + (ahead_h + hour) * HOUR_MS, FAST, 1 + place), first=place)
    assert asked(fleet, "m", "--since", "24h")["versions"] == {"2": 200}
    assert asked(fleet, "m", "--since", "2d")["versions"] == {"1": 200, "2": 200}


def test_two_versions_on_trial_and_one_that_comes_back_are_told_apart(
    fleet: Fleet, desk: Desk, new_box: NewBox
) -> None:
    box = new_box("a")
    for place, version in enumerate((1, 2, 1, 3, 2, 1)):
        did(desk, box, minute(desk.now_ms, FAST if version != 3 else SLOW, version), first=place)
    assert asked(fleet, "m")["versions"] == {"1": 600, "2": 400, "3": 200}
    assert [asked(fleet, f"m={each}")["against"] for each in (3, 2, 1)] == [2, 1, 2]


def test_a_model_that_had_another_name_is_compared_with_that(
    fleet: Fleet, desk: Desk, new_box: NewBox
) -> None:
    did(
        desk, new_box("a"), minute(desk.now_ms, SLOW, 7, name="old"), minute(desk.now_ms, FAST, 1, name="new")
    )
    found = asked(fleet, "new=1", "--against", "old=7")
    assert (found["against_model"], found["against"], found["compared"]) == ("old", 7, 1)
    assert found["p99_ratio"] < 0.2
    assert asked(fleet, "new")["against"] == 0


def test_a_box_that_took_the_place_of_another_begins_with_nothing(
    fleet: Fleet, desk: Desk, new_box: NewBox
) -> None:
    two_versions(desk, new_box, "a", SLOW)
    taker = new_box()
    taker.enrol(desk.enrolment_token(device="a"))
    assert fleet("compare", "m")[0] == Exit.REFUSED
    taker.send([minute(desk.now_ms, FAST, 3)], epoch="b" * 32)
    assert asked(fleet, "m")["versions"] == {"3": 200}
    desk.person().post("/devices/a/revoke")
    assert fleet("compare", "m")[0] == Exit.REFUSED


def test_what_is_added_up_counts_for_the_device_and_is_forgotten_with_the_records(
    desk: Desk, new_box: NewBox
) -> None:
    box = two_versions(desk, new_box, "a", FAST, ended(2, "live"))
    did(desk, box, minute(desk.now_ms, FAST, 2), loaded(2, packed=True), first=5)
    with desk.home.store.transaction() as rows:
        sizes = [
            sum(ROW_BYTES + sum(len(getattr(row, each)) for each in columns) for row in rows.all(table))
            for table, columns in (
                (tables.telemetry, ["record"]),
                (tables.deeds, ["deeds"]),
                (tables.loads, ["loaded", "ending"]),
            )
        ]
        assert all(sizes)
        assert rows.one(tables.devices, name="a").telemetry_bytes == sum(sizes) + ROW_BYTES  # type: ignore[union-attr]
        rows.forget_telemetry(desk.now_ms + KEPT)
        assert rows.one(tables.devices, name="a").telemetry_bytes == ROW_BYTES  # type: ignore[union-attr]
        assert not rows.all(tables.deeds)
        assert not rows.all(tables.loads)


def test_what_nobody_can_answer_is_refused_in_one_line(
    fleet: Fleet, desk: Desk, new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_versions(desk, new_box, "a", FAST)
    status, _, err = fleet("compare", "n")
    assert status == Exit.REFUSED
    assert "no device has told of requests for 'n' in that time" in err
    monkeypatch.setattr(comparing, "ROWS_MAX", 1)
    status, _, err = fleet("compare", "m")
    assert status == Exit.REFUSED
    assert (
        "'m' has more than 1 spans of six hours on devices in that time; ask for one group, or less time"
        in err
    )
    for words in (("m=x",), ("M N",), ("m", "--against", "x"), ("m", "--against", "M N=1")):
        assert fleet("compare", *words)[0] == Exit.USAGE
    for option, wrong in (("--since", "7"), ("--since", "0h"), ("--on", "0"), ("--p99-ratio", "0")):
        with pytest.raises(SystemExit, match=str(int(Exit.USAGE))):
            fleet("compare", "m", option, wrong)
    person = desk.person()
    for query in ("device=A/B", "against_model=..", "since_ms=x"):
        person.get(f"/comparisons/m?{query}")
        assert person.status == 400


def test_a_name_that_is_none_is_told_as_that(fleet: Fleet, desk: Desk, new_box: NewBox) -> None:
    two_versions(desk, new_box, "a", FAST)
    for words, said in (
        (("m=2", "--group", "none"), "no device is in the group 'none'\n"),
        (("m", "--device", "none"), "there is no device 'none'\n"),
        (("m", "--device", "a", "--group", "none"), "there is no device 'a' in the group 'none'\n"),
    ):
        status, _, err = fleet("compare", *words)
        assert status == Exit.REFUSED
        assert err.endswith(f": {said}")


def test_where_no_site_is_compared_it_is_said_what_is_missing(
    fleet: Fleet, desk: Desk, new_box: NewBox, tmp_path: Path
) -> None:
    did(desk, new_box("a"), minute(desk.now_ms, FAST, 2))
    page = tmp_path / "page.html"
    for words, said in (
        ((), "not compared: no site has told of requests for another version of 'm' in that time"),
        (("--against", "n="), "not compared: no site has told of requests for a version of 'n' in that time"),
        (("--against", "9"), "not compared: none of these sites has told of m/9 in that time"),
    ):
        status, out, _ = fleet("compare", "m=2", *words, "--page", str(page))
        assert status == Exit.OK
        assert said in out
        assert said in page.read_text().replace("&#x27;", "'")


def test_on_how_many_sites_is_no_demand_by_itself(fleet: Fleet, desk: Desk, new_box: NewBox) -> None:
    two_versions(desk, new_box, "a", SLOW)
    status, out, err = fleet("compare", "m", "--on", "95")
    assert (status, out) == (Exit.USAGE, "")
    assert "--on says on how many sites, but not what: add --p99-ratio" in err
