"""What programs see that watch a controller: whether it is well, and figures that Prometheus' own parser reads."""

from __future__ import annotations

import http.client
import json
import re
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.cli.fleet.devices import _summary
from appliance.controller import health, metrics, monitoring, tables
from appliance.controller.fleet_store import FleetStore, Rows
from appliance.controller.home import DATABASE
from appliance.controller.metrics import NO_GROUP, OTHERS
from appliance.controller.standings import standings
from appliance.fleet import messages
from appliance.fleet.documents import decode
from appliance.fleet.messages import ModelReport, Report
from appliance.fleet.places import Whereabouts
from tests.architecture.sources import ROOT
from tests.controller.api.desk import START_MS, Box, Desk
from tests.controller.api.test_people_api import packages, released

__all__ = ["packages"]

NewBox = Callable[..., Box]
Figures = dict[str, dict[tuple[str, ...], float]]


def asked(desk: Desk, path: str, token: str = "", method: str = "GET") -> tuple[int, str, str]:
    """Status, type and text of an answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=desk.home.authority.pem)
    connection = http.client.HTTPSConnection("127.0.0.1", desk.port, timeout=60, context=context)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def scraped(desk: Desk) -> Figures:
    """Samples by their names and the values of their labels, as a viewer's scrape has them, ten seconds later."""
    desk.now_ms += monitoring.FRESH_MS
    status, kind, text = asked(desk, "/metrics", viewer(desk))
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), text
    found: Figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            assert tuple(sample.labels.values()) not in values, "a sample is there once"
            values[tuple(sample.labels.values())] = sample.value
    return found


def viewer(desk: Desk) -> str:
    desk.person().post("/tokens/prometheus/revoke")
    made = desk.person().post("/tokens/person", {"name": "prometheus", "role": "viewer"})
    return str(made["token"])


def told(box: Box, **report: Any) -> None:
    """Poll and say that the newest document is known."""
    generation = decode(box.polled().document).generation
    known = {"root": 1, "timestamp": generation, "snapshot": generation, "targets": generation}
    said = Report(device=box.device, generation=generation, **report)
    box.polled(**known, report=messages.encode(said), report_digest="x")


@contextmanager
def another_writer(desk: Desk) -> Iterator[sqlite3.Connection]:
    """Another process' connection to the database."""
    with closing(sqlite3.connect(desk.folder / DATABASE, isolation_level=None)) as connection:
        yield connection


def test_a_controller_that_is_well_says_so_to_anybody_in_a_few_bytes(desk: Desk) -> None:
    assert asked(desk, "/health") == (200, "application/json", '{"status":"ok"}')
    assert asked(desk, "/health", method="HEAD")[0] == 200
    assert asked(desk, "/health", method="POST")[0] == 405


def test_a_database_that_fails_is_told_with_its_reason_until_it_works_again(desk: Desk) -> None:
    with another_writer(desk) as connection:
        connection.execute("ALTER TABLE state RENAME TO gone")
        status, kind, text = asked(desk, "/health")
        assert (status, kind) == (503, "application/json")
        failure = json.loads(text)
        assert failure["code"] == "trouble"
        assert re.match(r"the database failed: no such table: .*state", failure["error"])
        assert str(desk.folder) not in text
        connection.execute("ALTER TABLE gone RENAME TO state")
    desk.now_ms += health.FRESH_MS
    assert asked(desk, "/health")[0] == 200


def test_a_database_that_can_be_read_alone_is_trouble(desk: Desk) -> None:
    with another_writer(desk) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON state BEGIN SELECT RAISE(FAIL, 'disk full'); END"
        )
        connection.execute("INSERT INTO state VALUES ('health_checks', 1)")
    status, _, text = asked(desk, "/health")
    assert (status, "disk full" in text) == (503, True)


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that began a transaction, as they did."""
    transaction, found = FleetStore.transaction, list[int]()

    @contextmanager
    def counted(self: FleetStore) -> Iterator[Rows]:
        found.append(threading.get_ident())
        with transaction(self) as rows:
            yield rows

    monkeypatch.setattr(FleetStore, "transaction", counted)
    return found


def test_a_database_that_does_not_answer_is_told_in_time_and_waited_for_by_one(
    desk: Desk, changes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "WAIT_MS", 200)
    with desk.home.store.transaction():
        for _ in range(3):
            status, _, text = asked(desk, "/health")
            assert (status, json.loads(text)["error"]) == (503, "the database has not answered for 0.2 s")
            desk.now_ms += 10 * health.FRESH_MS
    desk.now_ms = START_MS
    monkeypatch.setattr(health, "WAIT_MS", 60_000)
    assert asked(desk, "/health")[0] == 200
    assert len(changes) == 2, "that of the test, and one that all who asked waited for"


def test_many_that_ask_for_health_cost_the_database_one_change(desk: Desk, changes: list[int]) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: asked(desk, "/health")[0], range(100))) == {200}
    assert len(changes) == 1
    desk.now_ms += health.FRESH_MS
    asked(desk, "/health")
    assert len(changes) == 2
    desk.now_ms -= 3_600_000
    asked(desk, "/health")
    assert len(changes) == 3, "a clock that went back does not have the old answer told for an hour"


def test_metrics_are_for_a_viewer_and_nobody_less(desk: Desk) -> None:
    for token in ("", "nobody:x"):
        status, _, text = asked(desk, "/metrics", token)
        assert (status, json.loads(text)["code"]) == (401, "no-token")
    assert asked(desk, "/metrics", viewer(desk))[0] == 200


def test_devices_are_counted_as_fleet_devices_counts_them(
    desk: Desk, new_box: NewBox, packages: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each place one at least: the words and the numbers are those of the last line of the command."""
    released(desk, packages[1])
    desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    boxes = {name: new_box(name, group="site") for name in "abcdef"}
    new_box("g", group="site")
    new_box("lone")
    done = ModelReport(name="m", wanted=1, serving=1, phase="done")
    for name in "ad":
        told(boxes[name], converged=True, models=(done,))
    told(boxes["b"], models=(ModelReport(name="m", phase="failed", reason="no"),))
    told(boxes["c"], converged=True, models=(ModelReport(name="m", phase="held"),))
    boxes["e"].polled(targets=7)
    boxes["f"].polled()
    desk.person().post("/devices/f/revoke")
    desk.now_ms += 2 * 86_400_000
    told(boxes["d"], converged=True, models=(done,))
    figures = scraped(desk)
    places = figures["appliance_fleet_devices"]
    assert {place: count for (group, place), count in places.items() if group == "site"} == {
        "there": 2, "not yet there": 2, "held": 1, "in conflict": 1, "revoked": 1,
    }  # fmt: skip
    assert figures["appliance_fleet_never_heard_devices"] == {("site",): 1, (NO_GROUP,): 1}
    assert figures["appliance_fleet_failed_devices"] == {("site",): 1, (NO_GROUP,): 0}
    silent = figures["appliance_fleet_silent_devices"]
    assert {bound: count for (group, bound), count in silent.items() if group == "site"} == {
        "600": 4, "3600": 4, "86400": 4,
    }  # fmt: skip
    assert figures["appliance_fleet_oldest_contact_timestamp_seconds"] == {("site",): START_MS / 1000}
    monkeypatch.setattr("time.time", lambda: desk.now_ms / 1000)
    said = _summary(desk.person().get("/devices?group=site"), "site")
    where = ", ".join(f"{places['site', each]:.0f} {each}" for each in Whereabouts)
    assert (
        said
        == f"7 devices: {where}; {silent['site', '86400']:.0f} not heard from for a day; 1 never heard from"
    )
    (group,) = desk.person().get("/groups?group=site")
    assert {what: group[what] for what in ("devices", "there", "failed", "silent")} == {
        "devices": 7, "there": 2, "failed": 1, "silent": 5,
    }  # fmt: skip


def test_a_version_that_failed_is_named_by_what_is_wished_and_with_who_knows_of_that(
    desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    for version in (1, 2):
        released(desk, packages[version])
    person, failed = desk.person(), ModelReport(name="m", wanted=1, serving=1, phase="refused")
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 2}})
    boxes = [new_box(name, group="site") for name in ("a", "b", "c")]
    person.post("/want", {"model": "m", "device": "c", "wish": {"version": 1}})
    for box in boxes:
        told(box, models=(failed, ModelReport(name="nobody-wished-this", wanted=3, phase="failed")))
    name = "appliance_fleet_version_failed_devices"
    assert scraped(desk)[name] == {("m", "2"): 2, ("m", "1"): 1}
    person.post("/devices/b/revoke")
    assert scraped(desk)[name] == {("m", "2"): 1, ("m", "1"): 1}
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    told(boxes[2], models=(failed,))
    assert scraped(desk)[name] == {("m", "1"): 1}, "what has not heard of a wish has not failed it"


def test_lines_are_bounded_and_nobody_is_left_out(
    desk: Desk, new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "GROUPS_MAX", 2)
    monkeypatch.setattr(metrics, "VERSIONS_MAX", 1)
    for number, group in enumerate(("z", "z", "y", "x", "w")):
        box = new_box(f"box-{number}", group=group)
        for model in ("m", "n"):
            with desk.home.store.transaction() as rows:
                wish = '{"version": 1}'
                rows.put(
                    tables.wishes,
                    scope=f"device/{box.device}",
                    model=model,
                    wish=wish,
                    by_whom="ann",
                    at_ms=1,
                )
        models = (ModelReport(name="m", phase="failed"), ModelReport(name="n", phase="failed"))
        with desk.home.store.transaction() as rows:
            said = Report(device=box.device, models=models)
            rows.change(
                tables.devices, {"name": box.device}, report=messages.encode(said), seen_ms=1, document=b"x",
                revision=rows.number("revision"),
            )  # fmt: skip
    figures = scraped(desk)
    counts: dict[str, float] = {}
    for (group, _), count in figures["appliance_fleet_devices"].items():
        counts[group] = counts.get(group, 0) + count
    assert counts == {"z": 2, "w": 1, OTHERS: 2}
    assert figures["appliance_fleet_version_failed_devices"] == {("m", "1"): 5, (OTHERS, ""): 5}


def test_what_boxes_asked_is_counted_by_how_it_went(desk: Desk, new_box: NewBox) -> None:
    before = scraped(desk)
    assert before["appliance_controller_requests_total"] == {
        ("poll", "answered"): 0,
        ("telemetry", "answered"): 0,
    }
    box, other = new_box("a"), new_box("b")
    box.polled()
    box.send([b"\x01", b"\x02"])
    desk.person().post("/devices/b/revoke")
    other.poll()
    other.send([b"\x01"] * 3)
    box.raw("GET", f"{messages.STREAMS}{'0' * 64}", b"", bytes)
    figures = scraped(desk)
    assert figures["appliance_controller_requests_total"] == {
        ("enrol", "answered"): 2, ("poll", "answered"): 1, ("poll", "revoked"): 1,
        ("stream", "not-there"): 1, ("telemetry", "answered"): 1, ("telemetry", "revoked"): 1,
    }  # fmt: skip
    assert figures["appliance_controller_telemetry_records_total"] == {("taken",): 2, ("refused",): 3}


def test_the_controller_tells_of_its_disk_its_process_and_what_expires(desk: Desk) -> None:
    figures = scraped(desk)
    year_s = 365 * 86_400
    assert {
        of: round((at - START_MS / 1000) / year_s)
        for (of,), at in figures["appliance_controller_expires_timestamp_seconds"].items()
    } == {"authority": 20, "root": 10, "server": 10}
    assert figures["appliance_controller_free_bytes"][()] > 0
    assert figures["process_resident_memory_bytes"][()] > 0


def test_scrapes_take_one_look_at_the_fleet_in_ten_seconds_and_no_lock(
    desk: Desk, new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, token, looks = new_box("a"), viewer(desk), []

    def counted(*of: Any) -> Any:
        looks.append(of)
        return standings(*of)

    monkeypatch.setattr(monitoring, "standings", counted)
    with desk.home.store.transaction(), ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: asked(desk, "/metrics", token)[0], range(40))) == {200}
    assert len(looks) == 1
    assert box.polled().document


def test_each_metric_is_documented_and_no_other(desk: Desk, new_box: NewBox) -> None:
    text = (ROOT / "docs" / "FLEET.md").read_text("utf-8")
    section = text.split("### Watching the controller")[1].split("\n### ")[0]
    documented = set(re.findall(r"^\| `(appliance_\w+)` \|", section, re.MULTILINE))
    new_box("a", group="site").polled()
    served = {each for each in scraped(desk) if each.startswith("appliance_")}
    served |= {"appliance_fleet_version_failed_devices", "appliance_fleet_rollouts"}
    assert documented == served - {"appliance_build_info"}
