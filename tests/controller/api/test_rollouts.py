"""Rollouts at a real controller, whose boxes tell it what the test has them tell."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.controller import rollout_rows, tables
from appliance.controller.fleet_store import FleetStore, Rows
from appliance.controller.home import DATABASE
from appliance.controller.publishing import Publisher
from appliance.controller.releases import Releases
from appliance.controller.rollout_steps import RolloutSteps, Stepped
from appliance.fleet import messages
from appliance.fleet.documents import decode
from appliance.fleet.messages import ModelReport, Report
from tests.controller.api.desk import Box, Desk, Person
from tests.controller.api.test_monitoring import asked
from tests.controller.api.test_people_api import packages, released

__all__ = ["packages"]

NewBox = Callable[..., Box]
GROUPS = ("pilot", "north", "south")
PLAN = {"model": "m", "version": 2, "waves": [["pilot"], ["north", "south"]], "stay_s": 60}


class Site:
    """A controller with a box in each of three groups, which serve version 1 by its wish."""

    def __init__(self, desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> None:
        self.desk = desk
        for version in (1, 2, 3):
            released(desk, packages[version])
        self.boxes = {group: new_box(f"box-{group}", group=group) for group in GROUPS}
        for group in GROUPS:
            self.want(group, 1)
        self.follow()

    @property
    def person(self) -> Person:
        return self.desk.person()

    def want(self, group: str, version: int | None) -> None:
        wish = None if version is None else {"version": version}
        self.person.post("/want", {"model": "m", "group": group, "wish": wish})

    def follow(self, *groups: str, refuses: bool = False) -> None:
        """Have the boxes of the groups, or all, hear what is wished, do it, and say so at once and long after. What
        they said before the first look at a wave counts for nothing."""
        for _ in range(3):
            for group in groups or GROUPS:
                self.tell(self.boxes[group], group, refuses=refuses)
            self.steps()
            self.desk.now_ms += 70_000

    def tell(self, box: Box, group: str, *, refuses: bool = False) -> None:
        wanted = decode(box.polled().document).models
        version = wanted[0].wanted.version if wanted and wanted[0].wanted else 0
        said = ModelReport(name="m", wanted=version, serving=version, phase="done", installed=(version,))
        if refuses and version == 2:
            said = ModelReport(name="m", wanted=2, serving=1, phase="failed", reason="golden case 'a'")
        self.desk.now_ms += 1000
        known = self.person.get(f"/devices/{box.device}")["generation"]
        report = messages.encode(Report(device=box.device, generation=known, models=(said,) * bool(version)))
        box.polled(root=1, timestamp=known, snapshot=known, targets=known, report=report, report_digest="x")

    def steps(self, store: FleetStore | None = None) -> Stepped:
        """A step of a controller that has just started."""
        home = self.desk.home
        releases = Releases(home.store, home.blobs, home.package_keys)
        return RolloutSteps(store or home.store, Publisher(home.keys), releases).step(self.desk.now_ms)

    def start(self, **plan: Any) -> Any:
        found = self.person.post("/rollouts", {**PLAN, **plan})
        assert found.get("state") == "running", found
        self.steps()
        return found

    def act(self, what: str, body: Any = None) -> Any:
        return self.person.post(f"/rollouts/m/{what}", {} if what == "resume" and body is None else body)

    def wishes(self) -> dict[str, Any]:
        return {each["name"]: each["wishes"].get("m") for each in self.person.get("/groups")}

    def versions(self) -> list[int | None]:
        found = self.wishes()
        return [found[group] and found[group]["version"] for group in GROUPS]

    def newest(self) -> Any:
        return self.person.get("/rollouts")[-1]

    def audit(self) -> list[str]:
        return [each["what"] for each in self.person.get("/audit") if each["what"].startswith("rollout")]


@pytest.fixture
def site(desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> Site:
    return Site(desk, new_box, packages)


def test_a_version_goes_out_wave_by_wave(site: Site) -> None:
    first = site.start()
    assert site.versions() == [2, 1, 1]
    assert (first["number"], first["waves"][0]["began_ms"], first["by"]) == (1, site.desk.now_ms, "admin")
    site.follow("north", "south")
    assert site.versions() == [2, 1, 1], "nobody of the pilot was heard"
    site.tell(site.boxes["pilot"], "pilot")
    site.steps()
    assert site.versions() == [2, 1, 1], "it has only just begun to serve"
    assert site.newest()["waves"][0]["serving"] == 1
    site.follow("pilot")
    assert site.versions() == [2, 2, 2]
    site.follow("north")
    assert (site.newest()["state"], site.newest()["waves"][1]["there"]) == ("running", 1)
    site.follow("south")
    found = site.newest()
    assert (found["state"], [wave["there"] for wave in found["waves"]]) == ("done", [1, 2])
    assert site.audit() == ["rollout", "rollout-wave", "rollout-done"]
    with site.desk.home.store.look() as rows:
        assert rows.all(tables.rollout_devices) == [], "nothing of it is needed any more"
    assert site.steps() == Stepped([])


def test_a_device_that_refuses_halts_it_and_nothing_further_is_wished(site: Site) -> None:
    site.start()
    site.follow("pilot", refuses=True)
    found = site.newest()
    assert (found["state"], found["reason"]) == ("halted", "1 device refused it or went back, and 0 may")
    assert found["failed"] == [{"device": "box-pilot", "phase": "failed", "reason": "golden case 'a'"}]
    site.follow()
    assert site.versions() == [2, 1, 1]
    line = json.loads(site.person.get("/audit")[-1]["detail"])
    assert (line["failed"], line["wave"], line["reason"]) == (["box-pilot"], 1, found["reason"])


def test_one_that_would_halt_again_goes_on_when_more_may_refuse(site: Site) -> None:
    site.start(waves=[["pilot", "north"], ["south"]])
    site.follow("pilot", refuses=True)
    found = site.act("resume")
    assert found["error"] == (
        "rollout 1 of m/2 would halt at once: 1 device refused it or went back, and 0 may; allow 1"
    )
    assert site.act("resume", {"allow": 1})["state"] == "running"
    site.follow("north")
    assert site.versions() == [2, 2, 2]


def test_a_dark_box_holds_it_up_until_a_share_is_enough(site: Site) -> None:
    site.start(waves=[["pilot", "north"], ["south"]])
    site.follow("pilot")
    site.follow("pilot")
    assert (site.versions(), site.newest()["waves"][0]["unheard"]) == ([2, 2, 1], 1)
    assert site.act("resume")["error"] == "rollout 1 of m/2 runs already"
    assert site.act("resume", {"share": 50})["share"] == 50
    assert site.audit() == ["rollout", "rollout-resumed"]
    first, last = (
        json.loads(each["detail"]) for each in site.person.get("/audit") if each["what"][:7] == "rollout"
    )
    assert (first["share"], first["waves"], last["share"]) == (100, [["pilot", "north"], ["south"]], 50)
    site.steps()
    assert site.versions() == [2, 2, 2]


def test_people_halt_it_and_end_it(site: Site) -> None:
    site.start()
    assert site.act("halt")["reason"] == "by admin"
    site.follow()
    assert site.versions() == [2, 1, 1]
    assert "is halted: there is nothing to do" in site.act("halt")["error"]
    assert site.act("stop")["state"] == "stopped"
    for action in ("halt", "back", "stop"):
        assert site.act(action)["error"] == "rollout 1 of m/2 is stopped: there is nothing to do"
    assert site.act("resume")["error"] == (
        "rollout 1 of m/2 is stopped and does not go on: begin another, by 'appliance fleet rollout' with "
        "MODEL=VERSION and --wave"
    )
    assert site.versions() == [2, 1, 1]
    assert site.audit() == ["rollout", "rollout-halted", "rollout-stopped"]
    site.person.post("/rollouts/other/halt")
    assert site.person.post("/rollouts/other/halt")["error"] == "there is no rollout of 'other'"


def test_one_of_a_model_runs_and_the_next_takes_the_place_of_one_that_halted(site: Site) -> None:
    site.start()
    found = site.person.post("/rollouts", PLAN)
    assert found["error"].endswith(
        "rollout 1, to version 2, runs already; end it first, by 'appliance fleet rollout m --stop'"
    )
    site.act("halt")
    assert site.start(version=3)["number"] == 2
    states = [(each["state"], each["reason"]) for each in site.person.get("/rollouts")]
    assert states == [("stopped", "rollout 2 took its place"), ("running", "")]


def test_what_it_may_wish_for_yet_is_not_withdrawn(site: Site) -> None:
    for group in GROUPS:
        site.want(group, 3)
    site.follow()
    site.start()
    for group in GROUPS:
        site.want(group, 1)
    site.follow()
    for version, why in ((2, "rollout 1 is to bring it"), (3, "rollout 1 may go back to it")):
        assert why in site.person.post(f"/releases/m/{version}/withdraw")["error"]
    site.act("stop")
    for version in (2, 3):
        assert site.person.post(f"/releases/m/{version}/withdraw")["version"] == version
    assert site.act("back")["error"] == "rollout 1 of m/2 is stopped: there is nothing to do"


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_wished(site: Site) -> None:
    site.start()
    found = site.person.post(
        "/rollouts",
        {
            "model": "m",
            "version": 9,
            "waves": [["pilot"], [], ["nobody", "pilot"]],
            "share": 101,
            "stay_s": 0,
        },
    )
    assert site.versions() == [2, 1, 1]
    assert found["error"] == (
        "the rollout cannot begin: a wave has no group; groups that come twice: pilot; the share is from 1 to 100 "
        "percent, and not 101; devices are to stay for 1 to 86,400 seconds, and not 0; m/9 was not released; there are "
        "versions 1, 2, 3; no device is in: nobody; rollout 1, to version 2, runs already; end it first, by 'appliance "
        "fleet rollout m --stop'"
    )
    site.act("stop")
    site.person.post("/devices/box-pilot/revoke")
    assert site.person.post("/rollouts", PLAN)["error"] == "the rollout cannot begin: no device is in: pilot"
    bad: list[dict[str, Any]] = [
        {"waves": []}, {"share": 0}, {"waves": [["PILOT"]]}, {"version": 0}, {"allow": -1}, {"other": 1},
    ]  # fmt: skip
    for wrong in bad:
        site.person.post("/rollouts", {**PLAN, "waves": [["north"]], **wrong})
        assert len(site.person.get("/rollouts")) == 1, wrong
    assert site.versions() == [2, 1, 1]


def test_a_halted_one_cannot_go_on_with_a_wrong_share(site: Site) -> None:
    site.start()
    site.act("halt")
    found = site.act("resume", {"share": 0, "stay_s": 0})
    assert found["error"].startswith("rollout 1 of m/2 cannot go on: the share is from 1 to 100 percent")
    assert site.newest()["state"] == "halted"


class Killed(BaseException):
    """The process is gone."""


class KillableStore:
    """A database whose process is gone just before or after its transaction of that number."""

    def __init__(self, store: FleetStore, number: int, *, after: bool) -> None:
        self._store, self._left, self._after = store, number, after
        self.look = store.look

    @contextmanager
    def transaction(self) -> Iterator[Rows]:
        self._left -= 1
        if not self._left and not self._after:
            raise Killed
        with self._store.transaction() as rows:
            yield rows
        if not self._left:
            raise Killed


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_controller_that_is_killed_at_any_change_goes_on(site: Site, after: bool, refuses: bool) -> None:
    site.start(back=True)
    for _ in range(7):
        for group in GROUPS:
            site.tell(site.boxes[group], group, refuses=refuses and group == "south")
        number = 1
        while True:
            number += 1
            try:
                site.steps(KillableStore(site.desk.home.store, number // 2, after=after))  # type: ignore[arg-type]
                break
            except Killed:
                assert site.versions() in ([2, 1, 1], [2, 2, 2], [1, 1, 1])
        site.desk.now_ms += 70_000
    found = site.newest()
    assert (found["state"], site.versions()) == (
        ("taken back", [1, 1, 1]) if refuses else ("done", [2, 2, 2])
    )
    assert site.audit() == ["rollout", "rollout-wave", f"rollout-{found['state'].replace(' ', '-')}"]
    assert site.person.get("/audit/check")["first_wrong"] == 0


def test_one_of_a_backup_goes_on_where_it_was(site: Site, tmp_path: Path) -> None:
    site.start()
    site.tell(site.boxes["pilot"], "pilot")
    site.steps()
    site.desk.now_ms += 70_000
    site.tell(site.boxes["pilot"], "pilot")
    with (
        closing(sqlite3.connect(site.desk.folder / DATABASE)) as source,
        closing(sqlite3.connect(tmp_path / "backup.db")) as copy,
    ):
        source.backup(copy)
    site.act("back")
    store = FleetStore(f"sqlite:///{tmp_path / 'backup.db'}")
    with closing(store):
        (told,) = site.steps(store).told
        assert (told.state, len(told.begun)) == ("running", 2)
        with store.look() as rows:
            found = {row.scope: row.by_whom for row in rows.all(tables.wishes)}
    assert found["group/south"] == "rollout 1"
    assert site.versions() == [1, 1, 1], "that is another database"


@pytest.mark.parametrize("halts", [False, True])
def test_what_changed_while_it_was_looked_at_is_looked_at_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, halts: bool
) -> None:
    """A person wishes for something else, or halts it, just as the next wave is to begin."""
    site.start()
    site.tell(site.boxes["pilot"], "pilot")
    site.steps()
    site.desk.now_ms += 70_000
    site.tell(site.boxes["pilot"], "pilot")
    steps, ready = rollout_steps(site), []

    def make_ready(*_: Any) -> None:
        ready.append(True)
        if halts:
            site.act("halt")
        else:
            site.want("south", 3)

    monkeypatch.setattr("appliance.controller.rollout_steps.make_ready", make_ready)
    assert steps.step(site.desk.now_ms) == Stepped([])
    assert (ready, site.versions()) == ([True], [2, 1, 1 if halts else 3])
    assert site.newest()["state"] == "halted"
    assert steps.step(site.desk.now_ms).told == []
    assert site.versions() == [2, 1, 1 if halts else 3]
    assert site.newest()["state"] == "halted"


def rollout_steps(site: Site) -> RolloutSteps:
    home = site.desk.home
    return RolloutSteps(home.store, Publisher(home.keys), Releases(home.store, home.blobs, home.package_keys))


def test_only_so_many_that_are_over_are_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_rows, "ENDED_MAX", 2)
    for _ in range(4):
        site.start()
        site.act("stop")
    site.start()
    assert [(each["number"], each["state"]) for each in site.person.get("/rollouts")] == [
        (3, "stopped"), (4, "stopped"), (5, "running"),
    ]  # fmt: skip


def test_a_database_that_fails_is_told_and_it_goes_on_after(site: Site) -> None:
    site.start()
    with site.desk.home.store.transaction() as rows:
        rows._connection.exec_driver_sql("ALTER TABLE rollout_devices RENAME TO gone")
    found = site.steps()
    assert found.error.startswith("rollout 1 of m/2: the database failed: no such table: rollout_devices")
    with site.desk.home.store.transaction() as rows:
        rows._connection.exec_driver_sql("ALTER TABLE gone RENAME TO rollout_devices")
    assert site.steps() == Stepped([])


def test_a_defect_holds_up_its_own_rollout_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.start()
    with site.desk.home.store.transaction() as rows:
        (kept,) = rollout_rows.rollouts_in(rows)
        text = kept.text.replace('"model":"m"', '"model":"n"').replace('"number":1', '"number":2')
        rows.put(tables.rollouts, number=2, model="n", state="running", rollout=text, before="{}")
    looks_at = rollout_rows.looks_at

    def defect(rows: Any, publisher: Any, rollout: Any) -> Any:
        if rollout.number == 1:
            raise ZeroDivisionError
        return looks_at(rows, publisher, rollout)

    monkeypatch.setattr("appliance.controller.rollout_steps.looks_at", defect)
    found = site.steps()
    assert found.error == "rollout 1 of m/2: ZeroDivisionError"
    assert [(each.number, each.state) for each in found.told] == [(2, "halted")]


def test_rollouts_are_counted_for_an_alarm_and_absent_where_there_are_none(site: Site) -> None:
    def lines() -> list[str]:
        site.desk.now_ms += 20_000
        text = asked(site.desk, "/metrics", site.desk.admin)[2]
        return [each for each in text.splitlines() if each.startswith("appliance_fleet_rollouts")]

    assert lines() == []
    site.start()
    assert lines() == ['appliance_fleet_rollouts{state="running"} 1']
    site.act("halt")
    assert lines() == ['appliance_fleet_rollouts{state="halted"} 1']
