"""Ways to a version that a document names: of more than it holds, those that take least of a link."""

from __future__ import annotations

import pytest

from appliance.controller import tables
from appliance.controller.fleet_store import FleetStore
from appliance.controller.releases import wished_version
from appliance.domain.digest import digest_of
from appliance.fleet.documents import TRANSFERS_MAX


@pytest.mark.parametrize("bases", [0, 1, TRANSFERS_MAX - 1, TRANSFERS_MAX, TRANSFERS_MAX + 9])
def test_the_smallest_differences_are_kept_and_all_of_the_version(store: FleetStore, bases: int) -> None:
    sizes = [1 + number * 37 % bases for number in range(bases)]
    with store.transaction() as rows:
        rows.put(
            tables.releases, model="m", version=200, manifest=digest_of(b"200"), package=digest_of(b"p"), total_bytes=9,
            trust="unsigned", by_whom="ann", at_ms=1,
        )  # fmt: skip
        for size in (0, *sizes):
            base = digest_of(b"%d" % size) if size else ""
            rows.put(
                tables.transfers, model="m", version=200, base=base, stream=digest_of(b"s%d" % size), size=size or 500,
                index_digest=digest_of(b"i%d" % size),
            )  # fmt: skip
        ways = wished_version(rows, "m", 200).transfers
    kept = sorted(sizes)[: TRANSFERS_MAX - 1]
    assert [each.size for each in ways] == [*kept, 500], "the least first, and for who has no base all of it"
    assert [bool(each.base) for each in ways] == [True] * len(kept) + [False]
