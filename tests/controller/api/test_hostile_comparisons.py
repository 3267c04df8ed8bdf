"""One stolen box among others, whose telemetry means harm to who compares versions: it may spoil what is told of
itself, and nothing else."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import event

from appliance.cli.failure import Exit
from appliance.controller import tables
from appliance.controller.comparing import Comparisons
from appliance.controller.deeds import VERSIONS_MAX
from appliance.controller.fleet_store import ROW_BYTES
from appliance.controller.one_by_one import AT_ONCE_MAX
from appliance.domain.manifest import INT64_MAX
from appliance.fleet.messages import Batch
from appliance.fleet.records import (
    BUCKETS,
    Energy,
    Inventory,
    Latency,
    Loaded,
    Lost,
    Minute,
    VersionMinute,
    encode,
)
from tests.controller.api.desk import Desk, Person
from tests.controller.api.test_compare import FAST, HOUR_MS, asked, did, ended, loaded, two_versions
from tests.controller.api.test_fleet_commands import Fleet, NewBox, fleet
from tests.controller.api.test_people_api import packages, released
from tests.fleet.test_deeds import minute

__all__ = ["fleet", "packages"]

ASKED = 40
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
        (device,) = rows.all(tables.devices)
        assert device.telemetry_bytes == len(rows.all(tables.outboxes)) * ROW_BYTES


def test_loads_that_come_at_once_are_put_down_in_few_statements(desk: Desk, new_box: NewBox) -> None:
    """All other boxes wait meanwhile: one by one forty thousand took half a minute."""
    box, statements = new_box("a"), list[str]()
    event.listen(desk.home.store._engine, "before_cursor_execute", lambda *of: statements.append(of[2]))
    did(desk, box, *(encode(Loaded(name=f"m{number}", version=1)) for number in range(2000)))
    found = [each for each in statements if "loads" in each]
    assert 0 < len(found) < 20


def test_a_version_that_nobody_released_is_not_what_others_are_shown(
    fleet: Fleet, desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    """One box alone says that it serves them."""
    for number in (1, 2):
        released(desk, packages[number])
    two_versions(desk, new_box, "a", FAST)
    two_versions(desk, new_box, "b", FAST)
    liar = new_box("c")
    did(desk, liar, minute(desk.now_ms, FAST, 3), minute(desk.now_ms, FAST, INT64_MAX))
    found = asked(fleet, "m")
    assert (found["version"], found["against"], found["compared"]) == (2, 1, 2)
    did(desk, liar, minute(desk.now_ms, FAST, INT64_MAX - 1), first=2)
    assert asked(fleet, "m=3")["against"] == 2
    assert asked(fleet, f"m={INT64_MAX}")["against"] == 2


def test_a_version_is_not_compared_with_itself(fleet: Fleet, desk: Desk, new_box: NewBox) -> None:
    """Which met whatever was demanded: the newest version has not served yet, and the one before is the newest that
    did."""
    two_versions(desk, new_box, "a", FAST)
    for words in (("m", "--against", "2"), ("m=2", "--against", "2"), ("m", "--against", "m=2")):
        status, _, err = fleet("compare", *words, "--p99-ratio", "1.1")
        assert status == Exit.REFUSED
        assert "'m/2' would be compared with itself" in err


HOSTILE = "\x1b[2J<script>alert(1)</script>[red]x[/red]\n\r\u202e\x00'\"&"


def test_what_a_box_says_is_text_on_the_page_and_on_the_screen(
    fleet: Fleet, desk: Desk, new_box: NewBox, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        two_versions(desk, new_box, name, FAST)
    facts = {"processor": HOSTILE, "appliance": HOSTILE, "cuda:0": HOSTILE}
    bad = two_versions(desk, new_box, "d", [12_000_000] * 200, encode(Inventory(facts=facts)))
    broken = Loaded(
        name="m", version=2, device=HOSTILE, failure=HOSTILE, load_ms=INT64_MAX, memory_bytes=INT64_MAX
    )
    did(desk, bad, ended(2, "rolled back", HOSTILE), encode(broken), first=5)
    page = tmp_path / "page.html"
    status, out, err = fleet("compare", "m", "--page", str(page), "--p99-ratio", "1.1")
    assert status == Exit.STOPPED, err
    told = page.read_text()
    assert "<script" not in told
    assert escape("<script>alert(1)</script>[red]x[/red]") in told
    for shown in (out, told):
        assert not {each for each in HOSTILE if not each.isprintable()} & set(shown) - {"\n"}
    assert "[red]x[/red]" in "".join(out.split())


def test_figures_beyond_all_that_can_be_are_of_their_site_alone(
    fleet: Fleet, desk: Desk, new_box: NewBox
) -> None:
    for name in ("a", "b", "c"):
        two_versions(desk, new_box, name, FAST)
    most = VersionMinute(
        name="m", version=2, outcomes=(INT64_MAX,) * 64, rows=INT64_MAX, retries=INT64_MAX,
        total=Latency(BUCKETS - 1, (INT64_MAX,), INT64_MAX), run=Latency(0, (INT64_MAX,) * BUCKETS, 0),
    )  # fmt: skip
    odd = [
        encode(Minute(at_ms=at_ms, window_ms=INT64_MAX, uptime_ms=0, versions=(most, most)))
        for at_ms in (0, 1, desk.now_ms, 253_402_300_800_000, INT64_MAX)
    ]
    energies = [
        Energy(device="", method="", window_ms=1, joules=each, model="m/2") for each in (1e308, 1e308)
    ]
    infinite = [
        msgspec.msgpack.encode(["energy", 1, 0, "", "", 1, float(each), 0, "m/2"]) for each in ("inf", "nan")
    ]
    cut = [record[:-3] for record in odd]
    did(desk, two_versions(desk, new_box, "d", FAST), *odd, *map(encode, energies), *infinite, *cut, first=4)
    status, _, err = fleet("compare", "m", "--failed-percent", "1", "--on", "75")
    assert status == Exit.OK, err
    found = desk.person().get("/comparisons/m")
    assert [each["p99_ratio"] for each in found["sites"]][:3] == [1.0] * 3
    assert found["p99_ratio"] == 1.0
    assert not {"NaN", "Infinity"} & set(json.dumps(found).replace(",", " ").split())


def test_who_has_versions_compared_again_and_again_keeps_no_box_waiting(
    desk: Desk, new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a thread for seconds at a large fleet, and boxes are answered by the same ones."""
    box = two_versions(desk, new_box, "a", FAST)
    compare, begun, may_end, ended = Comparisons.compare, threading.Event(), threading.Event(), list[int]()

    def slow(*of: Any) -> Any:
        begun.set()
        may_end.wait(20)
        ended.append(1)
        return compare(*of)

    monkeypatch.setattr(Comparisons, "compare", slow)

    def ask(person: Person) -> int:
        person.get("/comparisons/m")
        return person.status

    with ThreadPoolExecutor(ASKED) as pool:
        asked_for = [pool.submit(ask, desk.person()) for _ in range(ASKED)]
        try:
            assert begun.wait(20)
            box.polled()
            assert not ended
            refused = next(as_completed(asked_for)).result()
        finally:
            may_end.set()
        statuses = Counter(each.result() for each in asked_for)
    assert refused == 429
    assert statuses == {200: AT_ONCE_MAX, 429: ASKED - AT_ONCE_MAX}


def test_sums_that_are_of_one_site_are_said_to_be(fleet: Fleet, desk: Desk, new_box: NewBox) -> None:
    two_versions(desk, new_box, "a", FAST)
    two_versions(desk, new_box, "b", FAST)
    assert "requests of m/" not in fleet("compare", "m")[1]
    many = VersionMinute(name="m", version=2, outcomes=(5000,), total=Latency(20, (5000,), 10**12))
    did(
        desk, new_box("c"), encode(Minute(at_ms=desk.now_ms, window_ms=60_000, uptime_ms=1, versions=(many,)))
    )
    out = " ".join(fleet("compare", "m")[1].split())
    assert "93 % of the requests of m/2 are of 'c', so its sums are of that site" in out
    assert "requests of m/1" not in out
