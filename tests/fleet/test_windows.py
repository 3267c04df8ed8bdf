"""Windows of the week, in their zones, also over midnight and where clocks are set."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from appliance.fleet.windows import opens_in_s, window_of

BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str) -> int:
    """A moment in Berlin."""
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp() * 1000)


@pytest.mark.parametrize(
    ("window", "at", "wait_s"),
    [
        ("Mon-Fri 22:00-06:00 Europe/Berlin", "2026-11-24T23:00", 0),
        ("Mon-Fri 22:00-06:00 Europe/Berlin", "2026-11-25T05:59", 0),
        ("Mon-Fri 22:00-06:00 Europe/Berlin", "2026-11-25T06:00", 16 * 3600),
        ("Mon-Fri 22:00-06:00 Europe/Berlin", "2026-11-28T05:00", 0),
        ("Mon-Fri 22:00-06:00 Europe/Berlin", "2026-11-28T07:00", 2 * 86_400 + 15 * 3600),
        ("Sat-Mon 01:00-02:00 Europe/Berlin", "2026-11-24T00:00", 4 * 86_400 + 3600),
        ("Sun 02:00-04:00 Europe/Berlin", "2026-03-29T03:30", 0),
        ("10:00-10:00", "2026-11-24T23:00", 0),
        ("12:00-13:00", "2026-11-24T12:30", 1800),
    ],
)
def test_when_it_is_open(window: str, at: str, wait_s: float) -> None:
    assert opens_in_s([window_of(window)], ms(at)) == wait_s


def test_no_window_is_always_and_the_next_of_several_counts() -> None:
    assert opens_in_s([], 0) == 0
    several = [window_of("Wed 10:00-11:00 Europe/Berlin"), window_of("Tue 23:00-23:30 Europe/Berlin")]
    assert opens_in_s(several, ms("2026-11-24T22:00")) == 3600


@pytest.mark.parametrize("wall_ms", [0, 1, 253_402_300_799_000 - 86_400_000 * 10])
def test_clocks_that_are_wrong_are_taken_as_they_are(wall_ms: int) -> None:
    wait = opens_in_s([window_of("Mon 10:00-11:00")], wall_ms)
    assert wait is not None
    assert 0 <= wait <= 7 * 86_400
