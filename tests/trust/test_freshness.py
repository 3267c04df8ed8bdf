"""Fresh, stale and frozen, by the time that the box itself has counted."""

from __future__ import annotations

import msgspec
import pytest

from appliance.fleet.metadata import TIMESTAMP_PERIOD_S
from appliance.sync.freshness import (
    FRESH,
    FROZEN,
    KEEP_AFTER_MS,
    STALE,
    Contact,
    Instant,
    counted,
    freshness,
    heard,
    is_worth_keeping,
)

DAY = TIMESTAMP_PERIOD_S * 1000
HOUR = DAY // 24


def at(ms: int, boot: str = "a") -> Instant:
    return Instant(boot=boot, ms=ms)


def test_what_was_never_heard_is_stale() -> None:
    found = freshness(Contact(), at(5))
    assert (found.word, found.rose_ms, found.heard_ms, found.exact) == (STALE, None, None, False)


def test_a_timestamp_that_rises_each_day_stays_fresh() -> None:
    kept = Contact()
    for day in range(400):
        kept = heard(kept, at(day * DAY), rose=True)
        assert freshness(kept, at(day * DAY + DAY - 1)).word == FRESH


def test_without_contact_it_is_stale_after_two_periods() -> None:
    kept = heard(Contact(), at(0), rose=True)
    assert freshness(kept, at(2 * DAY)).word == FRESH
    assert freshness(kept, at(2 * DAY + 1)).word == STALE
    assert freshness(kept, at(400 * DAY)).word == STALE


def test_contact_without_a_newer_timestamp_is_frozen_after_two_periods() -> None:
    kept = heard(Contact(), at(0), rose=True)
    for hour in range(1, 100):
        kept = heard(kept, at(hour * HOUR), rose=False)
        assert freshness(kept, at(hour * HOUR)).word == (FRESH if hour <= 48 else FROZEN)
    assert freshness(heard(kept, at(100 * HOUR), rose=True), at(100 * HOUR)).word == FRESH


def test_contact_that_brings_nothing_ever_is_frozen() -> None:
    assert freshness(heard(Contact(), at(0), rose=False), at(0)).word == FROZEN


def test_a_long_silence_is_not_taken_for_a_freeze() -> None:
    kept = heard(Contact(), at(0), rose=True)
    kept = heard(kept, at(30 * DAY), rose=True)
    assert freshness(kept, at(30 * DAY)).word == FRESH


def test_a_freeze_is_told_across_restarts_of_the_agent() -> None:
    """The process goes, the count of the kernel goes on."""
    kept = heard(Contact(), at(0), rose=True)
    kept = heard(msgspec.json.decode(msgspec.json.encode(kept), type=Contact), at(3 * DAY), rose=False)
    assert freshness(kept, at(3 * DAY)).word == FROZEN


def test_after_a_boot_nothing_is_fresh_before_the_next_contact() -> None:
    kept = heard(Contact(), at(0), rose=True)
    found = freshness(kept, at(1000, "b"))
    assert (found.word, found.rose_ms, found.exact) == (STALE, 1000, False)
    kept = counted(kept, at(2000, "b"))
    assert freshness(kept, at(3000, "b")).word == STALE, "keeping it is no contact"
    assert freshness(heard(kept, at(4000, "b"), rose=True), at(4000, "b")).word == FRESH


def test_a_box_that_is_rebooted_each_day_cannot_be_kept_fresh_by_that() -> None:
    kept = heard(Contact(), at(0, "boot 0"), rose=True)
    words = []
    for day in range(1, 5):
        now = at(20 * HOUR, f"boot {day}")
        kept = heard(kept, now, rose=False)
        words.append(freshness(kept, now).word)
    assert words == [FRESH, FRESH, FROZEN, FROZEN]


def test_time_without_contact_is_counted_when_it_is_kept_now_and_then() -> None:
    kept = heard(Contact(), at(0), rose=True)
    for hour in range(1, 100):
        kept = counted(kept, at(hour * HOUR))
    found = freshness(kept, at(HOUR, "b"))
    assert (found.rose_ms, found.heard_ms) == (100 * HOUR, 100 * HOUR)


@pytest.mark.parametrize(("boot", "ms"), [("a", 10), ("", 10)])
def test_a_count_that_starts_again_is_another_boot(boot: str, ms: int) -> None:
    kept = heard(Contact(), at(5 * DAY, boot), rose=True)
    found = freshness(kept, at(ms, boot))
    assert (found.word, found.rose_ms) == (STALE, ms)


def test_the_disk_is_written_when_it_matters_and_once_an_hour() -> None:
    kept = heard(Contact(), at(0), rose=True)
    assert is_worth_keeping(Contact(), kept)
    assert not is_worth_keeping(kept, heard(kept, at(60_000), rose=False))
    assert is_worth_keeping(kept, heard(kept, at(60_000), rose=True))
    assert is_worth_keeping(kept, counted(kept, at(KEEP_AFTER_MS)))
    assert is_worth_keeping(kept, counted(kept, at(1, "b")))
