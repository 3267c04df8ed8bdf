"""People who look at a fleet and boxes that poll do not wait for one another; and looking is quick and right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.controller import fleet_store, tables, withdrawal
from appliance.controller.desired import Question, same
from appliance.controller.fleet_store import DatabaseTrouble, FleetStore, Rows
from appliance.controller.leftovers import Unreadable, told_of
from appliance.controller.standings import report_of
from appliance.controller.withdrawal import withdraw
from appliance.domain.errors import OperatorError
from appliance.fleet.documents import (
    DesiredState,
    DocumentInvalid,
    Setting,
    Transfer,
    WishedModel,
    WishedVersion,
    decode,
    encode,
)
from appliance.fleet.messages import ModelReport, Report
from tests.controller.api.conftest import desk, new_box
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_people_api import packages, released

__all__ = ["desk", "new_box", "packages"]

NewBox = Callable[..., Box]
LOG_BYTES = 256 << 10
DIGESTS = st.sampled_from(["0" * 64, "1" * 64])
VERSIONS = st.builds(
    WishedVersion,
    version=st.integers(1, 2),
    manifest=DIGESTS,
    total_bytes=st.sampled_from([0, 127, 128, 1 << 40]),
    transfers=st.lists(
        st.builds(Transfer, stream=DIGESTS, size=st.integers(1, 2), index=DIGESTS), max_size=2
    ).map(tuple),
)
SETTINGS: st.SearchStrategy[dict[str, Setting]] = st.dictionaries(
    st.sampled_from(["fleet.poll_s", "fleet.windows"]),
    st.one_of(st.sampled_from([1, True]), st.just(()), st.just(("a",))),
)


@st.composite
def states(draw: st.DrawFn) -> DesiredState:
    names = sorted(draw(st.sets(st.sampled_from("abc"))))
    models = tuple(WishedModel(name=each, wanted=draw(VERSIONS)) for each in names)
    return DesiredState(
        device=draw(st.sampled_from(["one", "other"])), generation=draw(st.integers(1, 300)), models=models,
        settings=draw(SETTINGS), issued_ms=draw(st.integers(0, 1 << 40)),
    )  # fmt: skip


@given(states(), states())
def test_documents_that_ask_for_the_same_are_found_by_their_bytes_as_by_what_they_say(
    one: DesiredState, other: DesiredState
) -> None:
    assert Question(one).is_in(encode(other)) == same(one, decode(encode(other)))
    later = msgspec.structs.replace(one, device="later", generation=one.generation + 1, issued_ms=5)
    assert Question(one).is_in(encode(later))
    assert not Question(one).is_in(b"")


def test_a_document_that_says_the_same_in_other_bytes_asks_for_the_same() -> None:
    """As one that another release wrote, which left out what it did not know."""
    state = DesiredState(device="one", generation=1, models=(WishedModel(name="m"),))
    full = msgspec.msgpack.decode(encode(state))
    full[3] = [full[3][0][:1]]
    short = msgspec.msgpack.encode(full)
    assert decode(short).models == state.models
    assert short != encode(state)
    assert Question(state).is_in(short)
    assert not Question(state).is_in(msgspec.msgpack.encode([*full[:3], [["n"]], *full[4:]]))


def test_a_document_of_another_format_is_not_taken_for_one_that_is_alike() -> None:
    state = DesiredState(device="one", generation=1)
    newer = encode(msgspec.structs.replace(state, format=2))
    with pytest.raises(DocumentInvalid):
        Question(state).is_in(newer)
    with pytest.raises(Unreadable, match="the document of 'b' cannot be read"):
        told_of([Given("a", encode(state)), Given("b", newer)])  # type: ignore[list-item]


class Given(msgspec.Struct):
    """A device's row."""

    name: str
    document: bytes


def test_a_look_waits_for_no_change_and_no_change_for_a_look(store: FleetStore) -> None:
    with store.look() as view:
        assert view.number("revision") == 0
        with store.transaction() as rows:
            rows.count_up("revision")
            with store.look() as other:
                assert other.number("revision") == 0, "it is not done"
        assert view.number("revision") == 0, "all that is looked at is of one moment"
    with store.look() as view:
        assert view.number("revision") == 1


def test_there_may_be_many_looks_at_once(store: FleetStore) -> None:
    looks = [store.look() for _ in range(40)]
    for each in looks:
        assert each.__enter__().number("revision") == 0
    with store.transaction() as rows:
        rows.count_up("revision")
    for each in looks:
        each.__exit__(None, None, None)


@pytest.mark.parametrize("kept_open", [False, True])
def test_the_log_of_changes_is_begun_anew_although_somebody_always_looks(
    store: FleetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_open: bool
) -> None:
    """Two take turns so that one of them always does; ``kept_open``: a third never ends, and holds nobody up for
    long."""
    monkeypatch.setattr(fleet_store, "LOG_BYTES", LOG_BYTES)
    monkeypatch.setattr(fleet_store, "LOG_WAIT_S", 0.01 if kept_open else 30.0)
    store._log_most = LOG_BYTES
    over, log = threading.Event(), tmp_path / "fleet.db-wal"
    most = 0

    def look() -> None:
        while not over.is_set():
            with store.look() as view:
                view.number("revision")
                over.wait(0.02)

    with ExitStack() as stack:
        if kept_open:
            stack.enter_context(store.look()).number("revision")
        for _ in range(2):
            thread = threading.Thread(target=look)
            thread.start()
            stack.callback(thread.join)
        stack.callback(over.set)
        for number in range(100):
            with store.transaction() as rows:
                rows.put(tables.state, key="revision", value=number)
                rows.note(number, "somebody", "did", much="x" * 20_000)
            most = max(most, log.stat().st_size)
    assert (most > 8 * LOG_BYTES) == kept_open
    with store.transaction() as rows:
        rows.put(tables.state, key="revision", value=1)
    store._log_most = LOG_BYTES
    with store.transaction() as rows:
        rows.put(tables.state, key="revision", value=2)
    assert log.stat().st_size < LOG_BYTES


def test_who_makes_many_changes_lets_those_in_that_wait(store: FleetStore) -> None:
    """One thread takes the lock again and again, and others wait from its first change on."""
    done: list[str] = []

    def change(name: str) -> None:
        with store.transaction() as rows:
            rows.count_up(name)
            done.append(name)

    others = [threading.Thread(target=change, args=(name,)) for name in ("a", "b", "c")]
    with store.transaction() as rows:
        for number, each in enumerate(others, 1):
            each.start()
            while store._lock.waiting() < number:
                threading.Event().wait(0.001)
        rows.count_up("first")
        done.append("first")
    for _ in range(3):
        change("more")
    for each in others:
        each.join()
    assert done == ["first", "a", "b", "c", "more", "more", "more"]
    assert not store._lock.locked()


def test_a_look_at_a_database_that_fails_says_so(store: FleetStore) -> None:
    with store.transaction() as rows:
        rows._connection.exec_driver_sql("DROP TABLE state")
    with pytest.raises(DatabaseTrouble, match="the database failed: no such table"), store.look() as view:
        view.number("revision")


def test_people_are_answered_while_something_is_being_changed(desk: Desk, new_box: NewBox) -> None:
    new_box("north", group="site")
    person = desk.person()
    with desk.home.store.transaction() as rows:
        rows.change(tables.devices, {"name": "north"}, in_group="other")
        for path in ("/devices", "/devices/north", "/devices?group=site", "/groups", "/releases", "/drift"):
            person.get(path)
            assert person.status == 200, path
        for path in ("/tokens", "/logs", "/audit", "/audit/check"):
            person.get(path)
            assert person.status == 200, path
        assert "nothing was released of 'm'" in person.post("/releases/m/1/withdraw")["error"]
        assert [each["group"] for each in person.get("/devices")] == ["site"], "the change is not done"


def test_a_box_polls_while_somebody_looks(desk: Desk, new_box: NewBox) -> None:
    box = new_box("north", group="site")
    with desk.home.store.look() as view:
        view.all(tables.devices)
        assert box.polled().document
    assert desk.person().get("/devices/north")["seen_ms"] == desk.now_ms


def test_devices_and_groups_are_those_of_a_group_where_one_is_named(desk: Desk, new_box: NewBox) -> None:
    for name, group in (("a", "site"), ("b", "site"), ("c", "site2"), ("d", "")):
        new_box(name, **({"group": group} if group else {}))
    person = desk.person()
    person.post("/settings", {"name": "fleet.poll_s", "group": "empty", "value": 30})
    person.post("/settings", {"name": "fleet.poll_s", "group": "site2", "value": 30})
    person.post("/settings", {"name": "fleet.poll_s", "device": "a", "value": 60})
    everybody, all_groups = person.get("/devices"), person.get("/groups")
    assert [each["name"] for each in everybody] == ["a", "b", "c", "d"]
    assert [(each["name"], each["devices"]) for each in all_groups] == [
        ("empty", 0),
        ("site", 2),
        ("site2", 1),
    ]
    assert person.get("/devices?group=site") == everybody[:2]
    assert person.get("/devices?group=site2") == everybody[2:3]
    assert (everybody[0]["settings"], everybody[0]["generation"]) == ({"fleet.poll_s": 60}, 1)
    assert min(each["certificate_expires_ms"] for each in everybody) > desk.now_ms
    for number, name in enumerate(("empty", "site", "site2")):
        assert person.get(f"/groups?group={name}") == all_groups[number : number + 1]
    assert person.get("/devices?group=") == everybody
    assert person.get("/groups?group=") == all_groups
    for where in ("/devices", "/groups"):
        assert person.get(f"{where}?group=nobody") == []
    for name in everybody:
        assert person.get(f"/devices/{name['name']}") == name


@pytest.mark.parametrize("path", ["/devices", "/groups"])
@pytest.mark.parametrize(
    "group", ["..", "Site", "a/b", "%00", "a" * 65, "%ff", "site%20", "%27%20OR%201=1--"]
)
def test_what_is_no_group_is_refused(desk: Desk, path: str, group: str) -> None:
    person = desk.person()
    found = person.get(f"{path}?group={group}")
    assert (person.status, found["code"]) == (400, "bad-request")
    assert found["error"].startswith("'group' is no name: ")


def test_the_document_of_the_api_names_the_group(desk: Desk) -> None:
    paths = desk.person("none").get("/openapi.json")["paths"]
    for path in ("/api/v1/devices", "/api/v1/groups"):
        assert [(each["name"], each["in"]) for each in paths[path]["get"]["parameters"]] == [
            ("group", "query")
        ]


class Between:
    """A database of which something is changed between a look and the transaction that follows it."""

    def __init__(self, desk: Desk, change: Callable[[], object]) -> None:
        self._store, self._change = desk.home.store, change
        self.look = self._store.look

    def transaction(self) -> AbstractContextManager[Rows]:
        self._change()
        return self._store.transaction()


@pytest.mark.parametrize(
    ("late", "standing", "says"),
    [
        ("", {}, ""),
        ("box-2", {"serving": 1}, "box-2 serves it"),
        ("box-2", {"serving": 3}, ""),
        ("box-4", {"wanted": 1}, "box-4 was to run it"),
    ],
)
def test_boxes_do_not_wait_while_reports_are_read_and_a_late_one_counts(
    desk: Desk, new_box: NewBox, packages: dict[int, Path], monkeypatch: pytest.MonkeyPatch, late: str,
    standing: dict[str, Any], says: str,
) -> None:  # fmt: skip
    read: list[bool] = []

    def counted(row: Any) -> Report:
        read.append(desk.home.store._lock.locked())
        return report_of(row)

    boxes = {name: new_box(name) for name in ("box-1", "box-2", "box-3")}
    for each in boxes.values():
        each.tell(models=(ModelReport(name="m", serving=2),))
    released(desk, packages[1])
    tells = {name: boxes.get(name) or new_box(name) for name in [late] if name}
    changed = Between(
        desk, lambda: [each.tell(models=(ModelReport(name="m", **standing),)) for each in tells.values()]
    )
    monkeypatch.setattr(withdrawal, "report_of", counted)
    with pytest.raises(OperatorError, match=f"m/1 is needed: {says}") if says else nullcontext():
        withdraw(changed, desk.home.blobs, "m", 1, "ann", 1)  # type: ignore[arg-type]
    assert read.count(True) == len(tells)
    assert (desk.person().get("/releases") == []) == (not says)
