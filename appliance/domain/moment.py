"""Moments of the wall clock for people, in UTC: boxes of one fleet stand in many zones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

SECOND: Final = "%Y-%m-%d %H:%M:%SZ"
LAST_MS: Final = 253_402_300_799_000
"""The calendar ends with the year 9999, and numbers on a disk need not."""
_YEAR_MS: Final = 366 * 86_400_000


def on_calendar(at_ms: int) -> int:
    """The same, or the nearest moment from 1970 on after which there is a year: a clock that somebody else told may say
    anything."""
    return min(max(at_ms, 0), LAST_MS - _YEAR_MS)


def moment(at_ms: int, form: str = SECOND) -> str:
    """Milliseconds since 1970 as ``form`` says; what no calendar has is its nearest day."""
    return datetime.fromtimestamp(min(max(at_ms, 0), LAST_MS) / 1000, UTC).strftime(form)
