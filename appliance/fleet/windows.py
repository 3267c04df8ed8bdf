"""Times of the week at which something may be done: 'Mon-Fri 22:00-06:00 Europe/Berlin'. Pure.

A window that ends before it begins ends the next day. Without days it is each day's, without a zone it is in UTC. Where
clocks are set forward over its begin or end, these are where the missing hour is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_FORM: Final = re.compile(
    r"(?:(?P<first>[A-Z][a-z]{2})(?:-(?P<last>[A-Z][a-z]{2}))? +)?"
    r"(?P<begin>[0-2][0-9]:[0-5][0-9])-(?P<end>[0-2][0-9]:[0-5][0-9])(?: +(?P<zone>[A-Za-z0-9_+/-]{1,64}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Open on these ``days`` (0: Monday) from ``begin``, for as long as it takes until the clock shows ``end``."""

    days: frozenset[int]
    begin: time
    end: time
    zone: tzinfo = UTC


def window_of(text: str) -> Window:
    """The window that ``text`` says. Raises ValueError with what is wrong."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be like 'Mon-Fri 22:00-06:00 Europe/Berlin'")
    first, last = found["first"] or DAYS[0], found["last"] or found["first"] or DAYS[-1]
    if first not in DAYS or last not in DAYS:
        raise ValueError(f"days are {', '.join(DAYS)}")
    begin_day, end_day = DAYS.index(first), DAYS.index(last)
    days = [(begin_day + each) % 7 for each in range((end_day - begin_day) % 7 + 1)]
    try:
        begin, end = (time.fromisoformat(found[each]) for each in ("begin", "end"))
        zone = ZoneInfo(found["zone"]) if found["zone"] else UTC
    except (ValueError, OSError, KeyError) as error:
        raise ValueError("names an hour or a time zone that there is not") from error
    return Window(days=frozenset(days), begin=begin, end=end, zone=zone)


def window_problems(texts: Sequence[str]) -> Iterator[str]:
    """What is wrong with each."""
    for number, text in enumerate(texts):
        try:
            window_of(text)
        except ValueError as error:
            yield f"window {number + 1} {error}"


def opens_in_s(windows: Sequence[Window], wall_ms: int) -> float | None:
    """In how many seconds one of them is open: 0.0 where one is, or there are none; None where none ever is."""
    if not windows:
        return 0.0
    now = datetime.fromtimestamp(wall_ms / 1000, UTC)
    waits = [wait for each in windows if (wait := _wait_s(each, now)) is not None]
    return min(waits, default=None)


def _wait_s(window: Window, now: datetime) -> float | None:
    today = now.astimezone(window.zone).date()
    for back in range(-1, 9):
        day = today + timedelta(days=back)
        if day.weekday() not in window.days:
            continue
        begin, end = _span(window, day)
        if now < end:
            return max((begin - now).total_seconds(), 0.0)
    return None


def _span(window: Window, day: date) -> tuple[datetime, datetime]:
    begin = datetime.combine(day, window.begin, window.zone)
    until = day + timedelta(days=1) if window.end <= window.begin else day
    return begin.astimezone(UTC), datetime.combine(until, window.end, window.zone).astimezone(UTC)
