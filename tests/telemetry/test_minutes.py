"""What is told of each minute adds up to all that was counted, however the minutes fell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.histogram import BOUNDS_NS
from appliance.domain.model import VersionState
from appliance.fleet.messages import Batch
from appliance.fleet.records import (
    BUCKETS,
    OUTCOMES,
    Energy,
    Event,
    Inventory,
    Latency,
    Loaded,
    Lost,
    Minute,
    ModelHistory,
    RecordInvalid,
    VersionMinute,
    decode,
    encode,
)
from appliance.telemetry.meter import Result, Stage, VersionMeter
from appliance.telemetry.minutes import VERSIONS_PER_RECORD, Minutes, health
from appliance.telemetry.snapshot import (
    EngineStatus,
    FrontEndFigures,
    HttpStatistics,
    Snapshot,
    SwapFigures,
    VersionStatus,
)
from tests.frontend.http.engine_figures import made_up_status

SECOND = 10**9
EPOCH = "0" * 32


def snapshot(meters: Iterable[VersionMeter], at_s: float, swaps: SwapFigures | None = None) -> Snapshot:
    versions = tuple(
        VersionStatus(
            name=meter.name,
            version=meter.version,
            state=VersionState.READY,
            reason="",
            queued=0,
            running=0,
            workers=(),
            statistics=meter.frozen(),
        )
        for meter in meters
    )
    engine: EngineStatus = replace(
        made_up_status(),
        now_ns=int(at_s * SECOND),
        started_ns=0,
        versions=versions,
        swaps=swaps or SwapFigures(),
    )
    front = FrontEndFigures(
        kind="python", counts={"calls_total": int(at_s), "calls_open": 3}, limits={"max_connections": 1}
    )
    http = HttpStatistics(
        answers=(), connections=0, refused_connections=0, in_flight=0, body_bytes=0, answer_bytes=0,
        refused_answers=0,
    )  # fmt: skip
    return Snapshot(engine=engine, front_end=front, http=http, wall_s=1000.0 + at_s)


def answer(meter: VersionMeter, random: Random, count: int) -> None:
    for _ in range(count):
        took = random.randrange(1, 10**8)
        meter.succeeded(2, took // 3, (0, took // 2, 0), took, 0)
    meter.batch_finished(2 * count, 0, 100, 0)


counts = st.lists(st.integers(0, 2**40), min_size=BUCKETS, max_size=BUCKETS)


@given(counts, counts)
def test_histograms_are_added_exactly(one: list[int], two: list[int]) -> None:
    both = Latency.of(one, sum(one)) + Latency.of(two, sum(two))
    assert both.dense() == tuple(a + b for a, b in zip(one, two, strict=True))
    assert both.sum_ns == sum(one) + sum(two)


def test_outcomes_have_the_order_of_results() -> None:
    assert tuple(each.value for each in Result) == OUTCOMES
    assert len(BOUNDS_NS) + 1 == BUCKETS


@pytest.mark.parametrize("failing", [0.0, 0.5])
def test_minutes_add_up_to_what_was_counted(failing: float) -> None:
    """Also where many could not be kept: what was not settled comes again."""
    random, minutes = Random(1), Minutes()
    meters = [VersionMeter(f"m{number}", 1) for number in range(3)]
    told: list[Minute] = []
    for at_s in range(60, 60 * 200, 60):
        for meter in random.sample(meters, random.randrange(4)):
            answer(meter, random, random.randrange(5))
            meter.ended(Result.FAILED, 1000)
        now = snapshot(meters, at_s, SwapFigures(endings={"live": at_s // 600}, loads=at_s // 300))
        taken = minutes.take(now)
        if random.random() >= failing or at_s == 60 * 199:
            told += [msgspec.msgpack.decode(encode(each), type=Minute) for each in taken]
            minutes.settled(now)
    assert sum(each.window_ms for each in told) == 60 * 199 * 1000
    assert sum(each.swaps.get("ending live", 0) for each in told) == 60 * 199 // 600
    assert sum(each.fronts.get("calls_total", 0) for each in told) == 60 * 199
    assert not any("calls_open" in each.fronts for each in told)
    for meter in meters:
        mine = [v for each in told for v in each.versions if v.name == meter.name]
        statistics = meter.frozen()
        assert sum(v.outcomes[0] for v in mine if v.outcomes) == meter.answered
        failed = list(Result).index(Result.FAILED)
        assert (
            sum(v.outcomes[failed] for v in mine if len(v.outcomes) > failed) == meter.results[Result.FAILED]
        )
        assert sum(v.rows for v in mine) == meter.inferences
        assert sum(count for v in mine for _, count in v.batches) == statistics.executions
        total = sum((v.total for v in mine), Latency())
        assert total.dense() == statistics.stages[Stage.TOTAL].counts
        assert total.sum_ns == statistics.stages[Stage.TOTAL].sum_ns


def test_versions_that_did_nothing_are_not_told_again() -> None:
    minutes, meters = Minutes(), [VersionMeter("a", 1), VersionMeter("b", 2)]
    first = minutes.take(now := snapshot(meters, 60))
    assert [v.name for v in first[0].versions] == ["a", "b"], "their state is news"
    minutes.settled(now)
    answer(meters[1], Random(1), 1)
    (minute,) = minutes.take(snapshot(meters, 120))
    assert [(v.name, v.version) for v in minute.versions] == [("b", 2)]


def test_a_version_that_counts_from_nothing_again_is_told_whole() -> None:
    minutes, meter = Minutes(), VersionMeter("a", 1)
    answer(meter, Random(1), 10)
    minutes.settled(snapshot([meter], 60))
    anew = VersionMeter("a", 1)
    answer(anew, Random(1), 4)
    (minute,) = minutes.take(snapshot([anew], 120))
    assert minute.versions[0].outcomes == (4,)
    assert minute.versions[0].total.dense() == anew.frozen().stages[Stage.TOTAL].counts


def test_many_versions_are_several_records() -> None:
    meters = [VersionMeter(f"m{number}", 1) for number in range(2 * VERSIONS_PER_RECORD + 1)]
    parts = Minutes().take(snapshot(meters, 60))
    assert [len(each.versions) for each in parts] == [VERSIONS_PER_RECORD, VERSIONS_PER_RECORD, 1]
    assert [bool(each.fronts) for each in parts] == [True, False, False], "counts of the box come once"


RECORDS = (
    Minute(
        window_ms=1, uptime_ms=2, versions=(VersionMinute(name="a", version=1, total=Latency(3, (1, 2), 9)),)
    ),
    health(snapshot([], 60)),
    Inventory(facts={"python": "3"}),
    Event(what="serving", fields={"models": "3"}),
    ModelHistory(sequence=3, name="a", version=1, identity="a/1", ending="live"),
    Energy(device="package-0", method="rapl", window_ms=60_000, joules=12.5, inferences=5),
    Loaded(name="a", version=1, load_ms=5, memory_bytes=9, cases=3, absolute=0.5, relative=0.25),
    Lost(epoch=EPOCH, first=3, last=9, reason="bound"),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_are_read_back_by_older_and_newer_ones(record: Minute) -> None:
    data = encode(record)
    assert decode(data) == record
    values = msgspec.msgpack.decode(data)
    assert values[1] == 1, "the schema is where every reader finds it"
    assert decode(msgspec.msgpack.encode([*values, "of a newer release"])) == record


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x90", b"\x91\xa5other", b"\x92\xa6minute\x00", b"\x91" * 5000]
)
def test_what_is_no_record_is_told(data: bytes) -> None:
    with pytest.raises(RecordInvalid):
        decode(data)


def test_a_batch_brings_what_is_lost_before_it() -> None:
    lost = Lost(epoch=EPOCH, first=3, last=9, reason="bound")
    batch = Batch(stream="serve", epoch=EPOCH, first=10, records=(encode(lost),), lost=(lost,))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=Batch) == batch


def test_three_days_of_twenty_models_fit_into_fifty_megabytes_at_the_worst() -> None:
    """Every bucket of every histogram filled, each minute, before anything is packed."""
    latency = Latency.of([60_000] * BUCKETS, 2**60)
    version = VersionMinute(
        name="m" * 64,
        version=2**31,
        outcomes=(60_000,) * len(OUTCOMES),
        rows=2**31,
        queue=latency,
        run=latency,
        total=latency,
        batches=tuple((rows, 60_000) for rows in range(16)),
        queued=1000,
        state="READY",
    )
    minute = Minute(at_ms=2**41, window_ms=60_000, uptime_ms=2**40, versions=(version,) * 20)
    each = sum(len(encode(record)) for record in (minute, health(snapshot([], 60))))
    assert 72 * 60 * each < 50_000_000
