"""What versions did is added up whole, whatever batches it came in and whatever the box's clock said."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.histogram import BOUNDS_NS, Histogram
from appliance.domain.manifest import INT64_MAX
from appliance.fleet.deeds import (
    KEYS_MAX,
    SPAN_MS,
    Clock,
    Deeds,
    Key,
    added,
    decode_deeds,
    encode_deeds,
    quantiles,
    slot_of,
    told_in,
)
from appliance.fleet.records import (
    BUCKETS,
    Energy,
    Health,
    Latency,
    Loaded,
    Minute,
    ModelHistory,
    VersionMinute,
    encode,
)

NOON = 83_335 * SPAN_MS
CLOCK = Clock(came_ms=NOON + SPAN_MS - 1, enrolled_ms=NOON - 240 * SPAN_MS, ahead_ms=0)


def of(times_ns: list[int]) -> Latency:
    histogram = Histogram()
    for each in times_ns:
        histogram.observe(each)
    return Latency.of(histogram.counts, histogram.sum_ns)


def minute(at_ms: int, times_ns: list[int], version: int = 1, refused: int = 0, name: str = "m") -> bytes:
    did = VersionMinute(
        name=name,
        version=version,
        outcomes=(len(times_ns), 0, refused),
        rows=len(times_ns),
        total=of(times_ns),
    )
    return encode(Minute(at_ms=at_ms, window_ms=60_000, uptime_ms=1, versions=(did,)))


@given(st.lists(st.lists(st.integers(0, 2 * 10**10), max_size=30), min_size=1, max_size=12), st.randoms())
def test_minutes_add_up_to_the_same_in_whatever_batches_they_come(
    minutes: list[list[int]], random: Random
) -> None:
    records = [minute(NOON + 60_000 * place, times) for place, times in enumerate(minutes)]
    cut = random.randrange(len(records) + 1)
    parts = [list(told_in(part, CLOCK).deeds.values()) for part in (records[:cut], records[cut:])]
    found = added([decode_deeds(encode_deeds(each)) for part in parts for each in part])
    times = [each for some in minutes for each in some]
    assert found.total == of(times)
    assert (sum(found.outcomes), found.rows) == (len(times), len(times))
    assert found.active_ms == 60_000 * sum(1 for some in minutes if some)


@given(st.lists(st.integers(1_000, 9 * 10**9), min_size=1, max_size=300), st.sampled_from((0.5, 0.9, 0.99)))
def test_a_quantile_lies_in_the_bucket_that_is_told(times_ns: list[int], fraction: float) -> None:
    found = quantiles(of(times_ns), fraction)
    assert found is not None
    about, low, high = found
    right = float(np.quantile(times_ns, fraction, method="inverted_cdf")) / 1e6
    assert low <= right <= high
    assert low <= about <= high
    assert quantiles(Latency(), fraction) is None


@pytest.mark.parametrize(
    ("at_ms", "ahead_ms", "span_ms"),
    [
        (NOON + 5, 0, NOON),
        (NOON - 72 * SPAN_MS + 5, 0, NOON - 72 * SPAN_MS),
        (NOON + 48 * SPAN_MS + 5, 48 * SPAN_MS, NOON),
        (NOON - 48 * SPAN_MS + 5, -48 * SPAN_MS, NOON),
        (NOON - 72 * SPAN_MS, -7200 * SPAN_MS, NOON - 72 * SPAN_MS),
        (NOON + 48 * SPAN_MS, 0, NOON),
        (0, 0, NOON),
    ],
    ids=[
        "now",
        "days late",
        "clock ahead",
        "clock behind",
        "clock put right since",
        "from the future",
        "from 1970",
    ],
)
def test_the_span_is_of_the_controllers_clock(at_ms: int, ahead_ms: int, span_ms: int) -> None:
    told = told_in([minute(at_ms, [1_000])], CLOCK._replace(ahead_ms=ahead_ms))
    assert list(told.deeds) == [Key("m", 1, span_ms)]


def test_energy_goes_to_its_version_and_that_of_whole_devices_to_none() -> None:
    def used(model: str, joules: float) -> bytes:
        record = Energy(
            at_ms=NOON, device="cpu", method="rapl", window_ms=1, joules=joules, inferences=10, model=model
        )
        return encode(record)

    told = told_in([used("m/1", 2.5), used("m/1", 1.5), used("", 99.0), used("m/1", float("inf"))], CLOCK)
    assert {key: (each.joules, each.joules_rows) for key, each in told.deeds.items()} == {
        Key("m", 1, NOON): (4.0, 20)
    }


def test_the_last_load_and_the_last_ending_that_says_something_are_told() -> None:
    def ended(sequence: int, ending: str, artifact: str = "as packaged") -> bytes:
        return encode(
            ModelHistory(
                sequence=sequence, name="m", version=2, identity="i", ending=ending, artifact=artifact
            )
        )

    loads = [encode(Loaded(name="m", version=2, load_ms=each)) for each in (5, 7)]
    endings = [ended(1, "live"), ended(2, "rolled back"), ended(3, "recalled"), ended(4, "refused", "packed")]
    told = told_in([*loads, *endings], CLOCK)
    assert told.loads == {("m", 2): loads[1]}
    assert told.endings == {("m", 2): endings[1]}


def test_what_is_no_record_or_says_nothing_of_versions_is_passed_over() -> None:
    idle = encode(
        Minute(window_ms=1, uptime_ms=1, versions=(VersionMinute(name="m", version=1, state="READY"),))
    )
    records = [b"", b"\x95\xa6minute\xc1", encode(Health(uptime_ms=1, accepting=True)), idle, b"\xa1x"]
    assert told_in(records, CLOCK) == ({}, {}, {})
    assert [slot_of(each) for each in ("m/2", "m", "m/x", "/2", "", "m/" + "9" * 19)] == [
        ("m", 2),
        *[None] * 5,
    ]


def test_what_a_hostile_box_says_is_cut_to_what_can_be_kept() -> None:
    most = Latency(BUCKETS - 1, (INT64_MAX,) * BUCKETS, INT64_MAX)
    did = VersionMinute(name="m", version=1, outcomes=(INT64_MAX,) * 64, rows=INT64_MAX, total=most)
    record = encode(Minute(at_ms=NOON, window_ms=INT64_MAX, uptime_ms=1, versions=(did, did)))
    (found,) = told_in([record], CLOCK).deeds.values()
    for _ in range(3):
        found = decode_deeds(encode_deeds(added([found, found])))
    assert (found.rows, found.total.counts, found.outcomes[63]) == (INT64_MAX, (INT64_MAX,), INT64_MAX)
    names = [minute(NOON, [1], version=number) for number in range(KEYS_MAX + 5)]
    assert len(told_in(names, CLOCK).deeds) == KEYS_MAX


def test_deeds_of_an_earlier_release_are_read() -> None:
    assert decode_deeds(b"\x91\x91\x05") == Deeds(outcomes=(5,))
    assert len(BOUNDS_NS) == BUCKETS - 1
