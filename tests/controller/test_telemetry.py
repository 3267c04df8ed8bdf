"""Telemetry at the controller: each number held once, or accounted for."""

from __future__ import annotations

import tracemalloc

import pytest
from zstandard import ZstdCompressor

from appliance.controller import contact, tables
from appliance.controller.fleet_store import ROW_BYTES
from appliance.controller.losses import losses
from appliance.fleet import messages
from appliance.fleet.messages import Batch
from appliance.fleet.records import Lost
from tests.controller.conftest import DAY_MS, Box, Served, code

ONE, TWO = "1" * 32, "2" * 32


@pytest.fixture
def box(served: Served) -> Box:
    return Box(served, "box-a").enrol(served.token())


def batch(epoch: str, first: int, count: int, *lost: Lost) -> Batch:
    records = tuple(b"\xa1%d" % (number % 10) for number in range(first, first + count))
    return Batch(stream="serve", epoch=epoch, first=first, records=records, lost=lost)


def lost(epoch: str, first: int, last: int) -> Lost:
    return Lost(epoch=epoch, first=first, last=last, reason="bound")


def held(served: Served) -> dict[str, tuple[list[int], list[tuple[int, int, str]]]]:
    with served.home.store.transaction() as rows:
        records, gone = rows.all(tables.telemetry), rows.all(tables.losses)
    return {
        epoch: (
            [row.number for row in records if row.epoch == epoch],
            [(row.first, row.last, row.reason) for row in gone if row.epoch == epoch],
        )
        for epoch in {row.epoch for row in (*records, *gone)}
    }


def test_what_comes_twice_or_overlaps_is_held_once(served: Served, box: Box) -> None:
    assert box.send(batch(ONE, 0, 4)).next == 4
    assert box.send(batch(ONE, 0, 4)).next == 4
    assert box.send(batch(ONE, 2, 4)).next == 6
    assert held(served) == {ONE: (list(range(6)), [])}


def test_what_is_lost_is_kept_once_and_never_of_what_is_held(served: Served, box: Box) -> None:
    box.send(batch(ONE, 0, 4))
    for _ in range(2):
        assert box.send(batch(ONE, 10, 2, lost(ONE, 0, 9))).next == 12
    assert held(served) == {ONE: ([0, 1, 2, 3, 10, 11], [(4, 9, "bound")])}


def test_a_gap_that_the_box_does_not_tell_is_kept_as_such(served: Served, box: Box) -> None:
    box.send(batch(ONE, 0, 1))
    box.send(batch(ONE, 5, 1, lost(ONE, 3, 3)))
    assert held(served) == {ONE: ([0, 5], [(1, 2, "unexplained"), (3, 3, "bound"), (4, 4, "unexplained")])}


def test_a_new_epoch_tells_what_is_lost_of_the_one_before(served: Served, box: Box) -> None:
    box.send(batch(ONE, 0, 2))
    for _ in range(2):
        assert box.send(batch(TWO, 7, 1, lost(ONE, 2, 6))).next == 8
    assert held(served) == {ONE: ([0, 1], [(2, 6, "bound")]), TWO: ([7], [])}


def test_losses_account_for_each_number_once_whatever_is_said() -> None:
    said = [lost(ONE, 8, 20), lost(ONE, 0, 3), lost(ONE, 2, 5), lost(ONE, 9, 1)]
    found = list(losses(1, 12, said))
    assert [number for each in found for number in range(each.first, each.last + 1)] == list(range(1, 12))


def test_what_unpacks_to_too_much_is_refused_without_being_unpacked(box: Box) -> None:
    bomb = ZstdCompressor(level=19).compress(bytes(600 << 20))
    assert len(bomb) < messages.TELEMETRY_BYTES_MAX
    tracemalloc.start()
    try:
        assert code(box.post(messages.TELEMETRY, bomb)) == (400, "bad-telemetry")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_box_fills_no_more_than_its_share_and_goes_on_when_some_is_forgotten(
    served: Served, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "TELEMETRY_MAX", 4 * ROW_BYTES)
    box.send(batch(ONE, 0, 4))
    data = ZstdCompressor().compress(messages.encode(batch(ONE, 4, 1)))
    assert code(box.post(messages.TELEMETRY, data)) == (429, "telemetry-full")
    with served.home.store.transaction() as rows:
        assert rows.forget_telemetry(served.now_ms + DAY_MS) == 4
    assert box.send(batch(ONE, 4, 1)).next == 5


def test_numbers_beyond_all_numbers_are_refused(box: Box) -> None:
    far = Batch(stream="serve", epoch=ONE, first=2**63 - 1, records=(b"\x01",))
    gone = batch(ONE, 0, 1, lost(TWO, 0, 2**63 - 1))
    for each in (far, gone):
        data = ZstdCompressor().compress(messages.encode(each))
        assert code(box.post(messages.TELEMETRY, data)) == (400, "bad-telemetry")
