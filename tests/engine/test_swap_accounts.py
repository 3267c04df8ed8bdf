"""What the history says of a try: what served before it ended and what after; and what is found out at the start."""

from __future__ import annotations

import pytest

from appliance.core.rollout.ledger import Change, Ending
from appliance.core.rollout.phase import Phase
from appliance.engine.control.swap_accounts import SwapAccounts
from appliance.engine.versions.records import MemoryRecords
from appliance.engine.versions.routes import Served
from appliance.telemetry.meter import VersionMeter
from tests.domain.sample import make_version


@pytest.mark.parametrize(
    ("ending", "serving", "told"),
    [
        (Ending.LIVE, False, (2, 3)),
        (Ending.REFUSED, False, (2, 2)),
        (Ending.ROLLED_BACK, False, (2, 2)),
        (Ending.ROLLED_BACK, True, (3, 2)),
    ],
)
def test_which_version_served(ending: Ending, serving: bool, told: tuple[int, int]) -> None:
    records = MemoryRecords()
    served = Served(
        id=1,
        model=make_version("m", 3),
        fingerprint="",
        meter=VersionMeter("m", 3),
        phase=Phase.LIVE,
    )
    SwapAccounts(records, lambda: 7).note(served, ending, "why", before=2, serving=serving)
    (change,) = records.history("m")
    assert (change.before, change.after) == told


def change(version: int, ending: Ending, before: int, after: int, name: str = "m") -> Change:
    identity = f"{name}/{version}@files"
    return Change(
        at_ms=1, name=name, version=version, identity=identity, ending=ending, before=before, after=after
    )


LIVE = change(1, Ending.LIVE, 0, 1)


@pytest.mark.parametrize(
    ("told", "wanted", "withdrawn"),
    [
        ([LIVE], set(), 1),
        ([LIVE], {"m"}, 0),
        ([LIVE], {"other"}, 1),
        ([LIVE, change(2, Ending.LIVE, 1, 2)], set(), 2),
        ([LIVE, change(2, Ending.REFUSED, 1, 1)], set(), 1),
        ([LIVE, change(1, Ending.GIVEN_UP, 1, 0)], set(), 0),
        ([LIVE, change(1, Ending.WITHDRAWN, 1, 0)], set(), 0),
        ([change(2, Ending.ABANDONED, 3, 3)], set(), 3),
        ([], set(), 0),
    ],
    ids=[
        "served",
        "wanted",
        "another_wanted",
        "the_later",
        "the_one_before",
        "given_up",
        "told",
        "old",
        "new",
    ],
)
def test_what_served_and_is_wanted_no_more_at_the_start_was_withdrawn(
    told: list[Change], wanted: set[str], withdrawn: int
) -> None:
    records = MemoryRecords()
    for each in [*told, change(5, Ending.LIVE, 0, 5, "n")]:
        records.happened(each)
    accounts = SwapAccounts(records, lambda: 7)
    for _ in range(2):
        accounts.found_withdrawn({*wanted, "n"})
    more = records.history("m")[len(told) :]
    assert len(more) == bool(withdrawn)
    for each in more:
        assert (each.ending, each.version, each.before, each.after) == (
            Ending.WITHDRAWN, withdrawn, withdrawn, 0,
        )  # fmt: skip
        assert each.at_ms == 7
        assert each.identity == ("" if withdrawn == 3 else f"m/{withdrawn}@files")
        assert "when the appliance started" in each.reason
    assert len(records.history("n")) == 1
