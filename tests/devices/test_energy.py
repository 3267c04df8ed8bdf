"""Energy of a device shared out among the versions that ran on it."""

from __future__ import annotations

import pytest

from appliance.devices.energy import EnergyAccount, Work
from appliance.domain.device_reading import VersionEnergy

SECOND = 1_000_000_000


def test_idle_power_is_taken_off_and_the_rest_shared_by_time() -> None:
    account = EnergyAccount()
    none = {"a/1": Work(), "b/1": Work()}
    account.take(100.0, 1_000.0, none)
    account.take(110.0, 1_800.0, none)
    assert account.idle_w == 80.0
    assert account.versions == {}
    account.take(130.0, 5_400.0, {"a/1": Work(3 * SECOND, 100), "b/1": Work(SECOND, 10)})
    assert account.versions["a/1"] == VersionEnergy(joules=1_500.0, inferences=100, window_s=20.0)
    assert account.versions["b/1"].per_inference_j == pytest.approx(50.0)


def test_nothing_is_shared_out_before_a_quiet_window() -> None:
    account = EnergyAccount()
    account.take(0.0, 0.0, {"a/1": Work()})
    account.take(20.0, 9_000.0, {"a/1": Work(SECOND, 5)})
    assert (account.idle_w, account.versions) == (None, {})


def test_a_window_is_ten_seconds_at_least() -> None:
    account = EnergyAccount()
    for at_s in range(10):
        account.take(float(at_s), at_s * 80.0, {})
        assert account.idle_w is None
    account.take(10.0, 800.0, {})
    assert account.idle_w == 80.0


def test_a_counter_and_a_version_that_began_anew_count_from_there() -> None:
    account = EnergyAccount()
    account.take(0.0, 5_000.0, {"a/1": Work(9 * SECOND, 900)})
    account.take(20.0, 100.0, {"a/1": Work(9 * SECOND, 900)})
    assert account.idle_w is None
    account.take(30.0, 900.0, {"a/1": Work(9 * SECOND, 900)})
    account.take(40.0, 2_700.0, {"a/1": Work(SECOND, 10)})
    assert account.versions["a/1"] == VersionEnergy(joules=1_000.0, inferences=10, window_s=10.0)
    account.take(50.0, 3_500.0, {})
    assert account.versions == {}
