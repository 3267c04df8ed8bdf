"""For how long hardware has to slow a device until that counts, and to leave it alone until that is over."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.devices.throttling import SLOWED_S, WELL_S, Throttling

HOT = ("software power cap", "hardware thermal slowdown")


def _looks(throttling: Throttling, begin_s: float, end_s: float, throttle: Sequence[str] | None) -> list[str]:
    """What counts after each look, one a second."""
    seen = []
    at_s = begin_s
    while at_s <= end_s:
        throttling.take(at_s, throttle)
        seen.append(throttling.slow)
        at_s += 1.0
    return seen


def test_a_device_that_is_slowed_for_long_counts_as_slowed_with_the_reason() -> None:
    throttling = Throttling()
    *before, last = _looks(throttling, 0.0, SLOWED_S, HOT)
    assert set(before) == {""}
    assert last == (
        "has been slowed by its hardware for 30 s (hardware thermal slowdown); look at its cooling and its power"
    )


def test_peaks_do_not_count_however_many_there_are() -> None:
    throttling = Throttling()
    for begin_s in range(0, 3_600, 30):
        assert not any(_looks(throttling, begin_s, begin_s + SLOWED_S - 2, HOT))
        assert not any(_looks(throttling, begin_s + SLOWED_S - 1, begin_s + SLOWED_S - 1, ()))


def test_low_clocks_for_everyday_reasons_do_not_count() -> None:
    throttling = Throttling()
    assert not any(
        _looks(throttling, 0.0, 10 * SLOWED_S, ("software power cap", "software thermal slowdown"))
    )


def test_it_is_over_when_it_has_been_away_for_longer_without_a_break() -> None:
    throttling = Throttling()
    _looks(throttling, 0.0, SLOWED_S, HOT)
    assert all(_looks(throttling, 40.0, 40.0 + WELL_S - 1, ())), "it cools down at once when models leave"
    assert all(_looks(throttling, 400.0, 400.0, HOT))
    assert all(_looks(throttling, 401.0, 401.0 + WELL_S - 1, ()))
    assert not any(_looks(throttling, 401.0 + WELL_S, 401.0 + WELL_S, ()))


def test_a_driver_that_does_not_tell_begins_and_ends_nothing() -> None:
    throttling = Throttling()
    _looks(throttling, 0.0, SLOWED_S - 1, HOT)
    assert not any(_looks(throttling, SLOWED_S, SLOWED_S, None))
    assert not any(_looks(throttling, SLOWED_S + 1, 2 * SLOWED_S, HOT)), "nobody knows of the time between"
    assert any(_looks(throttling, 2 * SLOWED_S + 1, 2 * SLOWED_S + 1, HOT))
    assert all(_looks(throttling, 100.0, 100.0 + 2 * WELL_S, None))


def test_looks_of_a_device_that_rests_are_ten_seconds_apart() -> None:
    throttling = Throttling()
    seen = []
    for at_s in (0.0, 10.0, 20.0, 30.0):
        throttling.take(at_s, HOT)
        seen.append(bool(throttling.slow))
    assert seen == [False, False, False, True]
