"""What a box tells its fleet, from the look to the disk: once, whole, and never in the way of anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from appliance.core.rollout.records import Change, Ending
from appliance.durable import RealFolder, WriterLock
from appliance.fleet.membership import Membership
from appliance.fleet.membership import encode as encode_membership
from appliance.fleet.records import (
    AnyRecord,
    Energy,
    Event,
    Health,
    Inventory,
    Minute,
    ModelHistory,
    decode,
)
from appliance.outbox.reader import OutboxReader
from appliance.store.layout import ENROLLED, OUTBOX
from appliance.telemetry.energy import PackageEnergy
from appliance.telemetry.meter import VersionMeter
from appliance.telemetry.outboxes import FIGURES, HISTORY, LOCK
from appliance.telemetry.outlet import EVENTS_MAX, Outlet, Sight
from appliance.telemetry.snapshot import Snapshot
from tests.telemetry.test_minutes import answer, snapshot

NEVER_S = 3600.0
"""A period that no test waits for: what is told is told at the end."""


class Box:
    """A box with one model and a history, and an outlet beside it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.meter = VersionMeter("m", 1)
        self.changes: list[Change] = []
        self.reports: list[str] = []
        self.looks: list[threading.Thread] = []
        self.seconds = 0
        self.reported = asyncio.Event()
        self.looked = asyncio.Event()

    def read(self) -> Snapshot:
        self.looks.append(threading.current_thread())
        self.looked.set()
        self.seconds += 60
        return snapshot([self.meter], self.seconds)

    def outlet(self, period_s: float = NEVER_S) -> Outlet:
        sight = Sight(
            read=self.read,
            history=lambda name: self.changes,
            post=asyncio.get_running_loop().call_soon_threadsafe,
            wall_ms=lambda: 5,
            event=self.report,
        )
        return Outlet(self.state, 1 << 20, sight, period_s)

    def report(self, what: str, error: str) -> None:
        self.reports.append(f"{what}: {error}")
        self.reported.set()

    def live(self, *steps: Callable[[Outlet], None]) -> None:
        """A daemon's life: it begins, the steps are done, it ends."""

        async def life() -> None:
            outlet = self.outlet()
            outlet.start()
            for step in steps:
                step(outlet)
            await outlet.close()
            await asyncio.sleep(0)  # what the thread posted last

        run(life())

    def changed(self, sequence: int, reason: str = "") -> None:
        self.changes.append(
            Change(
                at_ms=7,
                name="m",
                version=1,
                identity="m/1",
                ending=Ending.LIVE,
                reason=reason,
                sequence=sequence,
            )
        )

    def sent(self, stream: str) -> list[AnyRecord]:
        """What an agent reads and acknowledges."""
        reader, found = OutboxReader(RealFolder(self.state / OUTBOX / stream)), list[AnyRecord]()
        while reading := reader.read(1 << 20, 1000):
            assert not reading.lost
            found += map(decode, reading.payloads)
            reader.acknowledge(reading.epoch, reading.end)
        return found


def run(life: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(life, 60))


@pytest.fixture
def box(tmp_path: Path) -> Box:
    (tmp_path / ENROLLED).parent.mkdir()
    (tmp_path / ENROLLED).write_bytes(b"somebody's")
    return Box(tmp_path)


def test_what_was_done_is_told_when_the_daemon_ends(box: Box) -> None:
    def work(outlet: Outlet) -> None:
        answer(box.meter, Random(1), 5)
        outlet.heard("a worker died", {"worker": 3, "\udcff": "\udcff", "long": "x" * 10_000}, True)

    box.live(work)
    found = {type(each): each for each in box.sent(FIGURES)}
    assert set(found) == {Event, Minute, Health, Inventory} or set(found) - {Energy} == set(found)
    minute, event = found[Minute], found[Event]
    assert isinstance(minute, Minute)
    assert isinstance(event, Event)
    assert minute.versions[0].outcomes == (5,)
    assert (event.what, event.trouble, event.fields["worker"]) == ("a worker died", True, "3")
    assert len(event.fields["long"]) == 1000
    assert box.looks == [threading.main_thread()], "figures are read where they are counted"
    assert not box.reports


def test_a_box_of_no_fleet_tells_nothing(box: Box) -> None:
    (box.state / ENROLLED).unlink()
    box.live(lambda outlet: outlet.heard("x", {}, False))
    assert not box.looks
    assert not (box.state / OUTBOX).exists()


def test_who_the_box_is_in_its_fleet_is_read_while_the_daemon_runs(box: Box) -> None:
    """At once, and again with each look, so that a change of its group is shown; what cannot be read shows nothing."""
    said = Membership(device="north", url="https://c:1", group="sites")
    (box.state / ENROLLED).write_bytes(encode_membership(said))

    async def life() -> None:
        outlet = box.outlet(0.01)
        assert outlet.membership is None
        outlet.start()
        await until(lambda: outlet.membership == said)
        (box.state / ENROLLED).write_bytes(b'{"device": "north", "url": "https://c:1"}')
        await until(lambda: outlet.membership == Membership(device="north", url="https://c:1"))
        (box.state / ENROLLED).write_bytes(b"somebody's")
        await until(lambda: outlet.membership is None)
        await outlet.close()

    async def until(holds: Callable[[], bool]) -> None:
        while not holds():
            box.looked.clear()
            await box.looked.wait()

    run(life())


def test_the_history_is_told_once_across_restarts(box: Box) -> None:
    box.changed(1)
    box.changed(2, "\udcff")
    box.live()
    box.live()
    box.changed(3)
    box.live()
    told = box.sent(HISTORY)
    assert [each.sequence for each in told if isinstance(each, ModelHistory)] == [1, 2, 3]


def test_a_history_that_began_anew_is_told_from_its_first_line(box: Box) -> None:
    for sequence in (1, 2, 3):
        box.changed(sequence)
    box.live()
    box.changes.clear()
    box.changed(1)
    box.live()
    told = box.sent(HISTORY)
    assert [each.sequence for each in told if isinstance(each, ModelHistory)] == [1, 2, 3, 1]


def test_a_position_that_cannot_be_read_costs_lines_told_twice(box: Box) -> None:
    box.changed(1)
    box.live()
    position = box.state / OUTBOX / HISTORY / "position.json"
    position.chmod(0o600)
    position.write_bytes(b"\xff[")
    box.live()
    told = box.sent(HISTORY)
    assert [each.sequence for each in told if isinstance(each, ModelHistory)] == [1, 1]


def test_a_disk_that_cannot_be_written_is_told_once_and_costs_no_count(box: Box) -> None:
    """Several periods of it, then it can be written: one minute has all that was done."""

    async def life() -> None:
        (box.state / OUTBOX).write_bytes(b"in the way")
        outlet = box.outlet(period_s=0.001)
        outlet.start()
        answer(box.meter, Random(1), 5)
        outlet.heard("something", {}, False)
        await box.reported.wait()
        (box.state / OUTBOX).unlink()
        await outlet.close()

    run(life())
    assert len(box.reports) == 1
    told = box.sent(FIGURES)
    assert sum(sum(v.outcomes) for each in told if isinstance(each, Minute) for v in each.versions) == 5
    assert len([each for each in told if isinstance(each, Event)]) == 1


def test_an_outbox_that_is_gone_begins_anew_where_an_agent_reads_it(box: Box) -> None:
    async def life() -> None:
        outlet = box.outlet(period_s=0.001)
        outlet.start()
        await box.looked.wait()
        box.looked.clear()
        await box.looked.wait()  # the first time was told by then
        (box.state / OUTBOX).rename(box.state / "moved away")
        answer(box.meter, Random(1), 5)
        await outlet.close()

    run(life())
    told = box.sent(FIGURES)
    assert sum(sum(v.outcomes) for each in told if isinstance(each, Minute) for v in each.versions) == 5


def test_what_was_told_is_not_told_again(box: Box) -> None:
    async def life() -> None:
        outlet = box.outlet(period_s=0.001)
        outlet.start()
        for _ in range(3):
            answer(box.meter, Random(1), 5)
            outlet.heard("something", {}, False)
            box.looked.clear()
            await box.looked.wait()
        await outlet.close()

    run(life())
    told = box.sent(FIGURES)
    assert sum(sum(v.outcomes) for each in told if isinstance(each, Minute) for v in each.versions) == 15
    assert len([each for each in told if isinstance(each, Event)]) == 3
    assert len([each for each in told if isinstance(each, Inventory)]) == 1


def test_events_that_are_too_many_are_counted(box: Box) -> None:
    def hear(outlet: Outlet) -> None:
        for number in range(EVENTS_MAX + 7):
            outlet.heard(str(number), {}, False)

    box.live(hear)
    events = [each for each in box.sent(FIGURES) if isinstance(each, Event)]
    assert len(events) == EVENTS_MAX + 1
    assert events[-1].fields == {"events": "7"}


def test_two_daemons_do_not_write_to_one_outbox(box: Box) -> None:
    (box.state / OUTBOX).mkdir()
    other = WriterLock(box.state / OUTBOX / LOCK)
    box.live()
    other.release()
    assert "is writing to" in box.reports[0]
    assert not box.sent(FIGURES) if (box.state / OUTBOX / FIGURES).exists() else True


def test_a_look_that_fails_ends_nothing(box: Box) -> None:
    def fail() -> Snapshot:
        raise KeyError("model")

    box.read = fail  # type: ignore[method-assign]
    box.live()
    assert "no look could be taken" in box.reports[0]


def test_an_outlet_that_never_began_ends(box: Box) -> None:
    async def life() -> None:
        await box.outlet().close()

    run(life())


def test_energy_is_what_was_used_since_it_was_told(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    part = tmp_path / "intel-rapl:0:0"
    for each in (zone, part):
        each.mkdir()
        (each / "name").write_text("package-0\n")
        (each / "max_energy_range_uj").write_text("10000000\n")
        (each / "energy_uj").write_text("1000000\n")
    energy = PackageEnergy(tmp_path)
    (zone / "energy_uj").write_text("4000000\n")
    assert energy.used() == (("package-0", 3.0),)
    assert energy.used() == (("package-0", 3.0),), "it is not told"
    energy.settled()
    (zone / "energy_uj").write_text("2000000\n")
    assert energy.used() == (("package-0", 8.0),), "the counter began anew at its end"
    assert PackageEnergy(tmp_path / "none").used() == ()
