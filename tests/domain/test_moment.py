"""Moments for people: whatever number a clock or a disk has, there is a day for it."""

from __future__ import annotations

import pytest

from appliance.domain.moment import moment


@pytest.mark.parametrize(
    ("at_ms", "said"),
    [
        (0, "1970-01-01 00:00:00Z"),
        (-1, "1970-01-01 00:00:00Z"),
        (1_767_225_600_000, "2026-01-01 00:00:00Z"),
        (1 << 63, "9999-12-31 23:59:59Z"),
        (10**400, "9999-12-31 23:59:59Z"),
    ],
)
def test_every_number_is_a_moment(at_ms: int, said: str) -> None:
    assert moment(at_ms) == said
