"""What each version did in the last hour: samples of what happened between two looks, bounded, and cheap when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from appliance.domain.model import VersionState
from appliance.engine.versions.records import MemoryRecords
from appliance.telemetry.meter import Result, VersionMeter
from appliance.telemetry.recent import KEPT, RATES, RecentFigures, Sample
from appliance.telemetry.snapshot import EngineStatus, VersionStatus
from tests.frontend.http.engine_figures import made_up_status

SECOND = 10**9


def _status(meters: list[VersionMeter], at_s: float, queued: int = 0) -> EngineStatus:
    versions = tuple(
        VersionStatus(
            name=meter.name,
            version=meter.version,
            state=VersionState.READY,
            reason="",
            queued=queued,
            running=0,
            workers=(),
            statistics=meter.frozen(),
        )
        for meter in meters
    )
    return replace(made_up_status(), now_ns=int(at_s * SECOND), versions=versions)


def _answer(meter: VersionMeter, count: int, total_ns: int = 900_000) -> None:
    for _ in range(count):
        meter.succeeded(1, 0, (0, total_ns, 0), total_ns, 0)
    meter.batch_finished(count, 0, total_ns, 0)


def test_a_sample_is_of_what_happened_since_the_one_before() -> None:
    meter, recent = VersionMeter("m", 1), RecentFigures()
    _answer(meter, 100, 5_000_000)
    recent.take(_status([meter], 10))
    assert recent.of("m", 1) == ()
    _answer(meter, 20)
    meter.ended_many(Result.EXPIRED, 3)
    meter.ended_many(Result.REFUSED, 1)
    meter.ended_many(Result.FAILED, 2)
    recent.take(_status([meter], 20, queued=7))
    (sample,) = recent.of("m", 1)
    assert (sample.answered, sample.refused, sample.failed, sample.queued) == (2.0, 0.4, 0.2, 7)
    assert sample.batch == 20
    assert 750 <= sample.p50_us <= sample.p99_us <= 1_000
    assert recent.latest("m", 1) == sample


def test_the_rates_of_the_last_minutes_are_those_of_its_last_samples() -> None:
    meter, recent = VersionMeter("m", 1), RecentFigures()
    for look in range(RATES + 3):
        _answer(meter, look)
        recent.take(_status([meter], 10 + 10 * look))
        assert len(recent.rates("m", 1)) == min(look, RATES)
    assert recent.rates("m", 1) == [(look + 3) / 10 for look in range(RATES)]
    assert recent.rates("m", 2) == []


def test_when_versions_were_asked_last_is_remembered_and_written_now_and_then_and_at_the_end() -> None:
    meter, idle, records = VersionMeter("m", 1), VersionMeter("idle", 1), _Written()
    recent, engine, loop = RecentFigures(records), _Engine(), asyncio.new_event_loop()
    for at_s in (1_000, 1_010, 1_300):
        meter.succeeded(1, 0, (0, 1, 0), 1, at_s * 1_000)
        engine.at(_status([meter, idle], at_s))
        recent.watch(loop, engine)
        assert records.last_request("m/1") == at_s * 1_000
    loop.run_until_complete(recent.close())
    loop.close()
    assert records.written == [True, False, True, True]
    assert records.last_request("idle/1") == 0


def test_what_must_be_looked_at_as_often_sees_each_status() -> None:
    seen: list[EngineStatus] = []
    recent, engine, loop = RecentFigures(also=seen.append), _Engine(), asyncio.new_event_loop()
    statuses = [_status([VersionMeter("m", 1)], at_s) for at_s in (10, 20)]
    for status in statuses:
        engine.at(status)
        recent.watch(loop, engine)
    loop.run_until_complete(recent.close())
    loop.close()
    assert seen == statuses


class _Written(MemoryRecords):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bool] = []

    def requested(self, last: Mapping[str, int], *, write: bool = False) -> None:
        super().requested(last, write=write)
        self.written.append(write)


class _Engine:
    def at(self, status: EngineStatus) -> None:
        self._status = status

    def status(self) -> EngineStatus:
        return self._status


def test_one_that_is_never_asked_takes_no_memory_and_one_that_was_goes_on() -> None:
    idle, busy, recent = VersionMeter("idle", 1), VersionMeter("busy", 1), RecentFigures()
    for at_s in (10, 20, 30):
        if at_s == 20:
            _answer(busy, 1)
        recent.take(_status([idle, busy], at_s))
    assert recent.of("idle", 1) == ()
    assert recent.latest("idle", 1) == Sample()
    assert [each.answered for each in recent.of("busy", 1)] == [pytest.approx(0.1), 0.0]


def test_an_hour_is_kept_and_what_is_gone_is_forgotten() -> None:
    meter, recent = VersionMeter("m", 1), RecentFigures()
    for look in range(KEPT + 50):
        _answer(meter, 1)
        recent.take(_status([meter], 10 + 10 * look))
    assert len(recent.of("m", 1)) == KEPT
    recent.take(_status([], 10_000))
    assert recent.of("m", 1) == ()
    assert recent.latest("m", 1) is None


def test_counters_that_began_anew_are_no_negative_rate() -> None:
    recent = RecentFigures()
    meter = VersionMeter("m", 1)
    _answer(meter, 50)
    recent.take(_status([meter], 10))
    _answer(meter, 1)
    recent.take(_status([meter], 20))
    recent.take(_status([VersionMeter("m", 1)], 30))
    assert recent.of("m", 1)[-1] == Sample()
