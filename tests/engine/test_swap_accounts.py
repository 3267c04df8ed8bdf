"""What the history says of a try: which version served before it ended, and which one after."""

from __future__ import annotations

import pytest

from appliance.engine.records import Ending, MemoryRecords
from appliance.engine.routes import Served
from appliance.engine.swap_accounts import SwapAccounts
from appliance.model import VersionState
from appliance.telemetry.meter import VersionMeter
from tests.words.sample import make_version


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
        state=VersionState.READY,
        reason="",
    )
    SwapAccounts(records, lambda: 7).note(served, ending, "why", before=2, serving=serving)
    (change,) = records.history("m")
    assert (change.before, change.after) == told
