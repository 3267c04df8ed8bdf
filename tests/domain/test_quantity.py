"""Nouns that agree with their numbers."""

from __future__ import annotations

from appliance.domain.manifest import LatencyPromise, promise_text
from appliance.domain.quantity import counted


def test_one_is_singular_and_nothing_else() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 1234)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,234 rows",
    ]
    assert promise_text(LatencyPromise(rows=1, p99_us=9)) == "1 row in 9 us in 99 of 100 runs"
