"""What is done of many boxes at once is done while boxes poll; a bundle says of each what is wanted when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from appliance.controller import by_hand, fleet_store, people, publishing, tables
from appliance.controller.bundles import Received
from appliance.controller.by_hand import Desk, Outgoing, desk_of, incoming, outgoing
from appliance.controller.fleet_store import FleetStore, Rows
from appliance.controller.home import DATABASE
from appliance.controller.signing import sign_document
from appliance.fleet.documents import DesiredState, decode
from appliance.fleet.messages import Batch
from tests.controller.conftest import START_MS, Served

NAMES = ("box-1", "box-2", "box-3", "box-4", "box-5")
Between = Callable[[Rows, str], None]
"""What another process changes while what is wanted of a device is being signed."""
Export = Callable[[Between], Outgoing]


@pytest.fixture
def bench(made: Served) -> Iterator[Desk]:
    with desk_of(made.folder) as found:
        with found.store.transaction() as rows:
            for name in NAMES:
                rows.put(
                    tables.devices, name=name, in_group="site", state="active", created_ms=1, inventory="{}"
                )
        yield found


@pytest.fixture
def export(bench: Desk, made: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Export]:
    """Export for all boxes, two at once, beside another process that does not wait."""
    monkeypatch.setattr(by_hand, "AT_ONCE", 2)
    monkeypatch.setattr(fleet_store, "BUSY_MS", 0)
    sign = sign_document
    with ExitStack() as stack:
        other = FleetStore(f"sqlite:///{made.folder / DATABASE}")
        stack.callback(other.close)

        def run(between: Between) -> Outgoing:
            def signed(keys: Any, state: DesiredState, *rest: Any) -> Any:
                if not done.count(state.device):
                    done.append(state.device)
                    with other.transaction() as rows:
                        between(rows, state.device)
                return sign(keys, state, *rest)

            done: list[str] = []
            monkeypatch.setattr(publishing, "sign_document", signed)
            return outgoing(bench, (), "ann", START_MS)

        yield run


def documents(found: Outgoing) -> dict[str, DesiredState]:
    return {
        state.device: state
        for part in found.parts
        if part.member.path.endswith("desired.msgpack")
        for state in [decode(b"".join(bytes(each) for each in part.open()))]
    }


def generations(desk: Desk) -> list[int]:
    with desk.store.look() as view:
        return [row.generation for row in view.all(tables.devices, "generation")]


def test_boxes_change_the_database_while_a_bundle_is_made(export: Export, bench: Desk) -> None:
    found = export(lambda rows, name: rows.note(START_MS, "device", "polled", device=name))
    assert found.devices == NAMES
    assert documents(found).keys() == set(NAMES)
    assert generations(bench) == [1] * 5
    with bench.store.look() as view:
        said = [line.what for line in view.audit_lines(0, 100)][-10:]
    two = ["polled"] * 2 + ["bundle exported"] * 2
    assert said == [*two, *two, "polled", "bundle exported"]


def settings_of(found: Outgoing, names: Sequence[str]) -> list[object]:
    return [documents(found)[name].settings.get("fleet.poll_s") for name in names]


def test_what_is_wished_while_a_bundle_is_made_is_in_it(export: Export, bench: Desk) -> None:
    def wished(rows: Rows, name: str) -> None:
        if name == "box-3":
            rows.put(tables.settings, scope="group/site", name="fleet.poll_s", value="30")
            rows.count_up("revision")

    assert settings_of(export(wished), NAMES) == [None, None, 30, 30, 30]
    assert generations(bench) == [1] * 5


def test_a_box_that_was_changed_meanwhile_is_looked_at_anew(export: Export, bench: Desk) -> None:
    with bench.store.transaction() as rows:
        rows.put(tables.settings, scope="group/other", name="fleet.poll_s", value="40")

    def changed(rows: Rows, name: str) -> None:
        if name == "box-1":
            rows.change(tables.devices, {"name": name}, in_group="other", revision=-1)
        if name == "box-2":
            rows.change(tables.devices, {"name": name}, state="conflict")
        if name == "box-3":
            rows.change(tables.devices, {"name": name}, state="revoked")
        if name == "box-4":
            rows.change(tables.devices, {"name": name}, generation=7)

    found = export(changed)
    assert (found.devices, found.held) == (("box-1", "box-4", "box-5"), ("box-2",))
    assert settings_of(found, found.devices) == [40, None, None]
    assert [documents(found)[name].generation for name in found.devices] == [1, 8, 1]
    assert generations(bench) == [1, 0, 0, 8, 1]


def test_a_bundle_that_brings_nothing_new_is_signed_no_more(
    export: Export, bench: Desk, tmp_path: Path
) -> None:
    first = documents(export(lambda rows, name: None))
    assert documents(export(lambda rows, name: pytest.fail(f"{name} has its document"))) == first
    assert generations(bench) == [1] * 5


class Carried:
    """Batches on a stick: another process changes the database while each is read."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Batch]:
        for number in range(3):
            other = FleetStore(f"sqlite:///{self._place}")
            with other.transaction() as rows:
                rows.note(START_MS, "device", "polled")
            other.close()
            yield Batch(stream="serve", epoch="0" * 32, first=number * 2, records=(b"\x01", b"\x02"))


def test_boxes_change_the_database_while_a_bundle_is_read(
    bench: Desk, made: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_store, "BUSY_MS", 0)
    batches: Any = Carried(made.folder / DATABASE)
    received = Received(device="box-1", report=None, report_bytes=b"", batches=batches, records=6)
    (said,) = incoming(bench, received, "ann", START_MS)
    assert said.next == 6
    with bench.store.look() as view:
        assert len(view.all(tables.telemetry)) == 6
        assert [line.what for line in view.audit_lines(0, 9)][-4:] == [*["polled"] * 3, "bundle imported"]


def test_many_devices_are_resumed_some_at_a_time(bench: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction, began = FleetStore.transaction, []

    def counted(store: FleetStore) -> Any:
        began.append(store)
        return transaction(store)

    with bench.store.transaction() as rows:
        for name in NAMES:
            rows.change(tables.devices, {"name": name}, state="conflict", told_generation=7)
    monkeypatch.setattr(people, "AT_ONCE", 2)
    monkeypatch.setattr(FleetStore, "transaction", counted)
    found: Any = None
    desk = people.People(bench.store, bench.authority, publishing.Publisher(bench.keys), found, "")
    assert desk.resume("", "ann", START_MS).devices == 5
    assert len(began) == 3
    assert generations(bench) == [8] * 5
    assert desk.resume("", "ann", START_MS).devices == 0
