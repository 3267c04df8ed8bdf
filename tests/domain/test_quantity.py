"""How many, in words: nouns agree with their numbers, bytes have the unit that a person would say."""

from __future__ import annotations

import pytest

from appliance.domain.manifest import LatencyPromise, promise_text
from appliance.domain.quantity import bytes_text, counted


def test_one_is_singular_and_nothing_else() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 1234)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,234 rows",
    ]
    assert promise_text(LatencyPromise(rows=1, p99_us=9)) == "1 row in 9 us in 99 of 100 runs"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (30 << 20, "30.0 MiB"), (5 << 50, "5120.0 TiB")],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert bytes_text(count) == text
