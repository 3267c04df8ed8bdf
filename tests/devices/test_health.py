"""What readings come to over time, and whose memory it is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from appliance.devices.health import XIDS_KEPT, Health, others_bytes
from appliance.domain.device_reading import Reading, faults, is_gone, troubles

GIB = 1 << 30


def test_a_fatal_error_counts_until_the_driver_begins_anew() -> None:
    health = Health()
    assert not list(faults(health.take(Reading(energy_j=100.0))))
    for energy_j in (110.0, 120.0):
        reading = health.take(Reading(energy_j=energy_j, xids=(79,) if energy_j == 110.0 else ()))
        assert list(faults(reading)) == ["reported Xid 79; reset it, and replace it when that comes back"]
    assert not list(faults(health.take(Reading(energy_j=1.0)))), "the counter of energy began anew"


def test_a_fatal_error_outlives_a_lost_reading_and_any_number_of_others() -> None:
    health = Health()
    health.take(Reading(energy_j=5.0, xids=(48,)))
    assert len(list(faults(health.take(Reading(lost=True))))) == 2
    for _ in range(3):
        reading = health.take(Reading(energy_j=6.0, xids=(31,) * XIDS_KEPT))
    assert reading.xids == (48, *(31,) * XIDS_KEPT)


@pytest.mark.parametrize(
    ("reading", "gone"),
    [
        (Reading(lost=True), True),
        (Reading(silent=True), True),
        (Reading(ecc_uncorrected=1), False),
        (Reading(remap_failed=True, remap_pending=True), False),
        (Reading(xids=(13, 79, 79)), False),
    ],
)
def test_a_fault_is_one_and_a_trouble_too(reading: Reading, gone: bool) -> None:
    (fault,) = faults(reading)
    assert list(troubles(reading)) == [fault]
    assert is_gone(reading) is gone


@pytest.mark.parametrize(
    "reading",
    [
        Reading(throttle=("hardware thermal slowdown",)),
        Reading(remap_pending=True),
        Reading(driver_changed=True),
    ],
)
def test_what_only_is_to_be_seen_to_is_no_fault(reading: Reading) -> None:
    assert len(list(troubles(reading))) == 1
    assert not list(faults(reading))


@pytest.mark.parametrize(
    ("used", "processes", "own", "others"),
    [
        (None, {7: GIB}, {7}, None),
        (3 * GIB, {7: GIB}, (), 3 * GIB),
        (3 * GIB, {7: GIB, 8: GIB}, {7}, 2 * GIB),
        (3 * GIB, {7: GIB, 8: GIB}, {7, 8}, GIB),
        (3 * GIB, {8: GIB}, {7}, None),
        (3 * GIB, None, {7}, None),
        (GIB, {7: 2 * GIB}, {7}, 0),
    ],
    ids=[
        "not told",
        "none is ours",
        "one is ours",
        "both are ours",
        "counted otherwise than here",
        "processes are not told",
        "counted at another moment",
    ],
)
def test_what_others_have(
    used: int | None, processes: Mapping[int, int] | None, own: set[int], others: int | None
) -> None:
    assert others_bytes(Reading(memory_used_bytes=used, processes=processes), own) == others
