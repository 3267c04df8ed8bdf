"""One stolen box among others, whose telemetry means harm to who compares versions: it may spoil what is told of
itself, and nothing else."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from appliance.controller import tables
from appliance.controller.deeds import VERSIONS_MAX
from appliance.controller.fleet_store import ROW_BYTES
from appliance.domain.manifest import INT64_MAX
from appliance.fleet.messages import Batch
from appliance.fleet.records import (
    Loaded,
    Lost,
    Minute,
    VersionMinute,
    encode,
)
from tests.controller.api.desk import Desk
from tests.controller.api.test_compare import FAST, HOUR_MS, did, ended, loaded, two_versions
from tests.controller.api.test_fleet_commands import NewBox, fleet
from tests.controller.api.test_people_api import packages
from tests.fleet.test_deeds import minute

__all__ = ["fleet", "packages"]

EPOCH = "f" * 32
KEPT = 30 * 24 * HOUR_MS


@pytest.fixture(autouse=True)
def today(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person's clock is the controller's."""
    monkeypatch.setattr("appliance.cli.fleet.compare.now_ms", lambda: desk.now_ms)


def test_more_losses_than_a_number_can_say_keep_nobody_from_a_comparison(desk: Desk, new_box: NewBox) -> None:
    two_versions(desk, new_box, "a", FAST)
    two_versions(desk, new_box, "b", FAST)
    for epoch in ("1" * 32, "2" * 32):
        gone = Lost(epoch=epoch, first=0, last=INT64_MAX - 10, reason="")
        batch = Batch(stream="serve", epoch=epoch, first=INT64_MAX - 9, records=(), lost=(gone,))
        with desk.home.store.transaction() as rows:
            rows.take_batch("b", batch, desk.now_ms)
    one, other = desk.person().get("/comparisons/m")["sites"]
    assert one["why"] == []
    assert "records of what it did were lost" in other["why"][0]


@pytest.mark.parametrize("what", ["deeds", "loads"])
def test_versions_that_a_box_makes_up_take_no_more_than_their_share(
    desk: Desk, new_box: NewBox, what: str
) -> None:
    """Who asks reads them, and all other boxes wait while they are put down."""
    box, now = new_box("a"), desk.now_ms
    for first in (0, VERSIONS_MAX // 2, 3 * VERSIONS_MAX):
        numbers = range(first, first + VERSIONS_MAX + 10)
        desk.now_ms = now + first
        if what == "loads":
            records = [loaded(number) for number in numbers]
        else:
            did_all = tuple(VersionMinute(name="m", version=number, outcomes=(1,)) for number in numbers)
            records = [encode(Minute(at_ms=now, window_ms=60_000, uptime_ms=1, versions=did_all))]
        box.send(records, epoch=f"{first:032x}")
    did(desk, box, minute(now, FAST, 1 if what == "deeds" else 9), loaded(9), ended(9, "live"))
    table = getattr(tables, what)
    with desk.home.store.transaction() as rows:
        found = [row.version for row in rows.all(table)]
        assert len(found) == VERSIONS_MAX
        if what == "loads":
            last = range(3 * VERSIONS_MAX + 11, 4 * VERSIONS_MAX + 10)
            assert sorted(found) == [9, *last], "those that were told of last"
        rows.forget_telemetry(now + 2 * KEPT)
        assert (
            rows.one(tables.devices, name="a").telemetry_bytes == len(rows.all(tables.outboxes)) * ROW_BYTES
        )  # type: ignore[union-attr]


def test_loads_that_come_at_once_are_put_down_in_few_statements(desk: Desk, new_box: NewBox) -> None:
    """All other boxes wait meanwhile: one by one forty thousand took half a minute."""
    box, statements = new_box("a"), list[str]()
    event.listen(desk.home.store._engine, "before_cursor_execute", lambda *of: statements.append(of[2]))
    did(desk, box, *(encode(Loaded(name=f"m{number}", version=1)) for number in range(2000)))
    found = [each for each in statements if "loads" in each]
    assert 0 < len(found) < 20
