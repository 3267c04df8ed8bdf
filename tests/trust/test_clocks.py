"""What a box trusts does not depend on any clock."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Never

import pytest

from appliance.controller.signing import DeviceMetadata, is_due, sign_document, sign_timestamp
from appliance.fleet.metadata import TIMESTAMP_PERIOD_S
from appliance.sync.trust import begin, examine
from tests.trust.repository import DEVICE, NONE, NOW, Fleet, polled, state

CLOCKS = {
    "1970": datetime(1970, 1, 3, tzinfo=UTC),
    "now": NOW,
    "+400 days": NOW + timedelta(days=400),
    "-400 days": NOW - timedelta(days=400),
    "9999": datetime(9998, 1, 1, tzinfo=UTC),
}


def _never(*given: Any, **more: Any) -> Never:
    raise AssertionError("a clock was read")


class _NoClock(datetime):
    """A calendar without a clock."""

    now = classmethod(_never)
    utcnow = classmethod(_never)
    today = classmethod(_never)


@pytest.fixture
def _without_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("time", "time_ns", "localtime", "gmtime"):
        monkeypatch.setattr(time, name, _never)
    for module in [
        each for name, each in sys.modules.items() if name.startswith(("tuf.", "appliance.", "securesys"))
    ]:
        if getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", _NoClock)


@pytest.mark.usefixtures("_without_clocks")
@pytest.mark.parametrize("clock", CLOCKS)
def test_metadata_of_any_age_is_taken_without_looking_at_a_clock(clock: str) -> None:
    fleet = Fleet()
    metadata = sign_document(fleet.keys, state(1), NONE, CLOCKS[clock])
    trusted, refused = examine(begin(fleet.root), polled(metadata), DEVICE)
    assert (refused, trusted.desired) == (None, state(1))
    again = sign_document(fleet.keys, state(2), metadata.counters, CLOCKS["1970"])
    trusted, refused = examine(trusted, polled(again), DEVICE)
    assert (refused, trusted.desired) == (None, state(2)), (
        "the controller's clock went back, its versions did not"
    )


def test_a_timestamp_is_signed_anew_each_period_and_when_the_clock_goes_back() -> None:
    fleet = Fleet()
    metadata = fleet.publish(1)
    period = timedelta(seconds=TIMESTAMP_PERIOD_S)

    def due(which: DeviceMetadata, later: timedelta) -> bool:
        return is_due(which.timestamp, NOW + later)

    assert [due(metadata, later) for later in (timedelta(), period / 2, period, period * 400, -period)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    newer = sign_timestamp(fleet.keys, metadata, NOW + period)
    assert newer.counters.timestamp == metadata.counters.timestamp + 1
    assert (newer.snapshot, newer.targets, newer.document) == (
        metadata.snapshot,
        metadata.targets,
        metadata.document,
    )
    assert not due(newer, period)
